// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "gate.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

/* Threads are spread by the addresses of their stacks, so that launches of several do not share a cache line. */
enum { PLACES = 16, LINE = 64, STACK_SHIFT = 20 };

static struct place {
	atomic_uint inside;
	char rest[LINE - sizeof(atomic_uint)];
} places[PLACES] __attribute__((aligned(LINE)));
static atomic_bool closed;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER;

int64_t cui_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64_C(1000) + now.tv_nsec / 1000000;
}

static void wait_until_open(void)
{
	pthread_mutex_lock(&mutex);
	while (atomic_load(&closed))
		pthread_cond_wait(&opened, &mutex);
	pthread_mutex_unlock(&mutex);
}

/* Sequentially consistent both here and in cui_gate_close: either we see that it is closed, or it sees us. */
unsigned int cui_enter(void)
{
	unsigned int where = (uintptr_t)__builtin_frame_address(0) >> STACK_SHIFT & (PLACES - 1);

	for (;;) {
		atomic_fetch_add(&places[where].inside, 1);
		if (__builtin_expect(!atomic_load(&closed), 1))
			return where;
		atomic_fetch_sub(&places[where].inside, 1);
		wait_until_open();
	}
}

void cui_leave(unsigned int where)
{
	atomic_fetch_sub_explicit(&places[where].inside, 1, memory_order_release);
}

void cui_gate_open(void)
{
	pthread_mutex_lock(&mutex);
	atomic_store(&closed, false);
	pthread_cond_broadcast(&opened);
	pthread_mutex_unlock(&mutex);
}

bool cui_gate_close(int64_t deadline_ms)
{
	static const struct timespec pause = { .tv_nsec = 100000 };

	atomic_store(&closed, true);
	for (unsigned int i = 0; i < PLACES; i++)
		while (atomic_load(&places[i].inside)) {
			if (cui_now_ms() >= deadline_ms) {
				cui_gate_open();
				return false;
			}
			nanosleep(&pause, NULL);
		}
	return true;
}

void cui_gate_reset(void)
{
	memset(places, 0, sizeof(places));
	atomic_store(&closed, false);
	pthread_mutex_init(&mutex, NULL);
	pthread_cond_init(&opened, NULL);
}
