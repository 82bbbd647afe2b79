// SPDX-License-Identifier: Apache-2.0
/*
 * The wrappers and the one rule:
 *
 *	address that the real resolver returned == real entry of S  ->  our wrapper of S
 *	anything else                                               ->  unchanged
 *
 * No name, version, flag or status is consulted, so the driver alone picks the
 * ABI and nothing can be invented.  Wrappers call the saved address and never
 * RTLD_NEXT: whatever else is preloaded, there is no loop.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <unistd.h>

#include "shim.h"
#include "track.h"

#define likely(x) __builtin_expect(!!(x), 1)
#define EXPORT __attribute__((visibility("default"), used))

/* cudaErrorInitializationError; a runtime that lacks the symbol is cudaErrorSymbolNotFound, 500 like the driver's. */
enum { CUDA_ERROR_INITIALIZATION = 3 };

EXPORT struct cuinterpose_stats cuinterpose_stats = {
	.struct_size = sizeof(cuinterpose_stats),
	.abi = 1,
};

/*
 * getenv answers NULL until libc has set environ up, and dlsym may be called
 * before that: such an answer is not kept.
 */
bool cui_disabled(void)
{
	enum { UNKNOWN, ENABLED, DISABLED };
	static atomic_int state = UNKNOWN;
	int now = atomic_load_explicit(&state, memory_order_relaxed);

	if (likely(now != UNKNOWN))
		return now == DISABLED;
	if (!environ)
		return false;
	const char *value = getenv("CUINTERPOSE_DISABLE");
	bool disabled = value && value[0] == '1' && !value[1];
	cuinterpose_stats.disabled = disabled;
	atomic_store_explicit(&state, disabled ? DISABLED : ENABLED, memory_order_relaxed);
	return disabled;
}

/*
 * Which entry an address is: a hash table of entry numbers plus one, probed in
 * line, so that a resolver's answer costs a few nanoseconds.  Threads that fill it
 * at once put the same numbers in; which goes where does not matter.
 */
enum { SLOTS = 1024 };
static _Atomic uint8_t slots[SLOTS];
_Static_assert(CUI_ENTRIES < UINT8_MAX, "an entry and one more fit in a slot");

static unsigned int first_slot(const void *address)
{
	return ((uintptr_t)address * 0x9e3779b97f4a7c15u) >> 54;
}

/* Set once, before the program starts, by the constructor that loaded the tracker. */
static const void *const *tracked;

static void *called(enum cui_entry entry, void *address)
{
	return tracked && entry < CUI_DRIVER_ENTRIES && tracked[entry] ? (void *)tracked[entry] : address;
}

void cui_set_entry(enum cui_entry entry, void *address)
{
	unsigned int slot = first_slot(address);
	uint8_t there = 0;

	while (!atomic_compare_exchange_strong(&slots[slot], &there, entry + 1) && there != entry + 1) {
		slot = (slot + 1) % SLOTS;
		there = 0;
	}
	atomic_store_explicit(&cui_entries[entry], address, memory_order_release);
	atomic_store_explicit(&cui_calls[entry], called(entry, address), memory_order_release);
}

void cui_track(const void *const *functions)
{
	tracked = functions;
	cuinterpose_stats.tracked = CUI_TRACKED;
	/* what has no entry yet will get the tracker's function with it */
	for (enum cui_entry entry = 0; entry < CUI_DRIVER_ENTRIES; entry++)
		if (atomic_load(&cui_entries[entry]))
			atomic_store(&cui_calls[entry], called(entry, atomic_load(&cui_entries[entry])));
}

enum cui_entry cui_entry_at(const void *address)
{
	uint8_t there;

	for (unsigned int slot = first_slot(address); (there = atomic_load_explicit(&slots[slot], memory_order_relaxed));
	     slot = (slot + 1) % SLOTS)
		if (atomic_load_explicit(&cui_entries[there - 1], memory_order_relaxed) == address)
			return there - 1;
	return CUI_NO_ENTRY;
}

bool cui_is_wrapper(const void *address)
{
	for (int entry = 0; entry < CUI_ENTRIES; entry++)
		if (cui_wrappers[entry] == address)
			return true;
	return false;
}

/* A resolver's answer in *pfn; name is what was asked for. */
static void substitute(void **pfn, const char *name, _Atomic uint64_t *route)
{
	if (!*pfn || cui_disabled())
		return;
	enum cui_entry entry = cui_entry_at(*pfn);
	if (entry == CUI_NO_ENTRY && name && cui_covers(name)) {
		/* a runtime may have found the driver past us */
		cui_bind(CUI_cuGetProcAddress);
		entry = cui_entry_at(*pfn);
		if (entry == CUI_NO_ENTRY && !cui_is_wrapper(*pfn))
			atomic_fetch_add_explicit(&cuinterpose_stats.unrecognised, 1, memory_order_relaxed);
	}
	if (entry == CUI_NO_ENTRY)
		return;
	*pfn = cui_wrappers[entry];
	atomic_fetch_add_explicit(route, 1, memory_order_relaxed);
}

/*
 * Each name has two functions here.  first_NAME is called until the real function
 * is known, and for good where there is none; wrap_NAME is then a load and a jump.  It is exported by an alias: a program that is not position
 * independent makes its own PLT slot the address of an exported function that it
 * names, and the shim would then hand that slot out.
 */
#define REAL(entry) atomic_load_explicit(&cui_calls[entry], memory_order_relaxed)

#define FIRST(symbol, entry, params, args, not_loaded)                        \
	static int first_##symbol params                                      \
	{                                                                     \
		if (!cui_bind(entry))                                         \
			return not_loaded;                                    \
		int(*function) params = REAL(entry);                          \
		return function != first_##symbol ? function args : CUDA_ERROR_NOT_FOUND; \
	}

#define EXPORT_AS(name, params) EXPORT CUresult name params __attribute__((alias("wrap_" #name)));

#define X(name, params, args)                                                   \
	FIRST(name, CUI_##name, params, args, CUDA_ERROR_NOT_INITIALIZED)       \
	static CUresult wrap_##name params                                      \
	{                                                                       \
		CUresult(*function) params = REAL(CUI_##name);                  \
		return function args;                                           \
	}                                                                       \
	EXPORT_AS(name, params)
CUI_FORWARDED(X)
CUI_WATCHED(X, X)
#undef X

/*
 * Only a success with an address is looked at; the status is the caller's own
 * affair.  A resolver is the last entry to be set: who sees it sees the others.
 */
#define RESOLVE(entry, params, args, pfn, route)                       \
	int(*function) params =                                        \
		atomic_load_explicit(&cui_calls[entry], memory_order_acquire); \
	int result = function args;                                    \
	if (result == 0 && pfn)                                        \
		substitute(pfn, symbol, &cuinterpose_stats.route);     \
	return result

#define X(name, params, args)                                                   \
	FIRST(name, CUI_##name, params, args, CUDA_ERROR_NOT_INITIALIZED)       \
	static CUresult wrap_##name params                                      \
	{                                                                       \
		RESOLVE(CUI_##name, params, args, pfn, by_resolver);            \
	}                                                                       \
	EXPORT_AS(name, params)
CUI_RESOLVERS(X)
#undef X

/*
 * One function for each generation of the runtime, under that generation's
 * symbol version: the dynamic loader pairs every caller with its own.  The
 * single @ keeps unversioned look-ups from finding them.
 */
#define VERSION_OF_11 "libcudart.so.11.0"
#define VERSION_OF_12 "libcudart.so.12"
#define VERSION_OF_13 "libcudart.so.13"
#define X(name, generation, params, args)                                                    \
	FIRST(name##_##generation, CUI_##name##_##generation, params, args,                  \
	      CUDA_ERROR_INITIALIZATION)                                                     \
	__asm__(".symver cui_" #name "_" #generation "," #name "@" VERSION_OF_##generation); \
	int cui_##name##_##generation params;                                                \
	EXPORT int cui_##name##_##generation params                                          \
	{                                                                                    \
		RESOLVE(CUI_##name##_##generation, params, args, funcPtr, by_runtime);       \
	}
CUI_RUNTIME(X)
#undef X

void *const cui_wrappers[CUI_ENTRIES] = {
#define X(name, ...) [CUI_##name] = wrap_##name,
	CUI_DRIVER(X)
#undef X
#define X(name, generation, ...) [CUI_##name##_##generation] = cui_##name##_##generation,
	CUI_RUNTIME(X)
#undef X
};

void *_Atomic cui_entries[CUI_ENTRIES];

void *_Atomic cui_calls[CUI_ENTRIES] = {
#define X(name, ...) [CUI_##name] = (void *)first_##name,
	CUI_DRIVER(X)
#undef X
#define X(name, generation, ...) [CUI_##name##_##generation] = (void *)first_##name##_##generation,
	CUI_RUNTIME(X)
#undef X
};
