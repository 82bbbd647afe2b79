// SPDX-License-Identifier: Apache-2.0
/* What an ioctl's arguments lead to: the pieces of the program's memory that belong in the trace. */
#ifndef NVPROXY_TRACE_LOOK_H
#define NVPROXY_TRACE_LOOK_H

#include "spool.h"

#define FIELDS 256u /* every field that the table names lies below; table.py checks it */

/* The fields of one struct: as much of it as the table's offsets reach. */
struct fields {
	unsigned char bytes[FIELDS];
	uint32_t size;
};

struct call {
	struct fields fields; /* of the argument */
	struct piece pieces[MAX_PIECES];
	unsigned int count;
	struct piece status; /* its size is 0 where the table names none */
};

/* Takes over the launcher's table. Without one every call is recorded with its argument struct alone. */
void look_begin(void);

/* Before the call: fills in what `frame` says of it, and finds its pieces. They are read by frame_send(), before and after. */
void look(struct call *call, struct frame *frame, const char *device, unsigned long request, uint64_t argument);

#endif
