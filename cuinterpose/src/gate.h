/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate that every tracked call passes.  It counts who is inside the driver and
 * locks nobody out of it; closed, it lets nobody in, and the thread that closed it
 * waits until those inside have left.
 */
#ifndef CUI_GATE_H
#define CUI_GATE_H

#include <stdbool.h>
#include <stdint.h>

/* Waits while the gate is closed.  What it returns goes to cui_leave. */
unsigned int cui_enter(void);
void cui_leave(unsigned int where);

/* Who closes it: one thread.  false: somebody is still inside at the deadline, and the gate is open again. */
bool cui_gate_close(int64_t deadline_ms);
void cui_gate_open(void);

/* In a forked child, where nobody is inside. */
void cui_gate_reset(void);

int64_t cui_now_ms(void);

#endif
