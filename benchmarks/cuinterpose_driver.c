// SPDX-License-Identifier: Apache-2.0
/* A libcuda.so.1 with nothing in it: what is left of a call is the way to it. */
#include <stdint.h>

int cuInit(unsigned int flags)
{
	return flags;
}

int cuMemAlloc_v2(uint64_t *pointer, uint64_t size)
{
	return pointer == 0 && size;
}

int cuMemRelease(uint64_t handle)
{
	return (int)handle;
}

int cuMulticastBindMem_v2(uint64_t a, int b, uint64_t c, uint64_t d, uint64_t e, uint64_t f, uint64_t g)
{
	return (int)(a ^ b ^ c ^ d ^ e ^ f ^ g);
}

int cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags, int *status)
{
	*pfn = symbol[2] == 'M' ? (void *)cuMemRelease : (void *)cuInit;
	return version & (int)flags & (status != 0);
}

int cuMemCreate(uint64_t *handle, uint64_t size, const void *properties, uint64_t flags)
{
	static uint64_t last = 0x1000;

	*handle = last += 16;
	return properties == 0 && size && flags;
}

int cuMemMap(uint64_t address, uint64_t size, uint64_t offset, uint64_t handle, uint64_t flags)
{
	return address && size && offset && handle && flags;
}

int cuMemUnmap(uint64_t address, uint64_t size)
{
	return !address && size;
}

int cuMemSetAccess(uint64_t address, uint64_t size, const void *access, uint64_t count)
{
	return !address && size && access && count;
}

int cuLaunchKernel(void *f, unsigned int a, unsigned int b, unsigned int c, unsigned int d, unsigned int e, unsigned int g,
		   unsigned int shared, void *stream, void **parameters, void **extra)
{
	(void)a, (void)b, (void)c, (void)d, (void)e, (void)g, (void)stream, (void)parameters;
	return f && shared && extra;
}

static void *current;

int cuCtxGetCurrent(void **context)
{
	*context = &current;
	return 0;
}
