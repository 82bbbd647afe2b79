/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The intercepted surface: the one list of names and prototypes.
 *
 * Names, parameters and the versions at which they appear are those of cuda.h
 * and cudaTypedefs.h, 11.8 to 13.5.  None of these ABIs has ever changed: a
 * new one gets a new name.  With CUI_TYPES_FROM_CUDA_H the types come from
 * the real header, so that a test can compare the prototypes with it.
 */
#ifndef CUI_SURFACE_H
#define CUI_SURFACE_H

#include <stddef.h>

#ifndef CUI_TYPES_FROM_CUDA_H
typedef int CUresult, CUdevice;
typedef unsigned long long CUdeviceptr, CUmemGenericAllocationHandle, cuuint64_t;
typedef struct CUstream_st *CUstream;
typedef struct CUarrayMapInfo_st CUarrayMapInfo;
typedef struct CUmemAllocationProp_st CUmemAllocationProp;
typedef struct CUmemAccessDesc_st CUmemAccessDesc;
typedef struct CUmemLocation_st CUmemLocation;
typedef struct CUmulticastObjectProp_st CUmulticastObjectProp;
/* enumerations of the C ABI: an int's size */
typedef int CUmemAllocationHandleType, CUmemAllocationGranularity_flags,
	    CUmulticastGranularity_flags, CUdriverProcAddressQueryResult;
enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_NOT_FOUND = 500,
};
#endif

/* X(name, parameters, arguments), forwarded as they are. */
#define CUI_FORWARDED(X)                                                                           \
	X(cuMemAddressFree, (CUdeviceptr ptr, size_t size), (ptr, size))                           \
	X(cuMemAddressReserve,                                                                     \
	  (CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,                      \
	   unsigned long long flags),                                                              \
	  (ptr, size, alignment, addr, flags))                                                     \
	X(cuMemCreate,                                                                             \
	  (CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,     \
	   unsigned long long flags),                                                              \
	  (handle, size, prop, flags))                                                             \
	X(cuMemExportToShareableHandle,                                                            \
	  (void *shareableHandle, CUmemGenericAllocationHandle handle,                             \
	   CUmemAllocationHandleType handleType, unsigned long long flags),                        \
	  (shareableHandle, handle, handleType, flags))                                            \
	X(cuMemGetAccess,                                                                          \
	  (unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr),             \
	  (flags, location, ptr))                                                                  \
	X(cuMemGetAllocationGranularity,                                                           \
	  (size_t *granularity, const CUmemAllocationProp *prop,                                   \
	   CUmemAllocationGranularity_flags option),                                               \
	  (granularity, prop, option))                                                             \
	X(cuMemGetAllocationPropertiesFromHandle,                                                  \
	  (CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle), (prop, handle))        \
	X(cuMemImportFromShareableHandle,                                                          \
	  (CUmemGenericAllocationHandle *handle, void *osHandle,                                   \
	   CUmemAllocationHandleType shHandleType),                                                \
	  (handle, osHandle, shHandleType))                                                        \
	X(cuMemMap,                                                                                \
	  (CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,       \
	   unsigned long long flags),                                                              \
	  (ptr, size, offset, handle, flags))                                                      \
	X(cuMemMapArrayAsync, (CUarrayMapInfo *mapInfoList, unsigned int count, CUstream hStream), \
	  (mapInfoList, count, hStream))                                                           \
	X(cuMemMapArrayAsync_ptsz,                                                                 \
	  (CUarrayMapInfo *mapInfoList, unsigned int count, CUstream hStream),                     \
	  (mapInfoList, count, hStream))                                                           \
	X(cuMemRelease, (CUmemGenericAllocationHandle handle), (handle))                           \
	X(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle *handle, void *addr),         \
	  (handle, addr))                                                                          \
	X(cuMemSetAccess,                                                                          \
	  (CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count),               \
	  (ptr, size, desc, count))                                                                \
	X(cuMemUnmap, (CUdeviceptr ptr, size_t size), (ptr, size))                                 \
	X(cuMulticastAddDevice, (CUmemGenericAllocationHandle mcHandle, CUdevice dev),             \
	  (mcHandle, dev))                                                                         \
	X(cuMulticastBindAddr,                                                                     \
	  (CUmemGenericAllocationHandle mcHandle, size_t mcOffset, CUdeviceptr memptr,             \
	   size_t size, unsigned long long flags),                                                 \
	  (mcHandle, mcOffset, memptr, size, flags))                                               \
	X(cuMulticastBindAddr_v2,                                                                  \
	  (CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset,                   \
	   CUdeviceptr memptr, size_t size, unsigned long long flags),                             \
	  (mcHandle, dev, mcOffset, memptr, size, flags))                                          \
	X(cuMulticastBindMem,                                                                      \
	  (CUmemGenericAllocationHandle mcHandle, size_t mcOffset,                                 \
	   CUmemGenericAllocationHandle memHandle, size_t memOffset, size_t size,                  \
	   unsigned long long flags),                                                              \
	  (mcHandle, mcOffset, memHandle, memOffset, size, flags))                                 \
	X(cuMulticastBindMem_v2,                                                                   \
	  (CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset,                   \
	   CUmemGenericAllocationHandle memHandle, size_t memOffset, size_t size,                  \
	   unsigned long long flags),                                                              \
	  (mcHandle, dev, mcOffset, memHandle, memOffset, size, flags))                            \
	X(cuMulticastCreate,                                                                       \
	  (CUmemGenericAllocationHandle *mcHandle, const CUmulticastObjectProp *prop),             \
	  (mcHandle, prop))                                                                        \
	X(cuMulticastGetGranularity,                                                               \
	  (size_t *granularity, const CUmulticastObjectProp *prop,                                 \
	   CUmulticastGranularity_flags option),                                                   \
	  (granularity, prop, option))                                                             \
	X(cuMulticastUnbind,                                                                       \
	  (CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset, size_t size),     \
	  (mcHandle, dev, mcOffset, size))

/* The driver's resolvers: forwarded, and their answers looked at. */
#define CUI_RESOLVERS(X)                                                                       \
	X(cuGetProcAddress, (const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags), \
	  (symbol, pfn, cudaVersion, flags))                                                   \
	X(cuGetProcAddress_v2,                                                                 \
	  (const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,                  \
	   CUdriverProcAddressQueryResult *symbolStatus),                                      \
	  (symbol, pfn, cudaVersion, flags, symbolStatus))

/*
 * What only a tracked program needs (CUINTERPOSE_TRACK): G are calls that read or
 * write device memory or ask about an address, held back while its imports are
 * away; N are calls after which there is something that a checkpoint cannot keep,
 * or that must be known before one.  Every parameter but three is an integer or a
 * pointer, so their number is enough to forward them: each travels in a register or an
 * eight-byte slot of the stack.
 */
#define CUI_WORD unsigned long long
struct cui_ipc_handle { /* CUipcMemHandle, CUipcEventHandle: by value */
	char reserved[64];
};
#define CUI_P1 (CUI_WORD a)
#define CUI_P2 (CUI_WORD a, CUI_WORD b)
#define CUI_P3 (CUI_WORD a, CUI_WORD b, CUI_WORD c)
#define CUI_P4 (CUI_WORD a, CUI_WORD b, CUI_WORD c, CUI_WORD d)
#define CUI_P5 (CUI_WORD a, CUI_WORD b, CUI_WORD c, CUI_WORD d, CUI_WORD e)
#define CUI_P6 (CUI_WORD a, CUI_WORD b, CUI_WORD c, CUI_WORD d, CUI_WORD e, CUI_WORD f)
#define CUI_P7 (CUI_WORD a, CUI_WORD b, CUI_WORD c, CUI_WORD d, CUI_WORD e, CUI_WORD f, CUI_WORD g)
#define CUI_P8 \
	(CUI_WORD a, CUI_WORD b, CUI_WORD c, CUI_WORD d, CUI_WORD e, CUI_WORD f, CUI_WORD g, CUI_WORD h)
#define CUI_P9 \
	(CUI_WORD a, CUI_WORD b, CUI_WORD c, CUI_WORD d, CUI_WORD e, CUI_WORD f, CUI_WORD g, CUI_WORD h, CUI_WORD i)
#define CUI_P10 \
	(CUI_WORD a, CUI_WORD b, CUI_WORD c, CUI_WORD d, CUI_WORD e, CUI_WORD f, CUI_WORD g, CUI_WORD h, CUI_WORD i, \
	 CUI_WORD j)
#define CUI_P11 \
	(CUI_WORD a, CUI_WORD b, CUI_WORD c, CUI_WORD d, CUI_WORD e, CUI_WORD f, CUI_WORD g, CUI_WORD h, CUI_WORD i, \
	 CUI_WORD j, CUI_WORD k)
#define CUI_A1 (a)
#define CUI_A2 (a, b)
#define CUI_A3 (a, b, c)
#define CUI_A4 (a, b, c, d)
#define CUI_A5 (a, b, c, d, e)
#define CUI_A6 (a, b, c, d, e, f)
#define CUI_A7 (a, b, c, d, e, f, g)
#define CUI_A8 (a, b, c, d, e, f, g, h)
#define CUI_A9 (a, b, c, d, e, f, g, h, i)
#define CUI_A10 (a, b, c, d, e, f, g, h, i, j)
#define CUI_A11 (a, b, c, d, e, f, g, h, i, j, k)
#define CUI_WATCHED(G, N)                                                               \
	N(cuCtxDestroy, CUI_P1, CUI_A1)                                                 \
	N(cuCtxDestroy_v2, CUI_P1, CUI_A1)                                              \
	N(cuDestroyExternalMemory, CUI_P1, CUI_A1)                                      \
	N(cuDestroyExternalSemaphore, CUI_P1, CUI_A1)                                   \
	N(cuEventDestroy, CUI_P1, CUI_A1)                                               \
	N(cuEventDestroy_v2, CUI_P1, CUI_A1)                                            \
	G(cuGraphLaunch, CUI_P2, CUI_A2)                                                \
	G(cuGraphLaunch_ptsz, CUI_P2, CUI_A2)                                           \
	N(cuImportExternalMemory, CUI_P2, CUI_A2)                                       \
	N(cuImportExternalSemaphore, CUI_P2, CUI_A2)                                    \
	N(cuIpcCloseMemHandle, CUI_P1, CUI_A1)                                          \
	N(cuIpcGetEventHandle, CUI_P2, CUI_A2)                                          \
	N(cuIpcGetMemHandle, CUI_P2, CUI_A2)                                            \
	N(cuIpcOpenEventHandle, (CUI_WORD a, struct cui_ipc_handle b), CUI_A2)          \
	N(cuIpcOpenMemHandle, (CUI_WORD a, struct cui_ipc_handle b, CUI_WORD c), CUI_A3) \
	N(cuIpcOpenMemHandle_v2, (CUI_WORD a, struct cui_ipc_handle b, CUI_WORD c), CUI_A3) \
	G(cuLaunch, CUI_P1, CUI_A1)                                                     \
	G(cuLaunchCooperativeKernel, CUI_P10, CUI_A10)                                  \
	G(cuLaunchCooperativeKernelMultiDevice, CUI_P3, CUI_A3)                         \
	G(cuLaunchCooperativeKernel_ptsz, CUI_P10, CUI_A10)                             \
	G(cuLaunchGrid, CUI_P3, CUI_A3)                                                 \
	G(cuLaunchGridAsync, CUI_P4, CUI_A4)                                            \
	G(cuLaunchKernel, CUI_P11, CUI_A11)                                             \
	G(cuLaunchKernelEx, CUI_P4, CUI_A4)                                             \
	G(cuLaunchKernelEx_ptsz, CUI_P4, CUI_A4)                                        \
	G(cuLaunchKernel_ptsz, CUI_P11, CUI_A11)                                        \
	N(cuLogicalEndpointExport, CUI_P3, CUI_A3)                                      \
	N(cuLogicalEndpointImport, CUI_P3, CUI_A3)                                      \
	G(cuMemBatchDecompressAsync, CUI_P5, CUI_A5)                                    \
	G(cuMemBatchDecompressAsync_ptsz, CUI_P5, CUI_A5)                               \
	G(cuMemGetAddressRange_v2, CUI_P3, CUI_A3)                                      \
	N(cuMemGetHandleForAddressRange, CUI_P5, CUI_A5)                                \
	N(cuMemPoolExportToShareableHandle, CUI_P4, CUI_A4)                             \
	N(cuMemPoolImportFromShareableHandle, CUI_P4, CUI_A4)                           \
	G(cuMemcpy, CUI_P3, CUI_A3)                                                     \
	G(cuMemcpy2DAsync_v2, CUI_P2, CUI_A2)                                           \
	G(cuMemcpy2DAsync_v2_ptsz, CUI_P2, CUI_A2)                                      \
	G(cuMemcpy2DUnaligned_v2, CUI_P1, CUI_A1)                                       \
	G(cuMemcpy2DUnaligned_v2_ptds, CUI_P1, CUI_A1)                                  \
	G(cuMemcpy2D_v2, CUI_P1, CUI_A1)                                                \
	G(cuMemcpy2D_v2_ptds, CUI_P1, CUI_A1)                                           \
	G(cuMemcpy3DAsync_v2, CUI_P2, CUI_A2)                                           \
	G(cuMemcpy3DAsync_v2_ptsz, CUI_P2, CUI_A2)                                      \
	G(cuMemcpy3DBatchAsync, CUI_P5, CUI_A5)                                         \
	G(cuMemcpy3DBatchAsync_ptsz, CUI_P5, CUI_A5)                                    \
	G(cuMemcpy3DBatchAsync_v2, CUI_P4, CUI_A4)                                      \
	G(cuMemcpy3DBatchAsync_v2_ptsz, CUI_P4, CUI_A4)                                 \
	G(cuMemcpy3DPeer, CUI_P1, CUI_A1)                                               \
	G(cuMemcpy3DPeerAsync, CUI_P2, CUI_A2)                                          \
	G(cuMemcpy3DPeerAsync_ptsz, CUI_P2, CUI_A2)                                     \
	G(cuMemcpy3DPeer_ptds, CUI_P1, CUI_A1)                                          \
	G(cuMemcpy3DWithAttributesAsync, CUI_P3, CUI_A3)                                \
	G(cuMemcpy3DWithAttributesAsync_ptsz, CUI_P3, CUI_A3)                           \
	G(cuMemcpy3D_v2, CUI_P1, CUI_A1)                                                \
	G(cuMemcpy3D_v2_ptds, CUI_P1, CUI_A1)                                           \
	G(cuMemcpyAsync, CUI_P4, CUI_A4)                                                \
	G(cuMemcpyAsync_ptsz, CUI_P4, CUI_A4)                                           \
	G(cuMemcpyAtoA_v2, CUI_P5, CUI_A5)                                              \
	G(cuMemcpyAtoA_v2_ptds, CUI_P5, CUI_A5)                                         \
	G(cuMemcpyAtoD_v2, CUI_P4, CUI_A4)                                              \
	G(cuMemcpyAtoD_v2_ptds, CUI_P4, CUI_A4)                                         \
	G(cuMemcpyAtoHAsync_v2, CUI_P5, CUI_A5)                                         \
	G(cuMemcpyAtoHAsync_v2_ptsz, CUI_P5, CUI_A5)                                    \
	G(cuMemcpyAtoH_v2, CUI_P4, CUI_A4)                                              \
	G(cuMemcpyAtoH_v2_ptds, CUI_P4, CUI_A4)                                         \
	G(cuMemcpyBatchAsync, CUI_P9, CUI_A9)                                           \
	G(cuMemcpyBatchAsync_ptsz, CUI_P9, CUI_A9)                                      \
	G(cuMemcpyBatchAsync_v2, CUI_P8, CUI_A8)                                        \
	G(cuMemcpyBatchAsync_v2_ptsz, CUI_P8, CUI_A8)                                   \
	G(cuMemcpyDtoA_v2, CUI_P4, CUI_A4)                                              \
	G(cuMemcpyDtoA_v2_ptds, CUI_P4, CUI_A4)                                         \
	G(cuMemcpyDtoDAsync_v2, CUI_P4, CUI_A4)                                         \
	G(cuMemcpyDtoDAsync_v2_ptsz, CUI_P4, CUI_A4)                                    \
	G(cuMemcpyDtoD_v2, CUI_P3, CUI_A3)                                              \
	G(cuMemcpyDtoD_v2_ptds, CUI_P3, CUI_A3)                                         \
	G(cuMemcpyDtoHAsync_v2, CUI_P4, CUI_A4)                                         \
	G(cuMemcpyDtoHAsync_v2_ptsz, CUI_P4, CUI_A4)                                    \
	G(cuMemcpyDtoH_v2, CUI_P3, CUI_A3)                                              \
	G(cuMemcpyDtoH_v2_ptds, CUI_P3, CUI_A3)                                         \
	G(cuMemcpyHtoAAsync_v2, CUI_P5, CUI_A5)                                         \
	G(cuMemcpyHtoAAsync_v2_ptsz, CUI_P5, CUI_A5)                                    \
	G(cuMemcpyHtoA_v2, CUI_P4, CUI_A4)                                              \
	G(cuMemcpyHtoA_v2_ptds, CUI_P4, CUI_A4)                                         \
	G(cuMemcpyHtoDAsync_v2, CUI_P4, CUI_A4)                                         \
	G(cuMemcpyHtoDAsync_v2_ptsz, CUI_P4, CUI_A4)                                    \
	G(cuMemcpyHtoD_v2, CUI_P3, CUI_A3)                                              \
	G(cuMemcpyHtoD_v2_ptds, CUI_P3, CUI_A3)                                         \
	G(cuMemcpyPeer, CUI_P5, CUI_A5)                                                 \
	G(cuMemcpyPeerAsync, CUI_P6, CUI_A6)                                            \
	G(cuMemcpyPeerAsync_ptsz, CUI_P6, CUI_A6)                                       \
	G(cuMemcpyPeer_ptds, CUI_P5, CUI_A5)                                            \
	G(cuMemcpyWithAttributesAsync, CUI_P5, CUI_A5)                                  \
	G(cuMemcpyWithAttributesAsync_ptsz, CUI_P5, CUI_A5)                             \
	G(cuMemcpy_ptds, CUI_P3, CUI_A3)                                                \
	G(cuMemsetD16Async, CUI_P4, CUI_A4)                                             \
	G(cuMemsetD16Async_ptsz, CUI_P4, CUI_A4)                                        \
	G(cuMemsetD16_v2, CUI_P3, CUI_A3)                                               \
	G(cuMemsetD16_v2_ptds, CUI_P3, CUI_A3)                                          \
	G(cuMemsetD2D16Async, CUI_P6, CUI_A6)                                           \
	G(cuMemsetD2D16Async_ptsz, CUI_P6, CUI_A6)                                      \
	G(cuMemsetD2D16_v2, CUI_P5, CUI_A5)                                             \
	G(cuMemsetD2D16_v2_ptds, CUI_P5, CUI_A5)                                        \
	G(cuMemsetD2D32Async, CUI_P6, CUI_A6)                                           \
	G(cuMemsetD2D32Async_ptsz, CUI_P6, CUI_A6)                                      \
	G(cuMemsetD2D32_v2, CUI_P5, CUI_A5)                                             \
	G(cuMemsetD2D32_v2_ptds, CUI_P5, CUI_A5)                                        \
	G(cuMemsetD2D8Async, CUI_P6, CUI_A6)                                            \
	G(cuMemsetD2D8Async_ptsz, CUI_P6, CUI_A6)                                       \
	G(cuMemsetD2D8_v2, CUI_P5, CUI_A5)                                              \
	G(cuMemsetD2D8_v2_ptds, CUI_P5, CUI_A5)                                         \
	G(cuMemsetD32Async, CUI_P4, CUI_A4)                                             \
	G(cuMemsetD32Async_ptsz, CUI_P4, CUI_A4)                                        \
	G(cuMemsetD32_v2, CUI_P3, CUI_A3)                                               \
	G(cuMemsetD32_v2_ptds, CUI_P3, CUI_A3)                                          \
	G(cuMemsetD8Async, CUI_P4, CUI_A4)                                              \
	G(cuMemsetD8Async_ptsz, CUI_P4, CUI_A4)                                         \
	G(cuMemsetD8_v2, CUI_P3, CUI_A3)                                                \
	G(cuMemsetD8_v2_ptds, CUI_P3, CUI_A3)                                           \
	G(cuPointerGetAttribute, CUI_P3, CUI_A3)                                        \
	G(cuPointerGetAttributes, CUI_P4, CUI_A4)                                       \
	G(cuPointerSetAttribute, CUI_P3, CUI_A3)                                        \
	G(cuStreamBatchMemOp, CUI_P4, CUI_A4)                                           \
	G(cuStreamBatchMemOp_ptsz, CUI_P4, CUI_A4)                                      \
	G(cuStreamBatchMemOp_v2, CUI_P4, CUI_A4)                                        \
	G(cuStreamBatchMemOp_v2_ptsz, CUI_P4, CUI_A4)                                   \
	N(cuStreamBeginCapture, CUI_P1, CUI_A1)                                         \
	N(cuStreamBeginCaptureToGraph, CUI_P6, CUI_A6)                                  \
	N(cuStreamBeginCaptureToGraph_ptsz, CUI_P6, CUI_A6)                             \
	N(cuStreamBeginCapture_ptsz, CUI_P1, CUI_A1)                                    \
	N(cuStreamBeginCapture_v2, CUI_P2, CUI_A2)                                      \
	N(cuStreamBeginCapture_v2_ptsz, CUI_P2, CUI_A2)                                 \
	N(cuStreamEndCapture, CUI_P2, CUI_A2)                                           \
	N(cuStreamEndCapture_ptsz, CUI_P2, CUI_A2)                                      \
	G(cuStreamWaitValue32, CUI_P4, CUI_A4)                                          \
	G(cuStreamWaitValue32_ptsz, CUI_P4, CUI_A4)                                     \
	G(cuStreamWaitValue32_v2, CUI_P4, CUI_A4)                                       \
	G(cuStreamWaitValue32_v2_ptsz, CUI_P4, CUI_A4)                                  \
	G(cuStreamWaitValue64, CUI_P4, CUI_A4)                                          \
	G(cuStreamWaitValue64_ptsz, CUI_P4, CUI_A4)                                     \
	G(cuStreamWaitValue64_v2, CUI_P4, CUI_A4)                                       \
	G(cuStreamWaitValue64_v2_ptsz, CUI_P4, CUI_A4)                                  \
	G(cuStreamWriteValue32, CUI_P4, CUI_A4)                                         \
	G(cuStreamWriteValue32_ptsz, CUI_P4, CUI_A4)                                    \
	G(cuStreamWriteValue32_v2, CUI_P4, CUI_A4)                                      \
	G(cuStreamWriteValue32_v2_ptsz, CUI_P4, CUI_A4)                                 \
	G(cuStreamWriteValue64, CUI_P4, CUI_A4)                                         \
	G(cuStreamWriteValue64_ptsz, CUI_P4, CUI_A4)                                    \
	G(cuStreamWriteValue64_v2, CUI_P4, CUI_A4)                                      \
	G(cuStreamWriteValue64_v2_ptsz, CUI_P4, CUI_A4)

/* Everything that libcuda.so.1 may export and we wrap; the first part has the prototypes of cuda.h. */
#define CUI_TYPED(X) CUI_RESOLVERS(X) CUI_FORWARDED(X)
#define CUI_DRIVER(X) CUI_TYPED(X) CUI_WATCHED(X, X)

/*
 * The runtime's resolvers: X(name, generation, parameters, arguments), the
 * generation being the number in the soname libcudart.so.<N>, which is also
 * the version of the symbol.  11 takes no driverStatus, and the register that
 * would hold it is garbage.  The ByVersion forms came with 12.5.
 */
#define CUI_RT3 (const char *symbol, void **funcPtr, unsigned long long flags)
#define CUI_RT4 (const char *symbol, void **funcPtr, unsigned long long flags, int *driverStatus)
#define CUI_RT5                                                                   \
	(const char *symbol, void **funcPtr, unsigned int cudaVersion,            \
	 unsigned long long flags, int *driverStatus)
#define CUI_RUNTIME_11(X)                                                                 \
	X(cudaGetDriverEntryPoint, 11, CUI_RT3, (symbol, funcPtr, flags))                 \
	X(cudaGetDriverEntryPoint_ptsz, 11, CUI_RT3, (symbol, funcPtr, flags))
#define CUI_RUNTIME_NEWER(X, generation)                                                             \
	X(cudaGetDriverEntryPoint, generation, CUI_RT4, (symbol, funcPtr, flags, driverStatus))      \
	X(cudaGetDriverEntryPointByVersion, generation, CUI_RT5,                                     \
	  (symbol, funcPtr, cudaVersion, flags, driverStatus))                                       \
	X(cudaGetDriverEntryPointByVersion_ptsz, generation, CUI_RT5,                                \
	  (symbol, funcPtr, cudaVersion, flags, driverStatus))                                       \
	X(cudaGetDriverEntryPoint_ptsz, generation, CUI_RT4, (symbol, funcPtr, flags, driverStatus))
#define CUI_RUNTIME(X) CUI_RUNTIME_11(X) CUI_RUNTIME_NEWER(X, 12) CUI_RUNTIME_NEWER(X, 13)

#endif
