"""nvidia-uvm/uvm_ioctl.h: the arguments of /dev/nvidia-uvm."""

from nvproxy_model.fields import CStruct, Fd, Handle, NvBool, NvS32, NvU32, NvU64, Status, since, until
from nvproxy_model.structs.nvCpuUuid import NvProcessorUuid
from nvproxy_model.structs.nvstatus import NV_STATUS
from nvproxy_model.structs.nvstatuscodes import NV_ERR_INVALID_ARGUMENT
from nvproxy_model.structs.uvm_types import UvmGpuMappingAttributes

UVM_CREATE_RANGE_GROUP_PARAMS = CStruct(
    "UVM_CREATE_RANGE_GROUP_PARAMS",
    "rangeGroupId" / NvU64,
    "rmStatus" / Status(NV_STATUS),
    until="610.43.02",
)

UVM_DESTROY_RANGE_GROUP_PARAMS = CStruct(
    "UVM_DESTROY_RANGE_GROUP_PARAMS",
    "rangeGroupId" / NvU64,
    "rmStatus" / Status(NV_STATUS),
    until="610.43.02",
)

UVM_REGISTER_GPU_VASPACE_PARAMS = CStruct(
    "UVM_REGISTER_GPU_VASPACE_PARAMS",
    "gpuUuid" / NvProcessorUuid,
    "rmCtrlFd" / Fd(negative=True),  # here and below: gVisor, uvm.go, uvmIoctlHasFrontendFD
    "hClient" / Handle(),
    "hVaSpace" / Handle(),
    "rmStatus" / Status(NV_STATUS),
)

UVM_UNREGISTER_GPU_VASPACE_PARAMS = CStruct(
    "UVM_UNREGISTER_GPU_VASPACE_PARAMS",
    "gpuUuid" / NvProcessorUuid,
    "rmStatus" / Status(NV_STATUS),
)

UVM_REGISTER_CHANNEL_PARAMS = CStruct(
    "UVM_REGISTER_CHANNEL_PARAMS",
    "gpuUuid" / NvProcessorUuid,
    "rmCtrlFd" / Fd(negative=True),
    "hClient" / Handle(),
    "hChannel" / Handle(),
    "base" / NvU64,
    "length" / NvU64,
    "rmStatus" / Status(NV_STATUS),
)

UVM_UNREGISTER_CHANNEL_PARAMS = CStruct(
    "UVM_UNREGISTER_CHANNEL_PARAMS",
    until("590.44.01", "gpuUuid" / NvProcessorUuid),
    "hClient" / Handle(),
    "hChannel" / Handle(),
    "rmStatus" / Status(NV_STATUS),
)

UVM_ENABLE_PEER_ACCESS_PARAMS = CStruct(
    "UVM_ENABLE_PEER_ACCESS_PARAMS",
    "gpuUuidA" / NvProcessorUuid,
    "gpuUuidB" / NvProcessorUuid,
    "rmStatus" / Status(NV_STATUS),
)

UVM_DISABLE_PEER_ACCESS_PARAMS = CStruct(
    "UVM_DISABLE_PEER_ACCESS_PARAMS",
    "gpuUuidA" / NvProcessorUuid,
    "gpuUuidB" / NvProcessorUuid,
    "rmStatus" / Status(NV_STATUS),
)

UVM_SET_RANGE_GROUP_PARAMS = CStruct(
    "UVM_SET_RANGE_GROUP_PARAMS",
    "rangeGroupId" / NvU64,
    "requestedBase" / NvU64,
    "length" / NvU64,
    "rmStatus" / Status(NV_STATUS),
    until="610.43.02",
)

UVM_MAP_EXTERNAL_ALLOCATION_PARAMS = CStruct(
    "UVM_MAP_EXTERNAL_ALLOCATION_PARAMS",
    "base" / NvU64,
    "length" / NvU64,
    "offset" / NvU64,
    until("550.54.14", "perGpuAttributes" / UvmGpuMappingAttributes[32]),
    since("550.54.14", "perGpuAttributes" / UvmGpuMappingAttributes[256]),
    "gpuAttributesCount" / NvU64,
    "rmCtrlFd" / Fd(negative=True),
    "hClient" / NvU32,
    "hMemory" / NvU32,
    "rmStatus" / Status(NV_STATUS),
)

UVM_FREE_PARAMS = CStruct(
    "UVM_FREE_PARAMS",
    "base" / NvU64,
    until("590.44.01", "length" / NvU64),
    "rmStatus" / Status(NV_STATUS),
)

UVM_REGISTER_GPU_PARAMS = CStruct(
    "UVM_REGISTER_GPU_PARAMS",
    "gpu_uuid" / NvProcessorUuid,
    "numaEnabled" / NvBool,
    "numaNodeId" / NvS32,
    "rmCtrlFd" / Fd(negative=True),
    "hClient" / Handle(),
    "hSmcPartRef" / Handle(),
    "rmStatus" / Status(NV_STATUS),
)

UVM_UNREGISTER_GPU_PARAMS = CStruct(
    "UVM_UNREGISTER_GPU_PARAMS",
    "gpu_uuid" / NvProcessorUuid,
    "rmStatus" / Status(NV_STATUS),
)

UVM_PAGEABLE_MEM_ACCESS_PARAMS = CStruct(
    "UVM_PAGEABLE_MEM_ACCESS_PARAMS",
    "pageableMemAccess" / NvBool,
    "rmStatus" / Status(NV_STATUS),
)

UVM_SET_PREFERRED_LOCATION_PARAMS = CStruct(
    "UVM_SET_PREFERRED_LOCATION_PARAMS",
    "requestedBase" / NvU64,
    "length" / NvU64,
    "preferredLocation" / NvProcessorUuid,
    since("550.40.07", "preferredCpuNumaNode" / NvS32),
    "rmStatus" / Status(NV_STATUS),
)

UVM_UNSET_PREFERRED_LOCATION_PARAMS = CStruct(
    "UVM_UNSET_PREFERRED_LOCATION_PARAMS",
    "requestedBase" / NvU64,
    "length" / NvU64,
    "rmStatus" / Status(NV_STATUS),
)

UVM_ENABLE_READ_DUPLICATION_PARAMS = CStruct(
    "UVM_ENABLE_READ_DUPLICATION_PARAMS",
    "requestedBase" / NvU64,
    "length" / NvU64,
    "rmStatus" / Status(NV_STATUS),
)

UVM_DISABLE_READ_DUPLICATION_PARAMS = CStruct(
    "UVM_DISABLE_READ_DUPLICATION_PARAMS",
    "requestedBase" / NvU64,
    "length" / NvU64,
    "rmStatus" / Status(NV_STATUS),
)

UVM_SET_ACCESSED_BY_PARAMS = CStruct(
    "UVM_SET_ACCESSED_BY_PARAMS",
    "requestedBase" / NvU64,
    "length" / NvU64,
    "accessedByUuid" / NvProcessorUuid,
    "rmStatus" / Status(NV_STATUS),
)

UVM_UNSET_ACCESSED_BY_PARAMS = CStruct(
    "UVM_UNSET_ACCESSED_BY_PARAMS",
    "requestedBase" / NvU64,
    "length" / NvU64,
    "accessedByUuid" / NvProcessorUuid,
    "rmStatus" / Status(NV_STATUS),
)

UVM_MIGRATE_PARAMS = CStruct(
    "UVM_MIGRATE_PARAMS",
    "base" / NvU64,
    "length" / NvU64,
    "destinationUuid" / NvProcessorUuid,
    "flags" / NvU32,
    "semaphoreAddress" / NvU64,
    "semaphorePayload" / NvU32,
    until("550.40.07", "cpuNumaNode" / NvU32),
    since("550.40.07", "cpuNumaNode" / NvS32),
    "userSpaceStart" / NvU64,
    "userSpaceLength" / NvU64,
    "rmStatus" / Status(NV_STATUS),
)

UVM_MIGRATE_RANGE_GROUP_PARAMS = CStruct(
    "UVM_MIGRATE_RANGE_GROUP_PARAMS",
    "rangeGroupId" / NvU64,
    "destinationUuid" / NvProcessorUuid,
    "rmStatus" / Status(NV_STATUS),
    until="610.43.02",
)

UVM_TOOLS_READ_PROCESS_MEMORY_PARAMS = CStruct(
    "UVM_TOOLS_READ_PROCESS_MEMORY_PARAMS",
    "buffer" / NvU64,
    "size" / NvU64,
    "targetVa" / NvU64,
    "bytesRead" / NvU64,
    "rmStatus" / Status(NV_STATUS),
)

UVM_TOOLS_WRITE_PROCESS_MEMORY_PARAMS = CStruct(
    "UVM_TOOLS_WRITE_PROCESS_MEMORY_PARAMS",
    "buffer" / NvU64,
    "size" / NvU64,
    "targetVa" / NvU64,
    "bytesWritten" / NvU64,
    "rmStatus" / Status(NV_STATUS),
)

UVM_MAP_DYNAMIC_PARALLELISM_REGION_PARAMS = CStruct(
    "UVM_MAP_DYNAMIC_PARALLELISM_REGION_PARAMS",
    "base" / NvU64,
    "length" / NvU64,
    "gpuUuid" / NvProcessorUuid,
    "rmStatus" / Status(NV_STATUS),
)

UVM_UNMAP_EXTERNAL_PARAMS = CStruct(
    "UVM_UNMAP_EXTERNAL_PARAMS",
    "base" / NvU64,
    "length" / NvU64,
    "gpuUuid" / NvProcessorUuid,
    "rmStatus" / Status(NV_STATUS),
)

UVM_ALLOC_SEMAPHORE_POOL_PARAMS = CStruct(
    "UVM_ALLOC_SEMAPHORE_POOL_PARAMS",
    "base" / NvU64,
    "length" / NvU64,
    until("550.54.14", "perGpuAttributes" / UvmGpuMappingAttributes[32]),
    since("550.54.14", "perGpuAttributes" / UvmGpuMappingAttributes[256]),
    "gpuAttributesCount" / NvU64,
    "rmStatus" / Status(NV_STATUS),
)

UVM_PAGEABLE_MEM_ACCESS_ON_GPU_PARAMS = CStruct(
    "UVM_PAGEABLE_MEM_ACCESS_ON_GPU_PARAMS",
    "gpu_uuid" / NvProcessorUuid,
    "pageableMemAccess" / NvBool,
    "rmStatus" / Status(NV_STATUS),
)

UVM_VALIDATE_VA_RANGE_PARAMS = CStruct(
    "UVM_VALIDATE_VA_RANGE_PARAMS",
    "base" / NvU64,
    "length" / NvU64,
    "rmStatus" / Status(NV_STATUS),
)

UVM_CREATE_EXTERNAL_RANGE_PARAMS = CStruct(
    "UVM_CREATE_EXTERNAL_RANGE_PARAMS",
    "base" / NvU64,
    "length" / NvU64,
    "rmStatus" / Status(NV_STATUS),
)

UVM_MM_INITIALIZE_PARAMS = CStruct(
    "UVM_MM_INITIALIZE_PARAMS",
    "uvmFd" / Fd(file="uvm", refuse=NV_ERR_INVALID_ARGUMENT),
    "rmStatus" / Status(NV_STATUS),
)
