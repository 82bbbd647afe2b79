// SPDX-License-Identifier: Apache-2.0
/*
 * This process as a creator, whose tickets are answered with fresh descriptors, and
 * as an importer, which asks for them.  The endpoint and its thread exist from the
 * first call that there is something to say about.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "contexts.h"
#include "endpoint.h"
#include "gate.h"
#include "peer.h"
#include "tracker.h"

enum { CLIENT_MS = 1000, CREATOR_ANSWERS_MS = 5000 };

const struct cui_host *cui_host;

static struct cui_endpoint endpoint = { .directory = -1, .listener = -1 };
static enum { NOT_YET, STARTED, FAILED } state;
static atomic_bool tried; /* state is set */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* Of a process, when it started: with its pid, that process and no later one.  0: not readable. */
static uint64_t started(pid_t pid)
{
	char path[32], text[1024];
	uint64_t found = 0;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	FILE *file = fopen(path, "re");
	if (!file)
		return 0;
	size_t size = fread(text, 1, sizeof(text) - 1, file);
	fclose(file);
	text[size] = 0;
	/* the second field, a name in parentheses, may hold anything; the time is the 20th after it */
	char *rest = strrchr(text, ')');
	for (int i = 0; rest && i < 20; i++)
		rest = strchr(rest + 1, ' ');
	if (rest)
		found = strtoull(rest, NULL, 10);
	return found;
}

static void note_importer(const struct cui_identity *resource, pid_t pid)
{
	struct cui_importer importer = { pid, started(pid) };

	cui_ledger_lock();
	struct cui_memory *memory = cui_memory_by_resource(resource);
	unsigned int i = 0;
	while (memory && i < memory->importer_count &&
	       (memory->importers[i].pid != pid || memory->importers[i].started != importer.started))
		i++;
	if (memory && i == memory->importer_count) {
		struct cui_importer *grown = realloc(memory->importers, (i + 1) * sizeof(*grown));

		if (grown) {
			memory->importers = grown;
			grown[memory->importer_count++] = importer;
		} else {
			cui_note(CUI_NOTE_untracked, 1);
		}
	}
	cui_ledger_unlock();
}

static CUresult export(struct cui_memory *memory, uint64_t handle, uint64_t mapped_at, int *fd)
{
	CUmemGenericAllocationHandle lent = 0;
	CUresult result = CUDA_SUCCESS;

	/* the program released its handle: a mapping keeps the memory, and lends us one */
	if (!handle)
		result = real_cuMemRetainAllocationHandle(&lent, (void *)(uintptr_t)mapped_at);
	if (!result)
		result = real_cuMemExportToShareableHandle(fd, handle ? handle : lent, POSIX_FILE_DESCRIPTOR, 0);
	if (lent)
		real_cuMemRelease(lent);
	cui_ledger_lock();
	memory->users--;
	cui_memory_settle(memory);
	cui_ledger_unlock();
	return result;
}

static enum cui_status lookup(void *unused, const struct cui_identity *resource, uint16_t kind, int *fd, int32_t *cuda)
{
	enum cui_status status = CUI_UNKNOWN;
	uint64_t handle = 0, mapped_at = 0;
	void *context = NULL;

	(void)unused;
	if (!cui_cycle_begin_export())
		return CUI_BUSY;
	cui_ledger_lock();
	struct cui_memory *memory = cui_identity_zero(resource) ? NULL : cui_memory_by_resource(resource);
	if (memory && kind != CUI_UNICAST) {
		status = CUI_KIND;
		memory = NULL;
	}
	if (memory && !memory->references && !memory->first)
		memory = NULL;
	if (memory) {
		memory->users++;
		context = memory->context;
		if (memory->references)
			handle = memory->handle;
		else
			mapped_at = memory->first->range.start;
	}
	cui_ledger_unlock();
	if (memory) {
		cui_context_adopt(context);
		*cuda = export(memory, handle, mapped_at, fd);
		status = *cuda ? CUI_CUDA : CUI_OK;
	}
	cui_cycle_end_export();
	return status;
}

static void served(void *unused, const struct cui_identity *resource, pid_t pid)
{
	(void)unused;
	note_importer(resource, pid);
}

static void *serve(void *unused)
{
	struct cui_server server = {
		.lookup = lookup,
		.timeout_ms = CLIENT_MS,
		.coordinator = geteuid(),
		.stop = eventfd(0, EFD_CLOEXEC), /* never: it serves as long as the process lives */
		.served = served,
		.control = cui_cycle_control,
	};

	cui_endpoint_serve(&endpoint, &server);
	return unused;
}

/* No signal of the program's is ours to handle. */
static bool start_thread(void *(*function)(void *))
{
	sigset_t all, before;
	pthread_t thread;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int error = pthread_create(&thread, NULL, function, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!error)
		pthread_detach(thread);
	return !error;
}

static const char *start(void)
{
	char directory[CUI_ENDPOINT_MAX + 1];
	struct cui_identity participant;
	int error = cui_endpoint_directory(directory, sizeof(directory));

	if (error)
		return error == -ENOENT ? "neither CUINTERPOSE_DIR nor XDG_RUNTIME_DIR is set" : strerror(-error);
	error = cui_identity_random(&participant);
	if (!error)
		error = cui_endpoint_open(&endpoint, directory, &participant);
	if (error)
		return error == -EPERM ? "its directory is not ours alone (mode 0700)" : strerror(-error);
	if (!cui_cycle_start() || !start_thread(serve)) {
		cui_endpoint_close(&endpoint);
		return "no thread to serve it";
	}
	return NULL;
}

void cui_share_start(void)
{
	if (atomic_load_explicit(&tried, memory_order_acquire))
		return;
	int saved = errno;
	pthread_mutex_lock(&mutex);
	if (state == NOT_YET) {
		const char *why = start();

		state = why ? FAILED : STARTED;
		*cui_host->tracked = why ? CUI_TRACKED_WITHOUT_ENDPOINT : CUI_TRACKED_AND_SERVING;
		if (why)
			fprintf(stderr, "cuinterpose: process %d has no endpoint: %s; what it shares cannot be kept\n",
				getpid(), why);
		atomic_store_explicit(&tried, true, memory_order_release);
	}
	pthread_mutex_unlock(&mutex);
	errno = saved;
}

const struct cui_identity *cui_share_participant(void)
{
	return atomic_load_explicit(&tried, memory_order_acquire) && state == STARTED ? &endpoint.participant : NULL;
}

bool cui_share_ticket(struct cui_memory *memory, struct cui_ticket *ticket)
{
	if (memory->imported) {
		*ticket = memory->ticket;
		return true;
	}
	const struct cui_identity *participant = cui_share_participant();
	if (!participant || (cui_identity_zero(&memory->resource) && cui_identity_random(&memory->resource)))
		return false;
	*ticket = (struct cui_ticket){ .kind = CUI_UNICAST, .participant = *participant, .resource = memory->resource };
	strcpy(ticket->endpoint, endpoint.path);
	return true;
}

enum cui_status cui_share_ask(const struct cui_ticket *ticket, int64_t deadline_ms, int *fd, int32_t *cuda)
{
	const struct cui_identity *own = cui_share_participant();
	int64_t left = deadline_ms - cui_now_ms();

	*fd = -1;
	*cuda = 0;
	if (!own || !cui_identity_same(own, &ticket->participant))
		return cui_export(ticket, left < 1 ? 1 : left > CREATOR_ANSWERS_MS ? CREATOR_ANSWERS_MS : left, fd, cuda);
	/* our own: our thread may be the one that would have to answer */
	enum cui_status status = lookup(NULL, &ticket->resource, ticket->kind, fd, cuda);
	if (status == CUI_OK)
		note_importer(&ticket->resource, getpid());
	return status;
}

static void in_child(void)
{
	pthread_mutex_init(&mutex, NULL);
	cui_endpoint_close(&endpoint);
	state = NOT_YET;
	*cui_host->tracked = CUI_TRACKED;
	atomic_store(&tried, false);
	atomic_store(&cui_captures, 0);
	cui_gate_reset();
	cui_ledger_reset();
	cui_contexts_reset();
	cui_cycle_reset();
}

/* Our threads serve to the end, so nothing is closed. */
static void at_exit(void)
{
	if (cui_share_participant() && endpoint.owner == getpid())
		unlink(endpoint.path);
}

__attribute__((visibility("default"))) cui_track_start_fn cui_track_start;
const void *const *cui_track_start(const struct cui_host *host)
{
	static const void *functions[CUI_DRIVER_ENTRIES];

	if (host->abi != CUI_TRACK_ABI || pthread_atfork(NULL, NULL, in_child) || atexit(at_exit))
		return NULL;
	cui_host = host;
	for (int entry = 0; entry < CUI_DRIVER_ENTRIES; entry++)
		functions[entry] = cui_vmm_functions[entry] ? cui_vmm_functions[entry] : cui_watch_functions[entry];
	return functions;
}
