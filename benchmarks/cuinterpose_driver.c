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
