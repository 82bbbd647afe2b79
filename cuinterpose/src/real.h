/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's own functions, for the tracker: real_NAME, and DRIVER(NAME) for what is outside the surface. */
#ifndef CUI_REAL_H
#define CUI_REAL_H

#include "shim.h"
#include "track.h"

extern const struct cui_host *cui_host;

#define X(name, params, args)                                                                                \
	static inline CUresult real_##name params                                                            \
	{                                                                                                    \
		CUresult(*function) params =                                                                 \
			atomic_load_explicit(&cui_host->entries[CUI_##name], memory_order_relaxed);          \
		return function args;                                                                        \
	}
CUI_TYPED(X)
CUI_WATCHED(X, X)
#undef X

enum {
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_INVALID_HANDLE = 400,
	CUDA_ERROR_NOT_READY = 600,
	CUDA_ERROR_UNKNOWN = 999,
	POSIX_FILE_DESCRIPTOR = 1, /* CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR */
};

/* Whether the driver has a function of the surface: an entry that is not bound cannot be called. */
static inline bool cui_has(enum cui_entry entry)
{
	return atomic_load_explicit(&cui_host->entries[entry], memory_order_relaxed) != NULL;
}

#endif
