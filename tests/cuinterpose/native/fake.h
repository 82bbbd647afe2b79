/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The surface as cudaTypedefs.h gives it, written down apart from the shim's
 * own list: F(ABI symbol, base name, since, parameters).
 */
#ifndef FAKE_H
#define FAKE_H

#include <stdint.h>

#define FAKE_VMM(F)                                                   \
	F(cuMemAddressReserve, cuMemAddressReserve, 10020, 5)         \
	F(cuMemAddressFree, cuMemAddressFree, 10020, 2)               \
	F(cuMemCreate, cuMemCreate, 10020, 4)                         \
	F(cuMemRelease, cuMemRelease, 10020, 1)                       \
	F(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000, 2) \
	F(cuMemMap, cuMemMap, 10020, 5)                               \
	F(cuMemMapArrayAsync, cuMemMapArrayAsync, 11010, 3)           \
	F(cuMemMapArrayAsync_ptsz, cuMemMapArrayAsync, 11010, 3)      \
	F(cuMemUnmap, cuMemUnmap, 10020, 2)                           \
	F(cuMemSetAccess, cuMemSetAccess, 10020, 4)                   \
	F(cuMemGetAccess, cuMemGetAccess, 10020, 3)                   \
	F(cuMemExportToShareableHandle, cuMemExportToShareableHandle, 10020, 4) \
	F(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, 10020, 3) \
	F(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, 10020, 3) \
	F(cuMemGetAllocationPropertiesFromHandle, cuMemGetAllocationPropertiesFromHandle, 10020, 2) \
	FAKE_WATCHED(F)
/* some of what is covered for tracked programs only */
#define FAKE_WATCHED(F)                                               \
	F(cuCtxDestroy_v2, cuCtxDestroy, 4000, 1)                     \
	F(cuGraphLaunch, cuGraphLaunch, 10000, 2)                     \
	F(cuIpcGetMemHandle, cuIpcGetMemHandle, 4010, 2)              \
	F(cuMemcpyHtoD_v2, cuMemcpyHtoD, 3020, 3)                     \
	F(cuMemcpyPeerAsync, cuMemcpyPeerAsync, 4000, 6)              \
	F(cuMemsetD2D8_v2, cuMemsetD2D8, 3020, 5)                     \
	F(cuStreamBeginCapture_v2, cuStreamBeginCapture, 10010, 2)
#define FAKE_MULTICAST(F)                                             \
	F(cuMulticastCreate, cuMulticastCreate, 12010, 2)             \
	F(cuMulticastAddDevice, cuMulticastAddDevice, 12010, 2)       \
	F(cuMulticastBindMem, cuMulticastBindMem, 12010, 6)           \
	F(cuMulticastBindAddr, cuMulticastBindAddr, 12010, 5)         \
	F(cuMulticastUnbind, cuMulticastUnbind, 12010, 4)             \
	F(cuMulticastGetGranularity, cuMulticastGetGranularity, 12010, 3)
#define FAKE_DEVICE_EXPLICIT(F)                                       \
	F(cuMulticastBindMem_v2, cuMulticastBindMem, 13010, 7)        \
	F(cuMulticastBindAddr_v2, cuMulticastBindAddr, 13010, 6)
/* not in the surface */
#define FAKE_OTHERS(F)                                                \
	F(cuInit, cuInit, 2000, 1)                                    \
	F(cuMemAlloc_v2, cuMemAlloc, 3020, 2)                         \
	F(cuMemFree_v2, cuMemFree, 3020, 1)                           \
	F(cuMemMapOther, cuMemMapOther, 12000, 1)
#define FAKE_EVERY(F) FAKE_VMM(F) FAKE_MULTICAST(F) FAKE_DEVICE_EXPLICIT(F) FAKE_OTHERS(F)

/* What the last call of a fake driver function got. */
struct fake_call {
	const char *symbol;
	uint64_t arguments[7];
	unsigned int calls;
};
const struct fake_call *fake_last_call(void);
void *fake_entry(const char *symbol);

/* A request for this version fails with 999, and the address is written all the same. */
enum { FAKE_FAILING_VERSION = 11111 };

#endif
