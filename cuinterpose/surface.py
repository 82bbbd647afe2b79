"""The names that the shim covers, as src/surface.h lists them; a test holds the two together."""

from __future__ import annotations

DRIVER = (
    "cuGetProcAddress",
    "cuGetProcAddress_v2",
    "cuMemAddressFree",
    "cuMemAddressReserve",
    "cuMemCreate",
    "cuMemExportToShareableHandle",
    "cuMemGetAccess",
    "cuMemGetAllocationGranularity",
    "cuMemGetAllocationPropertiesFromHandle",
    "cuMemImportFromShareableHandle",
    "cuMemMap",
    "cuMemMapArrayAsync",
    "cuMemMapArrayAsync_ptsz",
    "cuMemRelease",
    "cuMemRetainAllocationHandle",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMulticastAddDevice",
    "cuMulticastBindAddr",
    "cuMulticastBindAddr_v2",
    "cuMulticastBindMem",
    "cuMulticastBindMem_v2",
    "cuMulticastCreate",
    "cuMulticastGetGranularity",
    "cuMulticastUnbind",
)
RUNTIME = (
    "cudaGetDriverEntryPoint",
    "cudaGetDriverEntryPointByVersion",
    "cudaGetDriverEntryPointByVersion_ptsz",
    "cudaGetDriverEntryPoint_ptsz",
)
RUNTIME_SONAMES = ("libcudart.so.11.0", "libcudart.so.12", "libcudart.so.13")
DRIVER_SONAME = "libcuda.so.1"
