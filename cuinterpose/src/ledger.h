/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the program holds: memory by handle, reservations and mappings by address.
 *
 * One mutex guards it, and is never held across a call of the driver.  A call that
 * changes a range or uses up a handle has a struct cui_call here from before it
 * enters the driver until its outcome is written down: another call that overlaps
 * waits for it, so that the ledger sees them in the driver's order.
 */
#ifndef CUI_LEDGER_H
#define CUI_LEDGER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "ticket.h"

/* A treap of disjoint ranges. */
struct cui_range {
	uint64_t start, end;
	struct cui_range *left, *right;
	uint32_t weight;
};

struct cui_access {
	uint64_t start, size;
	int type, id; /* CUmemLocation */
	int flags;
};

struct cui_mapping {
	struct cui_range range; /* first */
	struct cui_memory *memory; /* NULL: of a handle that is not in the ledger */
	struct cui_mapping *previous, *next; /* of its memory, in the order of the calls */
	uint64_t offset, flags;
	struct cui_access *access; /* the last value of each location: the driver takes whole mappings only */
	unsigned int accesses;
	bool away;
};

struct cui_importer {
	pid_t pid;
	uint64_t started; /* of /proc/PID/stat: with the pid, one process and no later one; 0: not readable */
};

enum cui_step_stage {
	CUI_STAGE_NONE,
	CUI_STAGE_GATE, /* a call of the program did not return in time */
	CUI_STAGE_CAPTURE, /* a stream is being captured */
	CUI_STAGE_SYNCHRONISE,
	CUI_STAGE_UNMAP,
	CUI_STAGE_RELEASE,
	CUI_STAGE_ASK, /* the creator, for a fresh descriptor */
	CUI_STAGE_IMPORT,
	CUI_STAGE_MAP,
	CUI_STAGE_ACCESS,
	CUI_STAGE_ORDER, /* a step that does not follow from the phase */
	CUI_STAGE_KEEP, /* an import that could not come back */
};

struct cui_failure {
	enum cui_step_stage stage;
	int cuda;
	struct cui_identity resource;
};

struct cui_memory {
	struct cui_memory *previous, *next; /* all, in the order of the calls */
	struct cui_memory *beside; /* of the same bucket */
	uint64_t handle; /* the program's number; of an import, ours; 0: none left */
	uint64_t real; /* of an import: the driver's number, while we hold its one reference */
	uint64_t size; /* of a creator's */
	int device, handle_types;
	unsigned int references; /* that the program holds */
	unsigned int users; /* calls under way: not to be forgotten yet */
	bool imported;
	bool foreign; /* imported, and from no ticket */
	bool multicast;
	bool entangled; /* an import bound to multicast or in a sparse array */
	struct cui_identity resource; /* of a creator's that was exported */
	struct cui_ticket ticket; /* of an import that is not foreign */
	struct cui_failure lost; /* why it did not come back */
	struct cui_mapping *first, *last;
	struct cui_importer *importers;
	unsigned int importer_count;
	void *context;
};

/* What a checkpoint cannot keep, or cannot judge.  Counted: given ever, the others now. */
#define CUI_NOTES(X)                                                                         \
	X(ipc_memory_given) /* cuIpcGetMemHandle */                                          \
	X(ipc_memory_opened)                                                                 \
	X(ipc_event_given)                                                                   \
	X(ipc_event_opened)                                                                  \
	X(pool_given)                                                                        \
	X(pool_imported)                                                                     \
	X(fabric_given) /* exports of another type than a file descriptor */                 \
	X(descriptor_given) /* real descriptors, not tickets */                              \
	X(dma_buf_given)                                                                     \
	X(endpoint_given) /* cuLogicalEndpointExport */                                      \
	X(endpoint_imported)                                                                 \
	X(external_memory)                                                                   \
	X(external_semaphore)                                                                \
	X(multicast)                                                                         \
	X(untracked) /* imports, or accesses of one, that could not be written down */

enum cui_note {
#define X(name) CUI_NOTE_##name,
	CUI_NOTES(X)
#undef X
	CUI_NOTE_COUNT,
};
void cui_note(enum cui_note note, int change);
long cui_noted(enum cui_note note);

/* Calls under way. */
struct cui_call {
	uint64_t start, end;
	struct cui_call *next;
};
enum cui_space { CUI_ADDRESSES, CUI_HANDLES, CUI_SPACES };

void cui_ledger_lock(void);
void cui_ledger_unlock(void);
/* With the lock; each may let it go while it waits. */
void cui_call_begin(enum cui_space space, struct cui_call *call, uint64_t start, uint64_t end);
void cui_call_end(enum cui_space space, struct cui_call *call);
void cui_call_wait(enum cui_space space, uint64_t start, uint64_t end);

/* All with the lock. */
struct cui_memory *cui_memory_by_handle(uint64_t handle);
struct cui_memory *cui_memory_by_resource(const struct cui_identity *resource);
struct cui_memory *cui_memory_first(void);
void cui_memory_add(struct cui_memory *memory);
void cui_memory_rename(struct cui_memory *memory, uint64_t handle);
void cui_memory_settle(struct cui_memory *memory); /* forgets it if nothing holds it */
uint64_t cui_fresh_handle(void);
bool cui_is_ours(uint64_t handle);

struct cui_mapping *cui_mapping_new(void); /* or NULL; to be added or given back */
void cui_mapping_unused(struct cui_mapping *mapping);
struct cui_mapping *cui_mapping_at(uint64_t start, uint64_t end); /* the first that overlaps, or NULL */
void cui_mapping_add(struct cui_mapping *mapping);
void cui_mappings_remove(uint64_t start, uint64_t end);
bool cui_mapping_set_access(struct cui_mapping *mapping, const struct cui_access *access);
void cui_reservation_add(struct cui_range *reservation);
void cui_reservation_remove(uint64_t start);
struct cui_range *cui_reservation_at(uint64_t start, uint64_t end);

unsigned int cui_imports(void); /* without the lock, roughly */
void cui_ledger_reset(void); /* in a forked child: nothing is held there */

#endif
