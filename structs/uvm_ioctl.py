"""nvidia-uvm/uvm_ioctl.h: the arguments of /dev/nvidia-uvm."""

from nvproxy_model.fields import (
    CStruct,
    Fd,
    Handle,
    NvBool,
    NvS32,
    NvU32,
    NvU64,
    OpaquePointer,
    Status,
    UserPointer,
    since,
    until,
)
from nvproxy_model.structs.nvCpuUuid import NvProcessorUuid
from nvproxy_model.structs.nvstatus import NV_STATUS
from nvproxy_model.structs.nvstatuscodes import NV_ERR_INSUFFICIENT_PERMISSIONS, NV_ERR_INVALID_ARGUMENT
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

# uvm_tools.c: create_event_tracker() pins both buffers until the tracker's file closes.
UVM_TOOLS_INIT_EVENT_TRACKER_PARAMS = CStruct(
    "UVM_TOOLS_INIT_EVENT_TRACKER_PARAMS",
    "queueBuffer" / OpaquePointer(NvU64),
    "queueBufferSize" / NvU64,
    "controlBuffer" / OpaquePointer(NvU64),
    "processor" / NvProcessorUuid,
    "allProcessors" / NvU32,
    "uvmFd" / Fd(NvU32, file="uvm", refuse=NV_ERR_INSUFFICIENT_PERMISSIONS),
    since("560.28.03", until("565.57.01", "version" / NvU32)),
    "rmStatus" / Status(NV_STATUS),
    since("550.54.14", until("560.28.03", "requestedVersion" / NvU32, "grantedVersion" / NvU32)),
)

UVM_TOOLS_SET_NOTIFICATION_THRESHOLD_PARAMS = CStruct(
    "UVM_TOOLS_SET_NOTIFICATION_THRESHOLD_PARAMS",
    "notificationThreshold" / NvU32,
    "rmStatus" / Status(NV_STATUS),
)

UVM_TOOLS_EVENT_QUEUE_ENABLE_EVENTS_PARAMS = CStruct(
    "UVM_TOOLS_EVENT_QUEUE_ENABLE_EVENTS_PARAMS",
    "eventTypeFlags" / NvU64,
    "rmStatus" / Status(NV_STATUS),
)

UVM_TOOLS_EVENT_QUEUE_DISABLE_EVENTS_PARAMS = CStruct(
    "UVM_TOOLS_EVENT_QUEUE_DISABLE_EVENTS_PARAMS",
    "eventTypeFlags" / NvU64,
    "rmStatus" / Status(NV_STATUS),
)

UVM_TOOLS_ENABLE_COUNTERS_PARAMS = CStruct(
    "UVM_TOOLS_ENABLE_COUNTERS_PARAMS",
    "counterTypeFlags" / NvU64,
    "rmStatus" / Status(NV_STATUS),
)

UVM_TOOLS_DISABLE_COUNTERS_PARAMS = CStruct(
    "UVM_TOOLS_DISABLE_COUNTERS_PARAMS",
    "counterTypeFlags" / NvU64,
    "rmStatus" / Status(NV_STATUS),
)

# uvm_tools.c: uvm_tools_get_processor_uuid_table_common() writes the table whole, UVM_MAX_PROCESSORS_V1 or UVM_MAX_PROCESSORS long.
UVM_TOOLS_GET_PROCESSOR_UUID_TABLE_PARAMS = CStruct(
    "UVM_TOOLS_GET_PROCESSOR_UUID_TABLE_PARAMS",
    "tablePtr" / UserPointer(NvProcessorUuid, 33, mode="out", of=NvU64),
    until("560.28.03", "count" / NvU32),
    since("560.28.03", until("565.57.01", "version" / NvU32)),
    "rmStatus" / Status(NV_STATUS),
    since("550.54.14", until("560.28.03", "version" / NvU32)),
)

UVM_TOOLS_GET_PROCESSOR_UUID_TABLE_V2_PARAMS = CStruct(
    "UVM_TOOLS_GET_PROCESSOR_UUID_TABLE_V2_PARAMS",
    "tablePtr" / UserPointer(NvProcessorUuid, 257, mode="out", of=NvU64),
    "rmStatus" / Status(NV_STATUS),
    since="565.57.01",
)

UVM_TOOLS_FLUSH_EVENTS_PARAMS = CStruct(
    "UVM_TOOLS_FLUSH_EVENTS_PARAMS",
    "rmStatus" / Status(NV_STATUS),
)
