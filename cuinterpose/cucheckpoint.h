/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For programs that checkpoint processes which run under the shim with tracking on: the steps with one of them, in C.
 * Link with libcucheckpoint.so of this package.  The driver's own checkpoint stays the caller's business.
 *
 *	before		CLOSE, LET_GO, HOLD		of every process of the group, each step in all of them
 *	driver		cuCheckpointProcessLock		of every process
 *	between		LOCK				of every process; then the connections may be closed
 *	driver		Checkpoint, ..., Restore, Unlock
 *	after		SERVE				of every process, on a new connection
 *			IMPORT, OPEN_GATE		of every process
 *
 * To put everything back before the checkpoint: unlock what is locked, then SERVE, IMPORT, OPEN_GATE; or just close
 * the connections, and each process does it by itself.  After LOCK it does not.
 */
#ifndef CUCHECKPOINT_H
#define CUCHECKPOINT_H

#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum cucheckpoint_step {
	CUCHECKPOINT_CLOSE = 18, /* hold the program's calls back, wait for the device */
	CUCHECKPOINT_LET_GO = 19, /* unmap and release imports; reservations stay */
	CUCHECKPOINT_HOLD = 20, /* wait for the next step without a time-out */
	CUCHECKPOINT_LOCK = 21, /* the driver has locked it: from now on a hang-up heals nothing */
	CUCHECKPOINT_SERVE = 22, /* the driver runs it again: give descriptors to importers */
	CUCHECKPOINT_IMPORT = 23, /* import, map and give access as before */
	CUCHECKPOINT_OPEN_GATE = 24, /* let the program go on */
};

struct cucheckpoint_result {
	int phase; /* after the step: 0 open, 1 closed, 2 let go, 3 held, 4 locked, 5 serving, 6 back, 7 healing */
	int stage; /* what failed, 0 nothing; cucheckpoint_words says it */
	int cuda; /* the driver's CUresult, or 0 */
	uint8_t resource[16]; /* what it was about, or zeros */
};

/* The endpoint of a process in a directory ($CUINTERPOSE_DIR of it): 0 or -errno, -ENOENT if it has none there. */
int cucheckpoint_find(const char *directory, pid_t pid, char endpoint[108]);

/*
 * A connection, which the caller closes; or -errno.  One at a time takes steps: while the process is with another, or has
 * not yet seen it close, a step on this one is -EAGAIN and the process hangs up.  Try again on a new one.
 */
int cucheckpoint_open(const char *endpoint, unsigned int timeout_ms);

/*
 * One step, which may take limit_ms; after it the process waits patience_ms for the next one.  0: done.  -EAGAIN: the
 * process did not do it, and *result says why.  Another -errno: it does not answer.
 */
int cucheckpoint_do(int connection, enum cucheckpoint_step step, unsigned int limit_ms, unsigned int patience_ms,
		    struct cucheckpoint_result *result);

/* What the process behind an endpoint holds: a descriptor with JSON, schema cuinterpose.process/1; or -errno. */
int cucheckpoint_inventory(const char *endpoint, unsigned int timeout_ms);

/* A sentence for result.stage. */
const char *cucheckpoint_words(int stage);

#ifdef __cplusplus
}
#endif
#endif
