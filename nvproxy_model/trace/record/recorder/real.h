// SPDX-License-Identifier: Apache-2.0
/* real_NAME(): the next definition of each function that we stand in front of. */
#ifndef NVPROXY_TRACE_REAL_H
#define NVPROXY_TRACE_REAL_H

#include <dlfcn.h>
#include <stdatomic.h>

#define EXPORT __attribute__((visibility("default")))

#define REAL(name, type, ...)                                                                        \
	typedef type (*name##_fn)(__VA_ARGS__);                                                      \
	static _Atomic(name##_fn) real_##name##_p;                                                   \
	static name##_fn real_##name(void)                                                           \
	{                                                                                            \
		name##_fn fn = atomic_load_explicit(&real_##name##_p, memory_order_relaxed);         \
		if (!fn) {                                                                           \
			fn = (name##_fn)dlsym(RTLD_NEXT, #name);                                     \
			atomic_store_explicit(&real_##name##_p, fn, memory_order_relaxed);           \
		}                                                                                    \
		return fn;                                                                           \
	}

#endif
