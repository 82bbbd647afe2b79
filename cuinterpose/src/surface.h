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

/* X(name, parameters, arguments), forwarded as they are; sorted as strcmp sorts. */
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

/* Everything that libcuda.so.1 may export and we wrap, sorted. */
#define CUI_DRIVER(X) CUI_RESOLVERS(X) CUI_FORWARDED(X)

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
