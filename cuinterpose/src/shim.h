/* SPDX-License-Identifier: Apache-2.0 */
/* What the shim's files share.  Nothing here is exported but cuinterpose_stats. */
#ifndef CUI_SHIM_H
#define CUI_SHIM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "surface.h"

/* An entry is a function of the driver or of one generation of the runtime. */
enum cui_entry {
#define X(name, ...) CUI_##name,
	CUI_DRIVER(X)
#undef X
	CUI_DRIVER_ENTRIES,
	CUI_BEFORE_RUNTIME = CUI_DRIVER_ENTRIES - 1,
#define X(name, generation, ...) CUI_##name##_##generation,
	CUI_RUNTIME(X)
#undef X
	CUI_ENTRIES,
	CUI_NO_ENTRY = -1,
};

/*
 * For tools: read through dlsym or process_vm_readv.  A later version only
 * appends; struct_size says how much there is.
 */
struct cuinterpose_stats {
	uint32_t struct_size;
	uint32_t abi; /* 1 */
	uint32_t disabled; /* CUINTERPOSE_DISABLE=1 */
	uint32_t bound; /* bit 0 libcuda.so.1, bits 1-3 libcudart.so.11.0, .12, .13 */
	_Atomic uint64_t by_dlsym; /* addresses replaced by our wrapper, by route */
	_Atomic uint64_t by_resolver;
	_Atomic uint64_t by_runtime;
	_Atomic uint64_t unrecognised; /* covered names whose address was neither ours nor the driver's */
	uint32_t tracked; /* enum cui_tracked */
	uint32_t reserved;
};
extern struct cuinterpose_stats cuinterpose_stats;

/* loader.c: the real functions. */
extern const char *const cui_entry_names[CUI_ENTRIES];
bool cui_bind(enum cui_entry entry); /* looks for the entry's library if need be; false: not loaded */
void cui_bind_at(const void *address); /* binds the library that holds address, if it is one of ours */
void cui_keep_mapped(void); /* takes a reference on each bound library */
void *cui_defined(uintptr_t base, const void *dynamic, const char *name);
void *cui_driver_function(const char *name); /* of libcuda.so.1, once it is bound; NULL: not there */

/* shim.c: the rule. */
extern void *_Atomic cui_entries[CUI_ENTRIES]; /* the real function once bound, if there is one */
extern void *_Atomic cui_calls[CUI_ENTRIES]; /* where a wrapper jumps to: that function, or the tracker's */
extern void *const cui_wrappers[CUI_ENTRIES];
void cui_set_entry(enum cui_entry entry, void *address);
enum cui_entry cui_entry_at(const void *address); /* or CUI_NO_ENTRY */
bool cui_is_wrapper(const void *address);
bool cui_disabled(void);
void cui_track(const void *const *functions); /* the tracker's, by entry; NULL: not tracked */

/* names.c: whether a name is of the surface. */
bool cui_covers(const char *name);

#endif
