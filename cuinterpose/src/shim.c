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

enum cui_entry cui_entry_at(const void *address, enum cui_entry end)
{
	if (address)
		for (int entry = 0; entry < (int)end; entry++)
			if (atomic_load_explicit(&cui_entries[entry], memory_order_relaxed) == address)
				return entry;
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
	if (cui_disabled())
		return;
	enum cui_entry entry = cui_entry_at(*pfn, CUI_DRIVER_ENTRIES);
	if (entry != CUI_NO_ENTRY) {
		*pfn = cui_wrappers[entry];
		atomic_fetch_add_explicit(route, 1, memory_order_relaxed);
	} else if (*pfn && name && cui_covers(name) && !cui_is_wrapper(*pfn)) {
		atomic_fetch_add_explicit(&cuinterpose_stats.unrecognised, 1, memory_order_relaxed);
	}
}

/*
 * Each name has two functions here.  first_NAME fills the entry until the real
 * function is known, and for good where there is none; wrap_NAME is then a load
 * and a jump.  It is exported by an alias: a program that is not position
 * independent makes its own PLT slot the address of an exported function that it
 * names, and the shim would then hand that slot out.
 */
#define REAL(entry) atomic_load_explicit(&cui_entries[entry], memory_order_relaxed)

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
#undef X

/* Only a success with an address is looked at; the status is the caller's own affair. */
#define RESOLVE(entry, params, args, pfn, route)                       \
	int(*function) params = REAL(entry);                           \
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

void *_Atomic cui_entries[CUI_ENTRIES] = {
#define X(name, ...) [CUI_##name] = (void *)first_##name,
	CUI_DRIVER(X)
#undef X
#define X(name, generation, ...) [CUI_##name##_##generation] = (void *)first_##name##_##generation,
	CUI_RUNTIME(X)
#undef X
};
