// SPDX-License-Identifier: Apache-2.0
/*
 * A checkpointer of GPU processes that share memory, in C: the steps in the order that a plugin of CRIU has hooks for.
 *
 *	checkpointer DIRECTORY PID...
 *
 * DIRECTORY is the processes' CUINTERPOSE_DIR; each runs under `cuinterpose run --track`.  Build with
 * cc checkpointer.c -I$PACKAGE -L$PACKAGE -lcucheckpoint -Wl,-rpath,$PACKAGE -ldl, PACKAGE being where cuinterpose is.
 *
 * Where CRIU calls a plugin for one process at a time, the group must come from elsewhere: each step is for all of them
 * before the next one.  PAUSE_DEVICES fits pause(), CHECKPOINT_DEVICES fits save(), RESUME_DEVICES_LATE fits resume() with
 * go_on() once every process is back.  CRIU's own cuda_plugin must not checkpoint the same processes.  Which thread CRIU
 * must leave running for the driver's restore, cuCheckpointProcessGetRestoreThreadId says.  Not tested with CRIU: whether it
 * dumps the endpoint, a listening SOCK_SEQPACKET socket, and tickets, sealed memfds.
 */
#include <cucheckpoint.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 64, LIMIT_MS = 10000, IMPORT_MS = 30000, PATIENCE_MS = 30000, TRIES = 200, PAUSE_US = 50000 };

static struct process {
	pid_t pid;
	char endpoint[108]; /* "": it has shared nothing, and takes no steps */
	int connection;
} group[MOST];
static int count;

typedef int init_fn(unsigned int flags);
typedef int checkpoint_fn(int pid, void *arguments);
static checkpoint_fn *lock, *checkpoint, *restore, *unlock;

static int load_driver(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	init_fn *init = driver ? (init_fn *)dlsym(driver, "cuInit") : NULL;

	if (!init)
		return -1;
	lock = (checkpoint_fn *)dlsym(driver, "cuCheckpointProcessLock");
	checkpoint = (checkpoint_fn *)dlsym(driver, "cuCheckpointProcessCheckpoint");
	restore = (checkpoint_fn *)dlsym(driver, "cuCheckpointProcessRestore");
	unlock = (checkpoint_fn *)dlsym(driver, "cuCheckpointProcessUnlock");
	return lock && checkpoint && restore && unlock ? init(0) : -1;
}

/* One step of every process: 0, or -1 once one could not, which is said. */
static int all(enum cucheckpoint_step step, const char *name, unsigned int limit_ms)
{
	int failed = 0;

	for (int i = 0; i < count; i++) {
		struct cucheckpoint_result result;
		int error;

		if (!group[i].endpoint[0])
			continue;
		error = cucheckpoint_do(group[i].connection, step, limit_ms, PATIENCE_MS, &result);
		if (error) {
			fprintf(stderr, "%s: process %d: %s (%d)\n", name, group[i].pid,
				error == -EAGAIN ? cucheckpoint_words(result.stage) : strerror(-error), result.cuda);
			failed = -1;
		}
	}
	return failed;
}

static int drive(checkpoint_fn *function, const char *name)
{
	for (int i = 0; i < count; i++) {
		unsigned int arguments[16] = { function == lock ? LIMIT_MS : 0 };
		int result = function(group[i].pid, arguments);

		if (result) {
			fprintf(stderr, "%s: process %d: CUresult %d\n", name, group[i].pid, result);
			return -1;
		}
	}
	return 0;
}

static void disconnect(void)
{
	for (int i = 0; i < count; i++) {
		if (group[i].endpoint[0])
			close(group[i].connection);
	}
}

static int connect_all(void)
{
	for (int i = 0; i < count; i++) {
		if (!group[i].endpoint[0])
			continue;
		group[i].connection = cucheckpoint_open(group[i].endpoint, LIMIT_MS);
		if (group[i].connection < 0)
			return -1;
	}
	return 0;
}

/* No call of CUDA is under way, and nobody holds another's memory.  If it fails, hanging up puts everything back. */
static int pause_all(void)
{
	return connect_all() || all(CUCHECKPOINT_CLOSE, "close", LIMIT_MS) || all(CUCHECKPOINT_LET_GO, "let go", LIMIT_MS) ||
	       all(CUCHECKPOINT_HOLD, "hold", LIMIT_MS);
}

/* After this nothing is on the GPU, and the processes can be dumped. */
static int save(void)
{
	int failed = drive(lock, "lock") || all(CUCHECKPOINT_LOCK, "locked", LIMIT_MS) || drive(checkpoint, "checkpoint");

	disconnect();
	return failed;
}

static int resume(void)
{
	return drive(restore, "restore") || drive(unlock, "unlock");
}

/* A new connection, and its first step: a process that has not yet seen the one before close answers -EAGAIN and hangs up. */
static int serve(struct process *process)
{
	for (int tries = 0;; tries++) {
		struct cucheckpoint_result result;
		int error;

		process->connection = cucheckpoint_open(process->endpoint, LIMIT_MS);
		if (process->connection < 0)
			return -1;
		error = cucheckpoint_do(process->connection, CUCHECKPOINT_SERVE, LIMIT_MS, PATIENCE_MS, &result);
		if (!error)
			return 0;
		if (error != -EAGAIN || tries == TRIES) {
			fprintf(stderr, "serve: process %d: %s\n", process->pid,
				error == -EAGAIN ? cucheckpoint_words(result.stage) : strerror(-error));
			return -1;
		}
		close(process->connection);
		usleep(PAUSE_US);
	}
}

static int serve_all(void)
{
	int failed = 0;

	for (int i = 0; i < count; i++) {
		if (group[i].endpoint[0])
			failed |= serve(&group[i]);
	}
	return failed;
}

/* Every process runs again: what they share comes back. */
static int go_on(void)
{
	int failed = serve_all() || all(CUCHECKPOINT_IMPORT, "import", IMPORT_MS);

	failed |= all(CUCHECKPOINT_OPEN_GATE, "open", LIMIT_MS);
	disconnect();
	return failed;
}

int main(int argc, char **argv)
{
	if (argc < 3 || argc - 2 > MOST) {
		fprintf(stderr, "usage: %s DIRECTORY PID...\n", argv[0]);
		return 2;
	}
	if (load_driver()) {
		fprintf(stderr, "no libcuda.so.1 with cuCheckpointProcess*\n");
		return 2;
	}
	for (count = 0; count < argc - 2; count++) {
		group[count].pid = atoi(argv[count + 2]);
		if (cucheckpoint_find(argv[1], group[count].pid, group[count].endpoint))
			group[count].endpoint[0] = 0;
	}
	if (pause_all() || save()) {
		/* unlocks what is locked, restores what is checkpointed: `cuinterpose restore` does that from any step */
		fprintf(stderr, "not checkpointed; run: cuinterpose restore --all\n");
		return 1;
	}
	printf("checkpointed\n");
	if (resume() || go_on())
		return 1;
	printf("restored\n");
	return 0;
}
