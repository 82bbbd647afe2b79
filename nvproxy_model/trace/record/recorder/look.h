// SPDX-License-Identifier: Apache-2.0
/* What an ioctl's arguments lead to: the pieces of the program's memory that belong in the trace. */
#ifndef NVPROXY_TRACE_LOOK_H
#define NVPROXY_TRACE_LOOK_H

#include "spool.h"

struct call {
	struct piece pieces[MAX_PIECES];
	unsigned int count;
	struct piece status; /* its size is 0 where the table names none */
};

/* Takes over the launcher's table. Without one every call is recorded with its argument struct alone. */
void look_begin(void);

/* Before the call: fills in what `frame` says of it, and finds its pieces. They are read by frame_send(), before and after. */
void look(struct call *call, struct frame *frame, const char *device, unsigned long request, uint64_t argument);

#endif
