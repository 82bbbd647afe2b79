// SPDX-License-Identifier: Apache-2.0
/*
 * The spool: a file that the launcher makes, allocates and keeps ahead of its writers, mapped by every recorded program.
 *
 * A recorder holds no descriptor of it. A number can be closed and reused by the program; a mapping cannot. What is written
 * lies in the file at once, so no death of a process or of the launcher loses a finished frame. docs/decisions has the reasons.
 *
 * Both sides are the same machine: host byte order. nvproxy_model/trace/record/{spool,mapped}.py know these layouts.
 */
#ifndef NVPROXY_TRACE_SPOOL_H
#define NVPROXY_TRACE_SPOOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define SPOOL_MAGIC 0x5354564eu /* "NVTS" */
#define FRAME_MAGIC 0x5254564eu /* "NVTR" */
#define SPOOL_VERSION 1u

enum spool_state {
	SPOOL_OPEN,   /* more room comes when it is asked for */
	SPOOL_FULL,   /* the launcher could not allocate more: whoever finds no room gives up at once */
	SPOOL_CLOSED, /* the launcher reads it: nothing is recorded from here on */
};

/* At offset 0. Programs write `cursor`, `lost`, `lost_answers` and `wanted`; the launcher writes the rest. */
struct spool_head {
	uint32_t magic;
	uint32_t version;
	_Atomic(uint32_t) state;
	uint32_t values;                /* 0: the bytes of arguments stay out */
	_Atomic(uint64_t) cursor;       /* where the next frame goes */
	_Atomic(uint64_t) limit;        /* what is allocated: no frame ends beyond it */
	_Atomic(uint64_t) lost;         /* calls and events that could not be written */
	_Atomic(uint64_t) lost_answers; /* ends of calls whose begin was written */
	_Atomic(uint32_t) wanted;       /* a futex: rises when room runs short */
	uint32_t pad;
	uint64_t table_at;
	uint64_t table_size;
};

enum frame_type {
	FRAME_PROCESS = 1,
	FRAME_OPEN,
	FRAME_FD,
	FRAME_ENTER,
	FRAME_LEAVE,
	FRAME_MMAP,
	FRAME_CLOSE,
	FRAME_DUP,
	FRAME_EXEC,
};

enum {
	FLAG_TRUNCATED = 1, /* parameters cut at our bound */
	FLAG_BY_TABLE = 2,  /* their size came from the table */
	FLAG_FAULT = 8,     /* memory that could not be read */
	FLAG_FORKED = 32,   /* a process that began with fork, not exec */
	FLAG_DENIED = 64,   /* this process may not open the spool: the program that it becomes cannot record */
	FLAG_SHELL = 128,   /* system(3) or popen(3): a child whose number is not known here */
};

/*
 * A frame begins at a multiple of 8: this header, its sections' heads, its text, the sections' bytes, and four bytes that are
 * the complement of its size. Between frames there are zeros.
 */
struct frame {
	uint32_t magic;
	uint32_t size;
	uint16_t type;
	uint16_t flags;
	uint32_t pid;
	uint32_t tid;
	uint32_t err;
	uint64_t time; /* CLOCK_MONOTONIC, ns */
	uint64_t id;   /* of the call: ENTER and LEAVE have the same */
	int64_t ret;
	int32_t fd;
	uint32_t request;
	uint32_t space;
	uint32_t key;
	uint32_t params_size;
	uint32_t text;     /* bytes of text after the sections' heads */
	uint32_t sections; /* how many sections */
	uint32_t pad;
	uint64_t args[4];
};

/* WHERE_POINTER + the offset of the pointer that leads to a buffer. */
#define WHERE_ARGUMENT 0u
#define WHERE_PARAMETERS 1u
#define WHERE_STATUS 2u
#define WHERE_POINTER 0x10000u
#define UNREADABLE 0x80000000u /* the bytes of this section mean nothing: the program's memory could not be read */

struct section {
	uint32_t where;
	uint32_t size;
};

/* A part of the program's memory that becomes a section. */
struct piece {
	uint32_t where;
	uint32_t size;
	uint64_t address;
	const void *read; /* its bytes, if it was read whole already; else NULL */
};

#define MAX_PIECES 11 /* the argument, its parameters, a status, four buffers behind each of the first two */

_Static_assert(sizeof(struct spool_head) == 72, "mapped.py writes this");
_Static_assert(sizeof(struct frame) == 112, "spool.py reads this");

/* Maps the spool. False where it is not there, not ours to open, or not a spool. */
bool spool_open(const char *path);

bool spool_active(void);

/* Counts a call or an event that cannot be written. */
void spool_missed(void);

bool spool_keeps_values(void);

/* Whether this process, as it is now, could open the spool again. */
bool spool_allowed(void);

/* The launcher's table, or NULL. */
const void *spool_table(size_t *size);

uint64_t now(void);
void frame_begin(struct frame *frame, enum frame_type type);

/*
 * Writes a frame with the bytes of these pieces, read from the program's memory as it is now. What cannot be read is marked,
 * and never faults. False, and counted in the spool, where the frame could not be written.
 */
bool frame_send(struct frame *frame, const void *text, size_t size, const struct piece *pieces, unsigned int count);

/* Copies memory of the program; false where it has none. */
bool copy_in(void *to, uint64_t address, size_t size);

/* Copies a string of the program, cut at `room` - 1 bytes, and ends it. Its length, or -1 where it cannot be read. */
ssize_t copy_string(char *to, const char *from, size_t room);

/* pthread_atfork(3): windows that other threads held are nobody's in the child. */
void spool_forked(void);

#endif
