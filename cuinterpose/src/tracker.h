/* SPDX-License-Identifier: Apache-2.0 */
/* What the tracker's files share. */
#ifndef CUI_TRACKER_H
#define CUI_TRACKER_H

#include "frame.h"
#include "ledger.h"
#include "real.h"

/* vmm.c, watch.c: what is called in place of the driver's functions. */
extern const void *const cui_vmm_functions[CUI_DRIVER_ENTRIES];
extern const void *const cui_watch_functions[CUI_DRIVER_ENTRIES];
extern atomic_int cui_captures; /* streams being captured */

/* share.c: the endpoint of this process, tickets for what it creates, descriptors for the tickets that it gets. */
void cui_share_start(void); /* once, from the first call that there is something to say about */
bool cui_share_ticket(struct cui_memory *memory, struct cui_ticket *ticket); /* with the ledger's lock */
/* A fresh descriptor; five seconds at most, and no later than the deadline. */
enum cui_status cui_share_ask(const struct cui_ticket *ticket, int64_t deadline_ms, int *fd, int32_t *cuda);
const struct cui_identity *cui_share_participant(void); /* NULL: no endpoint */

/* cycle.c: one step of a checkpoint at a time, in a thread of its own. */
enum cui_phase {
	CUI_OPEN,
	CUI_CLOSED, /* nobody is inside, the device is idle */
	CUI_LET_GO_OF, /* imports are away */
	CUI_HELD, /* and stay away until the coordinator says so or hangs up */
	CUI_LOCKED, /* the driver is locked, or was: only a coordinator brings the imports back */
	CUI_SERVING, /* the driver runs again: descriptors are given, imports can come back */
	CUI_BACK, /* they have */
	CUI_HEALING, /* the coordinator left: as above, by itself */
};
bool cui_cycle_start(void);
enum cui_phase cui_cycle_phase(void);
bool cui_cycle_begin_export(void); /* false: busy */
void cui_cycle_end_export(void);
/* A request from a client whose connection the caller closes; answers it now, or keeps a duplicate. */
void cui_cycle_control(void *context, const struct cui_frame *request, int client);
void cui_cycle_reset(void);

/* inventory.c: a sealed descriptor with this process's JSON, or -1. */
int cui_inventory(void);

#endif
