// SPDX-License-Identifier: Apache-2.0
/*
 * A context that a program made is known from the first tracked call under it.  Of
 * primary ones the driver says itself whether they are active: a program may
 * release and retain them as it likes, and their address says nothing.
 */
#define _GNU_SOURCE
#include "contexts.h"

#include <pthread.h>

#include "real.h"

enum { MOST = 256, RELAXED = 2 /* CU_STREAM_CAPTURE_MODE_RELAXED */ };

static struct context {
	void *_Atomic context; /* NULL: destroyed */
	int primary_of; /* a device, or -1 */
} known[MOST];
static atomic_uint count;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static atomic_int device_count;

#define DRIVER(name, params)                                                  \
	static int(*find_##name(void)) params                                 \
	{                                                                     \
		static void *_Atomic found;                                   \
		void *now = atomic_load_explicit(&found, memory_order_relaxed); \
		if (!now) {                                                   \
			now = cui_host->driver_function(#name);               \
			atomic_store_explicit(&found, now, memory_order_relaxed); \
		}                                                             \
		return (int(*) params)now;                                    \
	}
DRIVER(cuCtxGetCurrent, (void **))
DRIVER(cuCtxSetCurrent, (void *))
DRIVER(cuCtxSynchronize, (void))
DRIVER(cuCtxGetDevice, (int *))
DRIVER(cuDeviceGetCount, (int *))
DRIVER(cuDeviceGet, (int *, int))
DRIVER(cuDevicePrimaryCtxGetState, (int, unsigned int *, int *))
DRIVER(cuDevicePrimaryCtxRetain, (void **, int))
DRIVER(cuDevicePrimaryCtxRelease_v2, (int))
DRIVER(cuThreadExchangeStreamCaptureMode, (int *))

/* CUDA_ERROR_NOT_FOUND where the driver lacks it. */
#define CALL(name, ...) (find_##name() ? find_##name()(__VA_ARGS__) : CUDA_ERROR_NOT_FOUND)

static bool active(int device)
{
	unsigned int flags;
	int is = 0;

	return CALL(cuDevicePrimaryCtxGetState, device, &flags, &is) == 0 && is;
}

static int primary_of(void *context)
{
	void *primary = NULL;
	int device;

	if (CALL(cuCtxGetDevice, &device) || !active(device) || CALL(cuDevicePrimaryCtxRetain, &primary, device))
		return -1;
	CALL(cuDevicePrimaryCtxRelease_v2, device);
	return primary == context ? device : -1;
}

void *cui_context_note(void)
{
	void *context = NULL;

	if (CALL(cuCtxGetCurrent, &context) || !context)
		return NULL;
	unsigned int there = atomic_load_explicit(&count, memory_order_acquire);
	for (unsigned int i = 0; i < there; i++)
		if (atomic_load_explicit(&known[i].context, memory_order_relaxed) == context)
			return context;
	int device = primary_of(context);
	pthread_mutex_lock(&mutex);
	there = atomic_load(&count);
	unsigned int i = 0;
	while (i < there && atomic_load(&known[i].context) && atomic_load(&known[i].context) != context)
		i++;
	if (i < MOST) {
		known[i].primary_of = device;
		atomic_store(&known[i].context, context);
	}
	if (i == there) /* one more than fit: synchronising is then refused */
		atomic_store_explicit(&count, there + 1, memory_order_release);
	pthread_mutex_unlock(&mutex);
	return context;
}

void cui_context_destroyed(const void *context)
{
	pthread_mutex_lock(&mutex);
	for (unsigned int i = 0; i < atomic_load(&count) && i < MOST; i++)
		if (atomic_load(&known[i].context) == context)
			atomic_store(&known[i].context, NULL);
	pthread_mutex_unlock(&mutex);
}

void cui_context_adopt(void *context)
{
	pthread_mutex_lock(&mutex);
	for (unsigned int i = 0; i < atomic_load(&count) && i < MOST; i++)
		if (context && atomic_load(&known[i].context) == context &&
		    (known[i].primary_of < 0 || active(known[i].primary_of)))
			CALL(cuCtxSetCurrent, context);
	pthread_mutex_unlock(&mutex);
}

static int synchronise(void *context)
{
	int result = CALL(cuCtxSetCurrent, context);

	return result ? result : CALL(cuCtxSynchronize);
}

int cui_contexts_synchronise(void)
{
	int mode = RELAXED, devices = 0, result = 0;

	if (atomic_load(&count) > MOST)
		return CUDA_ERROR_OUT_OF_MEMORY;
	/* so that waiting does not spoil what another thread captures */
	CALL(cuThreadExchangeStreamCaptureMode, &mode);
	if (CALL(cuDeviceGetCount, &devices))
		devices = 0;
	for (int i = 0; i < devices && !result; i++) {
		void *context;
		int device;

		if (CALL(cuDeviceGet, &device, i) || !active(device) || CALL(cuDevicePrimaryCtxRetain, &context, device))
			continue;
		result = synchronise(context);
		CALL(cuDevicePrimaryCtxRelease_v2, device);
	}
	for (unsigned int i = 0; i < atomic_load(&count) && !result; i++) {
		void *context = atomic_load(&known[i].context);

		/* under the gate nobody destroys one */
		if (context && known[i].primary_of < 0)
			result = synchronise(context);
	}
	CALL(cuCtxSetCurrent, NULL);
	return result;
}

unsigned int cui_contexts_count(void)
{
	unsigned int there = 0;

	for (unsigned int i = 0; i < atomic_load(&count) && i < MOST; i++)
		there += atomic_load(&known[i].context) != NULL;
	return there;
}

void cui_devices_note(void)
{
	int found = 0;

	if (!cui_devices_count() && CALL(cuDeviceGetCount, &found) == 0)
		atomic_store_explicit(&device_count, found, memory_order_relaxed);
}

int cui_devices_count(void)
{
	return atomic_load_explicit(&device_count, memory_order_relaxed);
}

void cui_contexts_reset(void)
{
	atomic_store(&device_count, 0);
	atomic_store(&count, 0);
	pthread_mutex_init(&mutex, NULL);
}
