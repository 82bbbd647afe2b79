// SPDX-License-Identifier: Apache-2.0
/*
 * This process's part in a checkpoint, step by step:
 *
 *	CLOSE		the gate; then wait until the device is idle
 *	LET_GO		of imports: unmap, release; reservations stay
 *	HOLD		no time-out from now on
 *	LOCK		the driver is locked: a coordinator's end no longer heals
 *	  the coordinator checkpoints, restores and unlocks this process; no call of CUDA is made here
 *	SERVE		tickets are answered again
 *	IMPORT		ask, import, map, set access
 *	OPEN_GATE
 *
 * A coordinator's requests come over one connection, in a thread of their own: the
 * endpoint's never waits for a step, and answers BUSY meanwhile.  When the connection
 * ends, or no step comes in time, the imports are brought back and the gate opens,
 * unless the phase is LOCKED.  Each step may be asked for again.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "bytes.h"
#include "contexts.h"
#include "gate.h"
#include "owned.h"
#include "peer.h"
#include "tracker.h"

enum { PATIENCE_MS = 30000, LEAST_MS = 100, PAUSE_US = 2000 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;
static enum cui_phase phase;
static unsigned int exporting; /* threads that are in the driver for a ticket */
static bool occupied; /* a coordinator's connection is open, or its end is being healed */
static int arrived = -1; /* a connection for the worker, with its first request */
static struct cui_frame arrived_with;

static void enter_phase(enum cui_phase now)
{
	pthread_mutex_lock(&mutex);
	phase = now;
	pthread_mutex_unlock(&mutex);
}

enum cui_phase cui_cycle_phase(void)
{
	pthread_mutex_lock(&mutex);
	enum cui_phase now = phase;
	pthread_mutex_unlock(&mutex);
	return now;
}

bool cui_cycle_begin_export(void)
{
	pthread_mutex_lock(&mutex);
	bool serves = phase == CUI_OPEN || phase == CUI_SERVING || phase == CUI_BACK;
	exporting += serves;
	pthread_mutex_unlock(&mutex);
	return serves;
}

void cui_cycle_end_export(void)
{
	pthread_mutex_lock(&mutex);
	exporting--;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&mutex);
}

static struct timespec until(int64_t deadline_ms)
{
	return (struct timespec){ .tv_sec = deadline_ms / 1000, .tv_nsec = deadline_ms % 1000 * 1000000 };
}

/*
 * cuCtxSynchronize has no time-out.  So it has a thread: if that is late the step
 * fails, and the next one waits for it before anything else.
 */
static struct {
	bool running;
	int result;
} synchronising;

static void *synchronise(void *unused)
{
	int result = cui_contexts_synchronise();

	pthread_mutex_lock(&mutex);
	synchronising.running = false;
	synchronising.result = result;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&mutex);
	return unused;
}

static int device_idle(int64_t deadline_ms)
{
	struct timespec limit = until(deadline_ms);
	pthread_attr_t detached;
	pthread_t thread;
	int error = 0;

	pthread_mutex_lock(&mutex);
	while (synchronising.running && !error)
		error = pthread_cond_timedwait(&changed, &mutex, &limit);
	if (!error) {
		pthread_attr_init(&detached);
		pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
		synchronising.running = true;
		error = pthread_create(&thread, &detached, synchronise, NULL);
		synchronising.running = !error;
		pthread_attr_destroy(&detached);
	}
	while (synchronising.running && !error)
		error = pthread_cond_timedwait(&changed, &mutex, &limit);
	int result = error ? CUDA_ERROR_NOT_READY : synchronising.result;
	pthread_mutex_unlock(&mutex);
	return result;
}

static struct cui_failure no_failure(void)
{
	return (struct cui_failure){ .stage = CUI_STAGE_NONE };
}

static struct cui_failure failed(enum cui_step_stage stage, int cuda, const struct cui_memory *memory)
{
	struct cui_failure failure = { .stage = stage, .cuda = cuda };

	if (memory)
		failure.resource = memory->ticket.resource;
	return failure;
}

static void open_gate(void)
{
	enter_phase(CUI_OPEN);
	cui_gate_open();
}

static struct cui_failure close_gate(int64_t deadline_ms)
{
	struct timespec limit = until(deadline_ms);
	struct cui_failure failure = no_failure();
	int error = 0;

	pthread_mutex_lock(&mutex);
	phase = CUI_CLOSED; /* an importer that asks now is answered BUSY, and leaves its own gate */
	while (exporting && !error)
		error = pthread_cond_timedwait(&changed, &mutex, &limit);
	pthread_mutex_unlock(&mutex);
	if (error || !cui_gate_close(deadline_ms)) {
		enter_phase(CUI_OPEN);
		return failed(CUI_STAGE_GATE, CUDA_ERROR_NOT_READY, NULL);
	}
	if (atomic_load(&cui_captures) > 0)
		failure = failed(CUI_STAGE_CAPTURE, CUDA_ERROR_NOT_READY, NULL);
	else if (cui_imports()) {
		int result = device_idle(deadline_ms);

		if (result)
			failure = failed(CUI_STAGE_SYNCHRONISE, result, NULL);
	}
	if (failure.stage)
		open_gate();
	return failure;
}

/*
 * Under the closed gate nobody else changes the ledger, but an inventory reads it: so
 * what it reads is written with the lock, and no lock is held across the driver's calls.
 */
static void set_away(struct cui_mapping *mapping, bool away)
{
	cui_ledger_lock();
	mapping->away = away;
	cui_ledger_unlock();
}

static void set_real(struct cui_memory *memory, uint64_t real)
{
	cui_ledger_lock();
	memory->real = real;
	cui_ledger_unlock();
}

static void set_lost(struct cui_memory *memory, struct cui_failure failure)
{
	cui_ledger_lock();
	memory->lost = failure;
	cui_ledger_unlock();
}

static struct cui_failure let_go_of(struct cui_memory *memory)
{
	cui_context_adopt(memory->context);
	for (struct cui_mapping *mapping = memory->last; mapping; mapping = mapping->previous) {
		if (mapping->away)
			continue;
		CUresult result =
			real_cuMemUnmap(mapping->range.start, mapping->range.end - mapping->range.start);

		if (result)
			return failed(CUI_STAGE_UNMAP, result, memory);
		set_away(mapping, true);
	}
	if (memory->real) {
		CUresult result = real_cuMemRelease(memory->real);

		if (result)
			return failed(CUI_STAGE_RELEASE, result, memory);
		set_real(memory, 0);
	}
	return no_failure();
}

static struct cui_failure let_go(void)
{
	struct cui_failure failure = no_failure();

	for (struct cui_memory *memory = cui_memory_first(); memory; memory = memory->next)
		if (memory->imported && (memory->foreign || memory->entangled))
			return failed(CUI_STAGE_KEEP, 0, memory);
	if (cui_noted(CUI_NOTE_untracked))
		return failed(CUI_STAGE_KEEP, 0, NULL);
	for (struct cui_memory *memory = cui_memory_first(); memory && !failure.stage; memory = memory->next)
		if (memory->imported && !memory->lost.stage)
			failure = let_go_of(memory);
	return failure;
}

static bool is_away(const struct cui_memory *memory)
{
	if (!memory->imported || memory->foreign)
		return false;
	if (memory->references && !memory->real)
		return true;
	for (const struct cui_mapping *mapping = memory->first; mapping; mapping = mapping->next)
		if (mapping->away)
			return true;
	return false;
}

static struct cui_failure map_again(struct cui_memory *memory, struct cui_mapping *mapping)
{
	CUresult result = real_cuMemMap(mapping->range.start, mapping->range.end - mapping->range.start,
					mapping->offset, memory->real, mapping->flags);

	if (result)
		return failed(CUI_STAGE_MAP, result, memory);
	set_away(mapping, false);
	for (unsigned int i = 0; i < mapping->accesses; i++) {
		const struct cui_access *access = &mapping->access[i];
		const int description[3] = { access->type, access->id, access->flags };

		result = real_cuMemSetAccess(access->start, access->size, (const void *)description, 1);
		if (result) {
			/* so that the next attempt begins with the map */
			real_cuMemUnmap(mapping->range.start, mapping->range.end - mapping->range.start);
			set_away(mapping, true);
			return failed(CUI_STAGE_ACCESS, result, memory);
		}
	}
	return no_failure();
}

/* A creator that is busy will answer: it is waited for until the deadline. */
static struct cui_failure bring_back(struct cui_memory *memory, int64_t deadline_ms)
{
	struct cui_failure failure = no_failure();

	cui_context_adopt(memory->context);
	if (!memory->real) {
		CUI_OWNED int fd = -1;
		CUmemGenericAllocationHandle number;
		enum cui_status status;
		int32_t cuda;

		while ((status = cui_share_ask(&memory->ticket, deadline_ms, &fd, &cuda)) == CUI_BUSY &&
		       cui_now_ms() < deadline_ms)
			usleep(PAUSE_US);
		if (status != CUI_OK)
			return failed(CUI_STAGE_ASK, cui_status_to_cuda(status, cuda), memory);
		CUresult result = real_cuMemImportFromShareableHandle(&number, (void *)(intptr_t)fd,
								      POSIX_FILE_DESCRIPTOR);
		if (result)
			return failed(CUI_STAGE_IMPORT, result, memory);
		set_real(memory, number);
	}
	for (struct cui_mapping *mapping = memory->first; mapping && !failure.stage; mapping = mapping->next)
		if (mapping->away)
			failure = map_again(memory, mapping);
	/* the program has released its handle: the mappings keep the memory */
	if (!failure.stage && !memory->references) {
		CUresult result = real_cuMemRelease(memory->real);

		if (result)
			return failed(CUI_STAGE_RELEASE, result, memory);
		set_real(memory, 0);
	}
	return failure;
}

/* All that can come back does; the first failure is reported, each is written down. */
static struct cui_failure import_again(int64_t deadline_ms)
{
	struct cui_failure first = no_failure();

	for (struct cui_memory *memory = cui_memory_first(); memory; memory = memory->next) {
		if (!is_away(memory))
			continue;
		struct cui_failure failure = bring_back(memory, deadline_ms);

		set_lost(memory, failure);
		if (failure.stage && !first.stage)
			first = failure;
	}
	return first;
}

static bool anything_away(void)
{
	for (struct cui_memory *memory = cui_memory_first(); memory; memory = memory->next)
		if (is_away(memory))
			return true;
	return false;
}

/*
 * If the driver was locked, a call that waits for it shows when it runs again.  A creator that is busy is waited for without a limit: it is locked itself, and
 * the coordinator that restores it helps us too.  What cannot come back is lost, and in the inventory;
 * the program goes on.
 */
static void heal(void)
{
	enter_phase(CUI_HEALING);
	if (anything_away() || cui_contexts_count())
		cui_contexts_synchronise();
	enter_phase(CUI_SERVING);
	import_again(INT64_MAX);
	open_gate();
}

/* Which phases a step may be asked for in; in the one that it leads to, it has been done. */
static bool follows(uint16_t op, enum cui_phase now)
{
	switch (op) {
	case CUI_CLOSE:
		return now == CUI_OPEN || now == CUI_CLOSED;
	case CUI_LET_GO:
		return now == CUI_CLOSED || now == CUI_LET_GO_OF;
	case CUI_HOLD:
		return now == CUI_LET_GO_OF || now == CUI_HELD;
	case CUI_LOCK:
		return now == CUI_HELD || now == CUI_LOCKED;
	case CUI_SERVE:
		return true;
	case CUI_IMPORT:
		return now == CUI_SERVING || now == CUI_BACK || now == CUI_OPEN;
	case CUI_OPEN_GATE:
		return now == CUI_SERVING || now == CUI_BACK || now == CUI_OPEN;
	}
	return false;
}

static struct cui_failure perform(uint16_t op, enum cui_phase now, int64_t deadline_ms)
{
	struct cui_failure failure = no_failure();

	if (!follows(op, now))
		return failed(CUI_STAGE_ORDER, CUDA_ERROR_NOT_READY, NULL);
	switch (op) {
	case CUI_CLOSE:
		return now == CUI_CLOSED ? failure : close_gate(deadline_ms);
	case CUI_LET_GO:
		failure = let_go();
		if (!failure.stage)
			enter_phase(CUI_LET_GO_OF);
		return failure;
	case CUI_HOLD:
		enter_phase(CUI_HELD);
		return failure;
	case CUI_LOCK:
		enter_phase(CUI_LOCKED);
		return failure;
	case CUI_SERVE:
		if (now != CUI_OPEN && now != CUI_BACK)
			enter_phase(CUI_SERVING);
		return failure;
	case CUI_IMPORT:
		if (now != CUI_SERVING)
			return failure;
		failure = import_again(deadline_ms);
		if (!failure.stage)
			enter_phase(CUI_BACK);
		return failure;
	default:
		if (now != CUI_OPEN)
			open_gate();
		return failure;
	}
}

static void answer(int client, const struct cui_frame *request, struct cui_failure failure)
{
	struct cui_frame reply = *request;

	reply.op |= CUI_REPLY;
	reply.status = !failure.stage ? CUI_OK : failure.stage == CUI_STAGE_ORDER ? CUI_BUSY : CUI_CUDA;
	reply.kind = cui_cycle_phase() | failure.stage << 8;
	reply.cuda = failure.cuda;
	reply.resource = failure.resource;
	cui_frame_send(client, &reply, -1);
}

/* One coordinator, from its first request until it hangs up, says something else or is too late. */
static void converse(int client, struct cui_frame request)
{
	uint32_t patience_ms = PATIENCE_MS;

	for (;;) {
		CUI_OWNED int unwanted = -1;
		uint32_t limit_ms = cui_get32(request.resource.bytes), asked = cui_get32(request.resource.bytes + 4);
		struct pollfd ready = { .fd = client, .events = POLLIN };

		if (asked)
			patience_ms = asked < LEAST_MS ? LEAST_MS : asked;
		answer(client, &request, perform(request.op, cui_cycle_phase(), cui_now_ms() + limit_ms));
		enum cui_phase now = cui_cycle_phase();
		int64_t deadline_ms = cui_now_ms() + patience_ms;
		int got;
		do {
			int64_t left = deadline_ms - cui_now_ms();

			/* open, held and locked: as long as the connection lasts */
			got = poll(&ready, 1, now == CUI_OPEN || now == CUI_HELD || now == CUI_LOCKED ? -1 :
						left < 0				      ? 0 :
						left > INT32_MAX			      ? INT32_MAX :
												left);
		} while (got < 0 && errno == EINTR);
		if (got <= 0 || cui_frame_receive(client, &request, &unwanted) != CUI_OK || unwanted >= 0 ||
		    request.op < CUI_CLOSE || request.op > CUI_OPEN_GATE)
			return;
	}
}

static void *work(void *unused)
{
	for (;;) {
		pthread_mutex_lock(&mutex);
		while (arrived < 0)
			pthread_cond_wait(&changed, &mutex);
		int client = cui_take(&arrived);
		struct cui_frame request = arrived_with;
		pthread_mutex_unlock(&mutex);
		converse(client, request);
		enum cui_phase now = cui_cycle_phase();
		close(client);
		if (now != CUI_OPEN && now != CUI_LOCKED)
			heal();
		pthread_mutex_lock(&mutex);
		occupied = false;
		pthread_mutex_unlock(&mutex);
	}
	return unused;
}

void cui_cycle_control(void *unused, const struct cui_frame *request, int client)
{
	struct cui_frame reply = *request;
	CUI_OWNED int fd = -1;

	(void)unused;
	reply.op |= CUI_REPLY;
	if (request->op == CUI_INVENTORY) {
		fd = cui_inventory();
		reply.status = fd < 0 ? CUI_RESOURCES : CUI_OK;
		reply.kind = cui_cycle_phase();
	} else if (request->op == CUI_STATE) {
		reply.kind = cui_cycle_phase();
	} else if (request->op > CUI_OPEN_GATE) {
		reply.status = CUI_OP;
	} else {
		pthread_mutex_lock(&mutex);
		if (!occupied && (fd = fcntl(client, F_DUPFD_CLOEXEC, 3)) >= 0) {
			occupied = true;
			arrived = cui_take(&fd);
			arrived_with = *request;
			pthread_cond_broadcast(&changed);
			pthread_mutex_unlock(&mutex);
			return;
		}
		reply.status = occupied ? CUI_BUSY : CUI_RESOURCES;
		reply.kind = phase | CUI_STAGE_ORDER << 8;
		pthread_mutex_unlock(&mutex);
	}
	if (cui_frame_send(client, &reply, fd) != CUI_OK && fd >= 0) {
		reply.status = CUI_RESOURCES;
		cui_frame_send(client, &reply, -1);
	}
}

bool cui_cycle_start(void)
{
	pthread_condattr_t monotonic;
	sigset_t all, before;
	pthread_t thread;

	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&changed, &monotonic);
	pthread_condattr_destroy(&monotonic);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int error = pthread_create(&thread, NULL, work, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!error)
		pthread_detach(thread);
	return !error;
}

void cui_cycle_reset(void)
{
	pthread_mutex_init(&mutex, NULL);
	phase = CUI_OPEN;
	exporting = 0;
	occupied = synchronising.running = false;
	cui_close(&arrived);
	arrived = -1;
}
