// SPDX-License-Identifier: Apache-2.0
/*
 * A libcuda.so.1 whose memory is files in $FAKE_CUDA and whose checkpoints behave as an H200's did (driver 580.159):
 *
 *	states 0 running, 1 locked, 2 checkpointed; a call out of turn is 401, a dead process 304, one without CUDA 3
 *	Lock waits for kernels in flight, up to its time-out, then 600 and the state stays
 *	while locked or checkpointed, every other call blocks
 *	a process with an import, mapped or only held, is checkpointed without a word; its restore is 801, for good;
 *	with a legacy IPC mapping it is 1
 *	a creator's restore gives it new memory with the old contents: what still maps the old one is on its own
 *	an exported descriptor stays good across its creator's restore
 *	with several devices ($FAKE_DEVICES, 2 if unset) what was restored is not exported again from 512 MiB on (1)
 *	each import has a new handle; a creator's handle stays
 *	an imported handle cannot be exported (1); a part of an allocation cannot be mapped (801), nor a part of a
 *	mapping unmapped or given access (1)
 *
 * A kernel stores one word after a delay. If its address is not mapped by then, every later call is 700.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t u64;

enum {
	GRANULARITY = 1 << 16,
	DEVICES = 2,
	INVALID_VALUE = 1,
	OUT_OF_MEMORY = 2,
	NOT_INITIALIZED = 3,
	INVALID_CONTEXT = 201,
	OPERATING_SYSTEM = 304,
	INVALID_HANDLE = 400,
	ILLEGAL_STATE = 401,
	NOT_READY = 600,
	ILLEGAL_ADDRESS = 700,
	NOT_SUPPORTED = 801,
	CAPTURE_UNSUPPORTED = 900,
	CAPTURE_INVALIDATED = 901,
	CAPTURE_UNMATCHED = 903,
	UNKNOWN = 999,
};
enum { RUNNING, LOCKED, CHECKPOINTED };
enum { NOTHING, LOCK, CHECKPOINT, RESTORE, UNLOCK };

struct location {
	int type, id;
};
struct properties {
	int type, handle_types;
	struct location location;
	void *win32;
	u64 flags;
};
struct access {
	struct location location;
	int flags;
};

/* What another process sees and asks for. */
struct control {
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	int state, request, argument, result;
};

struct memory {
	struct memory *next;
	char name[33];
	int fd;
	u64 handle, size;
	struct properties properties;
	unsigned int references, maps;
	bool imported, ipc, multicast, restored;
	int saved; /* a descriptor, while it is checkpointed */
};
struct mapping {
	struct mapping *next;
	u64 start, size, offset;
	struct memory *memory;
	int protection;
};
struct reservation {
	struct reservation *next;
	u64 start, size;
};

static pthread_mutex_t big = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct control *control;
static struct memory *memories;
static struct mapping *mappings;
static struct reservation *reservations;
static u64 last_handle = 0x1000;
static bool broken, broken_ipc;
static unsigned int in_flight;
static int sticky;
static int state; /* as control->state, under big */
static bool capturing, capture_invalid;
static __thread void *current;
static __thread bool is_service;
static char contexts[DEVICES + 16];
static int primaries[DEVICES];
static unsigned int made_contexts;

/* The call of this name fails, after some that do not. */
static struct {
	char name[48];
	int code, after, times;
} failing;

int fake_fail(const char *name, int code, int after, int times)
{
	pthread_mutex_lock(&big);
	snprintf(failing.name, sizeof(failing.name), "%s", name);
	failing.code = code;
	failing.after = after;
	failing.times = times;
	pthread_mutex_unlock(&big);
	return 0;
}

static int injected(const char *name)
{
	if (!failing.times || strcmp(failing.name, name) != 0)
		return 0;
	if (failing.after) {
		failing.after--;
		return 0;
	}
	failing.times--;
	return failing.code;
}

/* The lock of a call; it waits while the process is not running. */
static int enter(const char *name)
{
	pthread_mutex_lock(&big);
	while (state != RUNNING)
		pthread_cond_wait(&changed, &big);
	return sticky ? sticky : injected(name);
}

static int leave(int result)
{
	pthread_mutex_unlock(&big);
	return result;
}

#define CALL(...)                                     \
	do {                                          \
		int entered = enter(__func__);        \
		if (entered)                          \
			return leave(entered);        \
	} while (0)

static void path_of(char *path, size_t size, const char *kind, const char *name)
{
	snprintf(path, size, "%s/%s-%s", getenv("FAKE_CUDA"), kind, name);
}

static struct mapping *mapping_at(u64 address)
{
	struct mapping *mapping = mappings;

	while (mapping && (address < mapping->start || address >= mapping->start + mapping->size))
		mapping = mapping->next;
	return mapping;
}

static struct memory *memory_of(u64 handle)
{
	struct memory *memory = memories;

	while (memory && (memory->handle != handle || !memory->references))
		memory = memory->next;
	return memory;
}

static void settle(struct memory *memory)
{
	struct memory **link = &memories;

	if (memory->references || memory->maps)
		return;
	while (*link != memory)
		link = &(*link)->next;
	*link = memory->next;
	if (memory->fd >= 0)
		close(memory->fd);
	if (memory->saved >= 0)
		close(memory->saved);
	free(memory);
}

static int show(const struct mapping *mapping)
{
	void *at = mmap((void *)mapping->start, mapping->size, mapping->protection, MAP_SHARED | MAP_FIXED,
			mapping->memory->fd, mapping->offset);

	return at == MAP_FAILED ? UNKNOWN : 0;
}

static void hide(u64 start, u64 size)
{
	mmap((void *)start, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

/* The device: one kernel at a time, in order. */
struct kernel {
	struct kernel *next;
	u64 address, value;
	unsigned int delay_ms;
};
static struct kernel *queue, **queue_end = &queue;

static void *device(void *unused)
{
	for (;;) {
		pthread_mutex_lock(&big);
		while (!queue)
			pthread_cond_wait(&changed, &big);
		struct kernel *kernel = queue;
		pthread_mutex_unlock(&big);
		usleep(kernel->delay_ms * 1000);
		pthread_mutex_lock(&big);
		struct mapping *mapping = mapping_at(kernel->address);
		if (kernel->address && (!mapping || !(mapping->protection & PROT_WRITE)))
			sticky = ILLEGAL_ADDRESS;
		else if (kernel->address)
			*(volatile u64 *)kernel->address = kernel->value;
		queue = kernel->next;
		if (!queue)
			queue_end = &queue;
		free(kernel);
		in_flight--;
		pthread_cond_broadcast(&changed);
		pthread_mutex_unlock(&big);
	}
	return unused;
}

static int launch(u64 address, u64 value, unsigned int delay_ms)
{
	struct kernel *kernel = calloc(1, sizeof(*kernel));

	*kernel = (struct kernel){ NULL, address, value, delay_ms };
	*queue_end = kernel;
	queue_end = &kernel->next;
	in_flight++;
	pthread_cond_broadcast(&changed);
	return 0;
}

/* Checkpoints, in a thread of this process. */

static int lock_process(int timeout_ms)
{
	struct timespec limit;

	clock_gettime(CLOCK_REALTIME, &limit);
	limit.tv_sec += timeout_ms / 1000;
	limit.tv_nsec += timeout_ms % 1000 * 1000000L;
	if (limit.tv_nsec >= 1000000000L) {
		limit.tv_sec++;
		limit.tv_nsec -= 1000000000L;
	}
	while (in_flight)
		if (!timeout_ms)
			pthread_cond_wait(&changed, &big);
		else if (pthread_cond_timedwait(&changed, &big, &limit))
			return NOT_READY;
	state = LOCKED;
	return 0;
}

/* Large memory is mostly holes. */
static bool copied(int from, int to, u64 size)
{
	static char part[GRANULARITY];
	off_t at = 0, end;

	if (ftruncate(to, size))
		return false;
	while ((at = lseek(from, at, SEEK_DATA)) >= 0 && (u64)at < size) {
		end = lseek(from, at, SEEK_HOLE);
		while (at < end) {
			ssize_t got = pread(from, part, end - at < GRANULARITY ? end - at : GRANULARITY, at);

			if (got <= 0 || pwrite(to, part, got, at) != got)
				return false;
			at += got;
		}
	}
	return true;
}

static int checkpoint_process(void)
{
	broken = broken_ipc = false;
	for (struct memory *memory = memories; memory; memory = memory->next) {
		char path[512];

		if (memory->imported) {
			broken |= !memory->ipc;
			broken_ipc |= memory->ipc;
			continue;
		}
		if (memory->multicast)
			continue;
		memory->saved = memfd_create("saved", MFD_CLOEXEC);
		if (memory->saved < 0 || !copied(memory->fd, memory->saved, memory->size))
			return UNKNOWN;
		close(memory->fd);
		memory->fd = -1;
		path_of(path, sizeof(path), "memory", memory->name);
		unlink(path);
	}
	for (struct mapping *mapping = mappings; mapping; mapping = mapping->next)
		hide(mapping->start, mapping->size);
	state = CHECKPOINTED;
	return 0;
}

static int restore_process(void)
{
	if (broken)
		return NOT_SUPPORTED;
	if (broken_ipc)
		return INVALID_VALUE;
	for (struct memory *memory = memories; memory; memory = memory->next) {
		char path[512];

		if (memory->multicast)
			continue;
		path_of(path, sizeof(path), "memory", memory->name);
		memory->fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
		if (memory->fd < 0 || !copied(memory->saved, memory->fd, memory->size))
			return UNKNOWN;
		close(memory->saved);
		memory->saved = -1;
		memory->restored = true;
	}
	for (struct mapping *mapping = mappings; mapping; mapping = mapping->next)
		if (show(mapping))
			return UNKNOWN;
	state = LOCKED;
	return 0;
}

static int act(int request, int argument)
{
	static const char *const names[] = { "", "lock", "checkpoint", "restore", "unlock" };
	static const int wanted[] = { 0, RUNNING, LOCKED, CHECKPOINTED, LOCKED };
	int result = injected(names[request]);

	if (state != wanted[request])
		return ILLEGAL_STATE;
	if (result)
		return result;
	switch (request) {
	case LOCK:
		return lock_process(argument);
	case CHECKPOINT:
		return checkpoint_process();
	case RESTORE:
		return restore_process();
	default:
		state = RUNNING;
		return 0;
	}
}

static void *service(void *unused)
{
	is_service = true;
	pthread_mutex_lock(&control->mutex);
	for (;;) {
		while (!control->request)
			pthread_cond_wait(&control->changed, &control->mutex);
		int request = control->request, argument = control->argument;
		pthread_mutex_unlock(&control->mutex);
		pthread_mutex_lock(&big);
		int result = act(request, argument), now = state;
		pthread_cond_broadcast(&changed);
		pthread_mutex_unlock(&big);
		pthread_mutex_lock(&control->mutex);
		control->result = result;
		control->state = now;
		control->request = NOTHING;
		pthread_cond_broadcast(&control->changed);
	}
	return unused;
}

static struct control *map_control(int pid, bool create)
{
	char path[512], name[16];

	snprintf(name, sizeof(name), "%d", pid);
	path_of(path, sizeof(path), "process", name);
	int fd = open(path, O_RDWR | O_CLOEXEC | (create ? O_CREAT : 0), 0600);
	if (fd < 0 || (create && ftruncate(fd, sizeof(struct control))))
		return NULL;
	void *at = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return at == MAP_FAILED ? NULL : at;
}

int cuInit(unsigned int flags)
{
	static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
	pthread_mutexattr_t mutex;
	pthread_condattr_t condition;
	sigset_t all, before;
	pthread_t thread;

	if (flags || !getenv("FAKE_CUDA"))
		return INVALID_VALUE;
	pthread_mutex_lock(&once);
	if (!control && (control = map_control(getpid(), true))) {
		pthread_mutexattr_init(&mutex);
		pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
		pthread_mutex_init(&control->mutex, &mutex);
		pthread_condattr_init(&condition);
		pthread_condattr_setpshared(&condition, PTHREAD_PROCESS_SHARED);
		pthread_cond_init(&control->changed, &condition);
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &before);
		pthread_create(&thread, NULL, service, NULL);
		pthread_create(&thread, NULL, device, NULL);
		pthread_sigmask(SIG_SETMASK, &before, NULL);
	}
	pthread_mutex_unlock(&once);
	return control ? 0 : OPERATING_SYSTEM;
}

static bool alive(int pid)
{
	char path[32], text[256] = "";

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	FILE *file = fopen(path, "re");
	if (!file)
		return false;
	size_t got = fread(text, 1, sizeof(text) - 1, file);
	fclose(file);
	char *name_end = got ? strrchr(text, ')') : NULL;
	return name_end && name_end[2] != 'Z' && name_end[2] != 'X';
}

static int ask(int pid, int request, int argument, int *state_now)
{
	struct control *other;
	int result = 0;

	if (!alive(pid))
		return OPERATING_SYSTEM;
	other = map_control(pid, false);
	if (!other)
		return NOT_INITIALIZED;
	pthread_mutex_lock(&other->mutex);
	if (request) {
		other->request = request;
		other->argument = argument;
		pthread_cond_broadcast(&other->changed);
	}
	while (request && other->request) {
		struct timespec limit;

		clock_gettime(CLOCK_REALTIME, &limit);
		limit.tv_nsec += 20000000;
		if (limit.tv_nsec >= 1000000000L) {
			limit.tv_sec++;
			limit.tv_nsec -= 1000000000L;
		}
		pthread_cond_timedwait(&other->changed, &other->mutex, &limit);
		if (!alive(pid)) {
			result = OPERATING_SYSTEM;
			break;
		}
	}
	if (!result && request)
		result = other->result;
	if (state_now)
		*state_now = other->state;
	pthread_mutex_unlock(&other->mutex);
	munmap(other, sizeof(*other));
	return result;
}

#ifndef WITHOUT_CHECKPOINTS
int cuCheckpointProcessGetState(int pid, int *now) { return ask(pid, NOTHING, 0, now); }
int cuCheckpointProcessLock(int pid, const unsigned int *arguments) { return ask(pid, LOCK, arguments ? arguments[0] : 0, NULL); }
int cuCheckpointProcessCheckpoint(int pid, void *arguments) { (void)arguments; return ask(pid, CHECKPOINT, 0, NULL); }
int cuCheckpointProcessRestore(int pid, void *arguments) { (void)arguments; return ask(pid, RESTORE, 0, NULL); }
int cuCheckpointProcessUnlock(int pid, void *arguments) { (void)arguments; return ask(pid, UNLOCK, 0, NULL); }
int cuCheckpointProcessGetRestoreThreadId(int pid, int *thread) { *thread = pid; return 0; }
#endif

int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
static int devices(void) { return getenv("FAKE_DEVICES") ? atoi(getenv("FAKE_DEVICES")) : DEVICES; }
int cuDeviceGetCount(int *count) { *count = devices(); return 0; }
int cuDeviceGet(int *found, int ordinal) { *found = ordinal; return ordinal < 0 || ordinal >= devices(); }

int cuCtxGetCurrent(void **context) { *context = current; return 0; }
int cuCtxSetCurrent(void *context) { current = context; return 0; }
int cuCtxGetDevice(int *found)
{
	if (!current)
		return INVALID_CONTEXT;
	*found = (char *)current - contexts < DEVICES ? (char *)current - contexts : 0;
	return 0;
}
int cuDevicePrimaryCtxGetState(int ordinal, unsigned int *flags, int *active)
{
	pthread_mutex_lock(&big);
	*flags = 0;
	*active = primaries[ordinal] > 0;
	return leave(0);
}
int cuDevicePrimaryCtxRetain(void **context, int ordinal)
{
	CALL();
	primaries[ordinal]++;
	*context = contexts + ordinal;
	return leave(0);
}
int cuDevicePrimaryCtxRelease_v2(int ordinal)
{
	CALL();
	primaries[ordinal]--;
	return leave(0);
}
int cuCtxCreate_v2(void **context, unsigned int flags, int ordinal)
{
	CALL();
	*context = current = contexts + DEVICES + made_contexts++ % 16;
	return leave(flags || ordinal ? INVALID_VALUE : 0);
}
int cuCtxDestroy_v2(void *context)
{
	CALL();
	if (current == context)
		current = NULL;
	return leave(0);
}
int cuThreadExchangeStreamCaptureMode(int *mode) { (void)mode; return 0; }
int cuCtxSynchronize(void)
{
	if (!current)
		return INVALID_CONTEXT;
	CALL();
	if (capturing) { /* and what was being captured is spoilt */
		capture_invalid = true;
		return leave(CAPTURE_UNSUPPORTED);
	}
	while (in_flight)
		pthread_cond_wait(&changed, &big);
	return leave(sticky);
}
/* A graph is one copy that was captured, or a kernel: an address, a word, a delay in ms. */
enum { COPY = 1 };
static struct graph {
	u64 kind; /* else the kernel's address */
	u64 to, from, size;
} captured;

int cuStreamBeginCapture_v2(void *stream, int mode)
{
	CALL();
	(void)stream, (void)mode;
	capturing = true;
	capture_invalid = false;
	captured = (struct graph){ .kind = COPY };
	return leave(0);
}
int cuStreamEndCapture(void *stream, void **graph)
{
	CALL();
	(void)stream;
	if (!capturing)
		return leave(CAPTURE_UNMATCHED);
	capturing = false;
	struct graph *made = malloc(sizeof(*made));
	*made = captured;
	*graph = made;
	return leave(capture_invalid ? CAPTURE_INVALIDATED : 0);
}

int cuMemGetAllocationGranularity(u64 *size, const struct properties *properties, int option)
{
	*size = GRANULARITY;
	return !properties || option < 0;
}

static struct memory *new_memory(u64 size)
{
	struct memory *memory = calloc(1, sizeof(*memory));

	memory->handle = last_handle += 0x10;
	memory->size = size;
	memory->references = 1;
	memory->fd = memory->saved = -1;
	memory->next = memories;
	memories = memory;
	return memory;
}

static struct memory *create(u64 size, const struct properties *properties)
{
	static unsigned int serial;
	struct memory *memory = new_memory(size);
	char path[512];

	memory->properties = *properties;
	snprintf(memory->name, sizeof(memory->name), "%d.%u", getpid(), serial++);
	path_of(path, sizeof(path), "memory", memory->name);
	memory->fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (memory->fd >= 0 && ftruncate(memory->fd, size) == 0)
		return memory;
	memory->references = 0;
	settle(memory);
	return NULL;
}

int cuMemCreate(u64 *handle, u64 size, const struct properties *properties, u64 flags)
{
	CALL();
	if (flags || !size || size % GRANULARITY)
		return leave(INVALID_VALUE);
	struct memory *memory = create(size, properties);
	if (!memory)
		return leave(OUT_OF_MEMORY);
	*handle = memory->handle;
	return leave(0);
}

int cuMemRelease(u64 handle)
{
	CALL();
	struct memory *memory = memory_of(handle);

	if (!memory)
		return leave(INVALID_VALUE);
	memory->references--;
	settle(memory);
	return leave(0);
}

int cuMemRetainAllocationHandle(u64 *handle, void *address)
{
	CALL();
	struct mapping *mapping = mapping_at((u64)address);

	if (!mapping)
		return leave(INVALID_VALUE);
	mapping->memory->references++;
	*handle = mapping->memory->handle;
	return leave(0);
}

int cuMemGetAllocationPropertiesFromHandle(struct properties *properties, u64 handle)
{
	CALL();
	struct memory *memory = memory_of(handle);

	if (!memory)
		return leave(INVALID_VALUE);
	*properties = memory->properties;
	return leave(0);
}

int cuMemAddressReserve(u64 *address, u64 size, u64 alignment, u64 wanted, u64 flags)
{
	CALL();
	if (!size || size % GRANULARITY || flags || alignment)
		return leave(INVALID_VALUE);
	char *at = wanted ? NULL : mmap(NULL, size + GRANULARITY, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (!at || at == MAP_FAILED)
		return leave(OUT_OF_MEMORY);
	u64 before = -(u64)at % GRANULARITY;
	if (before)
		munmap(at, before);
	munmap(at + before + size, GRANULARITY - before);
	at += before;
	struct reservation *reservation = calloc(1, sizeof(*reservation));
	*reservation = (struct reservation){ reservations, (u64)at, size };
	reservations = reservation;
	*address = (u64)at;
	return leave(0);
}

int cuMemAddressFree(u64 address, u64 size)
{
	CALL();
	for (struct reservation **link = &reservations; *link; link = &(*link)->next) {
		struct reservation *reservation = *link;

		if (reservation->start != address || reservation->size != size)
			continue;
		for (struct mapping *mapping = mappings; mapping; mapping = mapping->next)
			if (mapping->start >= address && mapping->start < address + size)
				return leave(INVALID_VALUE);
		munmap((void *)address, size);
		*link = reservation->next;
		free(reservation);
		return leave(0);
	}
	return leave(INVALID_VALUE);
}

static int map(u64 address, u64 size, u64 offset, struct memory *memory, int protection)
{
	struct mapping *mapping = calloc(1, sizeof(*mapping));

	*mapping = (struct mapping){ mappings, address, size, offset, memory, protection };
	if (show(mapping)) {
		free(mapping);
		return UNKNOWN;
	}
	mappings = mapping;
	memory->maps++;
	return 0;
}

int cuMemMap(u64 address, u64 size, u64 offset, u64 handle, u64 flags)
{
	CALL();
	struct memory *memory = memory_of(handle);
	struct reservation *in = reservations;

	while (in && (address < in->start || address + size > in->start + in->size))
		in = in->next;
	if (!memory || memory->multicast || !in || flags || !size || (address | size | offset) % GRANULARITY ||
	    offset + size > memory->size)
		return leave(INVALID_VALUE);
	if (offset || size != memory->size)
		return leave(NOT_SUPPORTED);
	for (struct mapping *mapping = mappings; mapping; mapping = mapping->next)
		if (mapping->start < address + size && address < mapping->start + mapping->size)
			return leave(INVALID_VALUE);
	return leave(map(address, size, offset, memory, PROT_NONE));
}

/* Whether a range is made of whole mappings. */
static bool whole(u64 address, u64 size)
{
	u64 end = address + size;

	while (address < end) {
		struct mapping *mapping = mapping_at(address);

		if (!mapping || mapping->start != address || mapping->start + mapping->size > end)
			return false;
		address += mapping->size;
	}
	return size > 0;
}

int cuMemUnmap(u64 address, u64 size)
{
	CALL();
	if (!whole(address, size))
		return leave(INVALID_VALUE);
	for (struct mapping **link = &mappings; *link;) {
		struct mapping *mapping = *link;

		if (mapping->start < address || mapping->start >= address + size) {
			link = &mapping->next;
			continue;
		}
		*link = mapping->next;
		mapping->memory->maps--;
		settle(mapping->memory);
		free(mapping);
	}
	hide(address, size);
	return leave(0);
}

int cuMemSetAccess(u64 address, u64 size, const struct access *access, u64 count)
{
	CALL();
	if (!count || !whole(address, size))
		return leave(INVALID_VALUE);
	for (struct mapping *mapping = mappings; mapping; mapping = mapping->next)
		if (mapping->start >= address && mapping->start < address + size) {
			int flags = access[count - 1].flags;

			mapping->protection = flags == 3 ? PROT_READ | PROT_WRITE : flags == 1 ? PROT_READ : PROT_NONE;
			mprotect((void *)mapping->start, mapping->size, mapping->protection);
		}
	return leave(0);
}

int cuMemGetAccess(u64 *flags, const struct location *location, u64 address)
{
	CALL();
	struct mapping *mapping = mapping_at(address);

	(void)location;
	if (!mapping)
		return leave(INVALID_VALUE);
	*flags = mapping->protection & PROT_WRITE ? 3 : mapping->protection & PROT_READ ? 1 : 0;
	return leave(0);
}

static const char MAGIC[] = "FAKE CUDA ";

int cuMemExportToShareableHandle(int *fd, u64 handle, int type, u64 flags)
{
	CALL();
	struct memory *memory = memory_of(handle);
	char path[512];

	if (!memory || memory->imported || flags || !(type & memory->properties.handle_types))
		return leave(INVALID_VALUE);
	if (memory->restored && devices() > 1 && memory->size >= 512ULL << 20)
		return leave(INVALID_VALUE);
	if (type != 1) {
		memset(fd, 7, 64);
		return leave(0);
	}
	path_of(path, sizeof(path), "descriptor", memory->name);
	int created = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (created < 0)
		return leave(OPERATING_SYSTEM);
	if (dprintf(created, "%s%s\n", MAGIC, memory->name) < 0) {
		close(created);
		return leave(OPERATING_SYSTEM);
	}
	*fd = created;
	return leave(0);
}

static struct memory *import(const char *name)
{
	char path[512];
	struct stat status;

	path_of(path, sizeof(path), "memory", name);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &status)) {
		if (fd >= 0)
			close(fd);
		return NULL;
	}
	struct memory *memory = new_memory(status.st_size);
	snprintf(memory->name, sizeof(memory->name), "%s", name);
	memory->fd = fd;
	memory->imported = true;
	memory->properties = (struct properties){ .type = 1, .handle_types = 1, .location = { 1, 0 } };
	return memory;
}

int cuMemImportFromShareableHandle(u64 *handle, void *os_handle, int type)
{
	CALL();
	char text[64] = "";

	if (type != 1 || pread((int)(intptr_t)os_handle, text, sizeof(text) - 1, 0) < (ssize_t)sizeof(MAGIC) ||
	    memcmp(text, MAGIC, sizeof(MAGIC) - 1) != 0)
		return leave(UNKNOWN);
	text[strcspn(text, "\n")] = 0;
	struct memory *memory = import(text + sizeof(MAGIC) - 1);
	if (!memory)
		return leave(UNKNOWN);
	*handle = memory->handle;
	return leave(0);
}

/* A mapping that may be copied to or from, whole. */
static bool reaches(u64 address, u64 size, int protection)
{
	while (size) {
		struct mapping *mapping = mapping_at(address);

		if (!mapping || !(mapping->protection & protection))
			return false;
		u64 part = mapping->start + mapping->size - address;
		part = part < size ? part : size;
		address += part;
		size -= part;
	}
	return true;
}

static int wait_for_device(void)
{
	while (in_flight)
		pthread_cond_wait(&changed, &big);
	return sticky;
}

int cuMemcpyHtoD_v2(u64 address, const void *from, u64 size)
{
	CALL();
	int result = wait_for_device();

	if (result || !reaches(address, size, PROT_WRITE))
		return leave(result ? result : INVALID_VALUE);
	memcpy((void *)address, from, size);
	return leave(0);
}

int cuMemcpyDtoH_v2(void *to, u64 address, u64 size)
{
	CALL();
	int result = wait_for_device();

	if (result || !reaches(address, size, PROT_READ))
		return leave(result ? result : INVALID_VALUE);
	memcpy(to, (void *)address, size);
	return leave(0);
}

int cuMemcpyDtoDAsync_v2(u64 to, u64 from, u64 size, void *stream)
{
	CALL();
	(void)stream;
	if (capturing) {
		captured = (struct graph){ COPY, to, from, size };
		return leave(0);
	}
	if (!reaches(to, size, PROT_WRITE) || !reaches(from, size, PROT_READ))
		return leave(INVALID_VALUE);
	memcpy((void *)to, (void *)from, size);
	return leave(0);
}

int cuGraphInstantiateWithFlags(void **executable, void *graph, u64 flags) { *executable = graph; return flags ? INVALID_VALUE : 0; }

/* parameters: an address, a word, a delay in ms; none: a kernel that does nothing. */
int cuLaunchKernel(void *function, unsigned int a, unsigned int b, unsigned int c, unsigned int d, unsigned int e,
		   unsigned int f, unsigned int shared, void *stream, void **parameters, void **extra)
{
	CALL();
	(void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
	(void)function, (void)stream;
	if (shared || extra)
		return leave(INVALID_VALUE);
	if (!parameters)
		return leave(0);
	return leave(launch(*(u64 *)parameters[0], *(u64 *)parameters[1], *(unsigned int *)parameters[2]));
}

int cuGraphLaunch(const u64 *graph, void *stream)
{
	CALL();
	(void)stream;
	if (graph[0] != COPY)
		return leave(launch(graph[0], graph[1], graph[2]));
	const struct graph *copy = (const void *)graph;
	if (!reaches(copy->to, copy->size, PROT_WRITE) || !reaches(copy->from, copy->size, PROT_READ))
		return leave(ILLEGAL_ADDRESS);
	memcpy((void *)copy->to, (void *)copy->from, copy->size);
	return leave(0);
}

int cuStreamCreate(void **stream, unsigned int flags) { *stream = &captured; return flags > 1; }
int cuStreamSynchronize(void *stream)
{
	CALL();
	(void)stream;
	return leave(wait_for_device());
}
int cuModuleLoadData(void **module, const void *image) { *module = (void *)image; return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) { *function = module; return !name; }
int cuMemsetD8_v2(u64 address, unsigned char byte, u64 size)
{
	CALL();
	if (!reaches(address, size, PROT_WRITE))
		return leave(INVALID_VALUE);
	memset((void *)address, byte, size);
	return leave(0);
}

int cuPointerGetAttribute(u64 *value, int attribute, u64 address)
{
	CALL();
	struct mapping *mapping = mapping_at(address);

	(void)attribute;
	if (!mapping)
		return leave(INVALID_VALUE);
	*value = mapping->start;
	return leave(0);
}

int cuMemAlloc_v2(u64 *address, u64 size)
{
	CALL();
	struct properties plain = { .type = 1, .location = { 1, 0 } };
	u64 rounded = (size + GRANULARITY - 1) / GRANULARITY * GRANULARITY;
	struct memory *memory = create(rounded, &plain);
	void *at = mmap(NULL, rounded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (!memory || at == MAP_FAILED)
		return leave(OUT_OF_MEMORY);
	*address = (u64)at;
	int result = map(*address, rounded, 0, memory, PROT_READ | PROT_WRITE);
	memory->references = 0;
	return leave(result);
}

struct ipc {
	char name[64];
};

int cuIpcGetMemHandle(struct ipc *handle, u64 address)
{
	CALL();
	struct mapping *mapping = mapping_at(address);

	if (!mapping)
		return leave(INVALID_VALUE);
	snprintf(handle->name, sizeof(handle->name), "%s", mapping->memory->name);
	return leave(0);
}

int cuIpcOpenMemHandle_v2(u64 *address, struct ipc handle, unsigned int flags)
{
	CALL();
	struct memory *memory = import(handle.name);

	(void)flags;
	if (!memory)
		return leave(INVALID_VALUE);
	memory->ipc = true;
	void *at = mmap(NULL, memory->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	int result = map((u64)at, memory->size, 0, memory, PROT_READ | PROT_WRITE);
	memory->references = 0;
	*address = (u64)at;
	return leave(result);
}

int cuIpcCloseMemHandle(u64 address)
{
	CALL();
	struct mapping *mapping = mapping_at(address);

	if (!mapping || !mapping->memory->ipc)
		return leave(INVALID_VALUE);
	pthread_mutex_unlock(&big);
	return cuMemUnmap(address, mapping->size);
}

int cuEventCreate(void **event, unsigned int flags) { *event = malloc(1); return flags > 7; }
int cuEventRecord(void *event, void *stream) { (void)stream; return !event; }
int cuEventQuery(void *event) { return !event; }
int cuEventDestroy_v2(void *event) { free(event); return 0; }
int cuIpcGetEventHandle(struct ipc *handle, void *event) { memset(handle, 1, sizeof(*handle)); return !event; }
int cuIpcOpenEventHandle(void **event, struct ipc handle) { *event = malloc(1); return handle.name[0] != 1; }

int cuMulticastCreate(u64 *handle, const void *properties)
{
	CALL();
	struct memory *memory = new_memory(0);

	memory->multicast = true;
	memory->properties.handle_types = 1;
	*handle = memory->handle;
	return leave(properties ? 0 : INVALID_VALUE);
}
int cuMulticastAddDevice(u64 handle, int ordinal)
{
	CALL();
	return leave(memory_of(handle) && ordinal < DEVICES ? 0 : INVALID_VALUE);
}
int cuMulticastBindMem(u64 multicast, u64 offset, u64 handle, u64 memory_offset, u64 size, u64 flags)
{
	CALL();
	(void)offset, (void)memory_offset, (void)size, (void)flags;
	return leave(memory_of(multicast) && memory_of(handle) ? 0 : INVALID_VALUE);
}

/* What is left: references and mappings. */
int fake_left(unsigned int *references, unsigned int *maps)
{
	pthread_mutex_lock(&big);
	*references = *maps = 0;
	for (struct memory *memory = memories; memory; memory = memory->next)
		*references += memory->references;
	for (struct mapping *mapping = mappings; mapping; mapping = mapping->next)
		++*maps;
	return leave(0);
}
