// SPDX-License-Identifier: Apache-2.0
/*
 * libcudart.so.<GENERATION> with version CUDART_VERSION: reaches the driver as
 * real ones do, by dlopen and dlsym of the resolver, and asks it for all else.
 * FAKE_RUNTIME_FAILS in the environment: 100, and nothing is written.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

static int ask(const char *symbol, void **pfn, unsigned int version, unsigned long long flags, int *status)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);

	if (!driver || getenv("FAKE_RUNTIME_FAILS"))
		return 100;
#if CUDART_VERSION >= 12000
	int (*resolve)(const char *, void **, int, uint64_t, int *) = dlsym(driver, "cuGetProcAddress_v2");

	return resolve(symbol, pfn, version, flags, status);
#else
	int (*resolve)(const char *, void **, int, uint64_t) = dlsym(driver, "cuGetProcAddress");

	(void)status;
	return resolve(symbol, pfn, version, flags);
#endif
}

#define PTSZ(flags) ((flags) & 3 ? (flags) : (flags) | 2)

#if CUDART_VERSION >= 12000
int cudaGetDriverEntryPoint(const char *symbol, void **pfn, unsigned long long flags, int *status)
{
	return ask(symbol, pfn, CUDART_VERSION, flags, status);
}

int cudaGetDriverEntryPoint_ptsz(const char *symbol, void **pfn, unsigned long long flags, int *status)
{
	return ask(symbol, pfn, CUDART_VERSION, PTSZ(flags), status);
}
#else
int cudaGetDriverEntryPoint(const char *symbol, void **pfn, unsigned long long flags)
{
	return ask(symbol, pfn, CUDART_VERSION, flags, NULL);
}

int cudaGetDriverEntryPoint_ptsz(const char *symbol, void **pfn, unsigned long long flags)
{
	return ask(symbol, pfn, CUDART_VERSION, PTSZ(flags), NULL);
}
#endif

#if CUDART_VERSION >= 12050
int cudaGetDriverEntryPointByVersion(const char *symbol, void **pfn, unsigned int version, unsigned long long flags,
				     int *status)
{
	return ask(symbol, pfn, version, flags, status);
}

int cudaGetDriverEntryPointByVersion_ptsz(const char *symbol, void **pfn, unsigned int version,
					  unsigned long long flags, int *status)
{
	return ask(symbol, pfn, version, PTSZ(flags), status);
}
#endif
