"""class/cl0070.h: NV01_MEMORY_VIRTUAL."""

from nvproxy_model.fields import CStruct, Handle, NvU64

NV_MEMORY_VIRTUAL_SYSMEM_DYNAMIC_HVASPACE = 0xFFFFFFFF

NV_MEMORY_VIRTUAL_ALLOCATION_PARAMS = CStruct(
    "NV_MEMORY_VIRTUAL_ALLOCATION_PARAMS",
    "offset" / NvU64,
    "limit" / NvU64,
    "hVASpace" / Handle(depends=True, null=(0, NV_MEMORY_VIRTUAL_SYSMEM_DYNAMIC_HVASPACE)),  # gVisor: rmAllocMemoryVirtual
)
