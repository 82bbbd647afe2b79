/* SPDX-License-Identifier: Apache-2.0 */
/* The contexts of this process, for threads of ours: which to wait for, and which to make current. */
#ifndef CUI_CONTEXTS_H
#define CUI_CONTEXTS_H

#include <stdint.h>

/* The calling thread's current context; returns it, or NULL. */
void *cui_context_note(void);
void cui_context_destroyed(const void *context);

/* Makes it current in the calling thread, if it still exists. */
void cui_context_adopt(void *context);

/* Waits for everything that was launched in any context: 0 or the driver's first refusal. */
int cui_contexts_synchronise(void);

unsigned int cui_contexts_count(void);

/*
 * How many devices the driver shows to this process, 0 if it has not said so yet.  It is asked in a call of the
 * program's, since ours must not ask a driver that is locked.
 */
void cui_devices_note(void);
int cui_devices_count(void);

void cui_contexts_reset(void); /* in a forked child */

#endif
