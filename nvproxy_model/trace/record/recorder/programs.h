// SPDX-License-Identifier: Apache-2.0
/* Programs that begin, and programs that a process becomes. */
#ifndef NVPROXY_TRACE_PROGRAMS_H
#define NVPROXY_TRACE_PROGRAMS_H

#include "spool.h"

/* This process: 0 after an exec, FLAG_FORKED after a fork. */
void process_event(uint16_t flags);

#endif
