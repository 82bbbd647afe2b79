// SPDX-License-Identifier: Apache-2.0
/*
 * A shared object that looks names up for the caller: -DNAME=plugin gives
 * plugin_dlsym and so on.  With -DDIRECT it is also linked with libcuda, with
 * -DRUNTIME=12 with that runtime.  Compiled without sibling calls: a tail call
 * of dlsym would make the caller's caller the one who asks.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define OWN(what) JOIN(NAME, what)

void *OWN(dlsym)(void *handle, const char *name)
{
	return dlsym(handle, name);
}

int OWN(private)(void)
{
	return __LINE__;
}

/* every such object defines this one: for RTLD_NEXT */
int shared_name(void)
{
	return __LINE__;
}

#ifdef DIRECT
int cuMemCreate(void *handle, uint64_t size, void *prop, uint64_t flags);

int OWN(create)(uint64_t size)
{
	return cuMemCreate(0, size, 0, 0);
}
#endif

#ifdef RUNTIME
#if RUNTIME == 11
int cudaGetDriverEntryPoint(const char *symbol, void **pfn, unsigned long long flags);
#define STATUS
#else
int cudaGetDriverEntryPoint(const char *symbol, void **pfn, unsigned long long flags, int *status);
#define STATUS , 0
#endif

void *OWN(entry_point)(const char *symbol, int *result)
{
	void *pfn = 0;

	*result = cudaGetDriverEntryPoint(symbol, &pfn, 0 STATUS);
	return pfn;
}
#endif
