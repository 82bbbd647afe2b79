// SPDX-License-Identifier: Apache-2.0
/*
 * A libcuda.so.1 whose memory is memfds, for one process after another to share:
 * the functions that benchmarks/cuinterpose_gpu.c needs, unsealed and unlike a ticket.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef uint64_t u64;

enum { GRANULARITY = 1 << 16, INVALID_HANDLE = 400, UNKNOWN = 999 };

int cuInit(unsigned int flags) { return flags; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &cuInit + device; return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return device; }
int cuCtxSetCurrent(void *context) { return !context; }
int cuCtxSynchronize(void) { return 0; }
int cuMemGetAllocationGranularity(u64 *size, const void *properties, int option)
{
	*size = GRANULARITY;
	return !properties || option;
}
int cuMemGetAllocationPropertiesFromHandle(void *properties, u64 handle)
{
	memset(properties, 0, 32);
	return handle ? 0 : INVALID_HANDLE;
}
int cuMemCreate(u64 *handle, u64 size, const void *properties, u64 flags)
{
	int fd = memfd_create("memory", MFD_CLOEXEC);

	*handle = fd;
	return !properties || flags || ftruncate(fd, size) ? UNKNOWN : 0;
}
int cuMemRelease(u64 handle) { return close(handle) ? INVALID_HANDLE : 0; }
int cuMemAddressReserve(u64 *address, u64 size, u64 alignment, u64 wanted, u64 flags)
{
	*address = (u64)mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return alignment || wanted || flags;
}
int cuMemAddressFree(u64 address, u64 size) { return munmap((void *)address, size); }
int cuMemMap(u64 address, u64 size, u64 offset, u64 handle, u64 flags)
{
	return mmap((void *)address, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, handle, offset) == MAP_FAILED || flags;
}
int cuMemUnmap(u64 address, u64 size)
{
	return mmap((void *)address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED;
}
int cuMemSetAccess(u64 address, u64 size, const void *access, u64 count) { return !address || !size || !access || count != 1; }
int cuMemExportToShareableHandle(int *fd, u64 handle, int type, u64 flags)
{
	*fd = fcntl(handle, F_DUPFD_CLOEXEC, 3);
	return *fd < 0 || type != 1 || flags ? UNKNOWN : 0;
}
int cuMemImportFromShareableHandle(u64 *handle, void *fd, int type)
{
	int own = fcntl((int)(intptr_t)fd, F_DUPFD_CLOEXEC, 3);

	*handle = own;
	return own < 0 || type != 1 ? UNKNOWN : 0;
}
int cuMemcpyHtoD_v2(u64 address, const void *from, u64 size) { memcpy((void *)address, from, size); return 0; }
int cuMemcpyDtoH_v2(void *to, u64 address, u64 size) { memcpy(to, (void *)address, size); return 0; }
