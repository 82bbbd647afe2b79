"""ctrl/ctrl0000/ctrl0000gpu.h: GPUs known to a client."""

from nvproxy_model.fields import CStruct, NvS32, NvU8, NvU32, OpaquePointer

NV0000_CTRL_GPU_GET_ID_INFO_PARAMS = CStruct(
    "NV0000_CTRL_GPU_GET_ID_INFO_PARAMS",
    "gpuId" / NvU32,
    "gpuFlags" / NvU32,
    "deviceInstance" / NvU32,
    "subDeviceInstance" / NvU32,
    "szName" / OpaquePointer(cleared=True),  # the driver reads it nowhere. gVisor: ctrlGpuGetIDInfo
    "sliStatus" / NvU32,
    "boardId" / NvU32,
    "gpuInstance" / NvU32,
    "numaId" / NvS32,
)

NV0000_CTRL_GPU_ATTACH_IDS_PARAMS = CStruct(
    "NV0000_CTRL_GPU_ATTACH_IDS_PARAMS",
    "gpuIds" / NvU32[32],
    "failedId" / NvU32,
)

NV0000_CTRL_GPU_GET_UUID_FROM_GPU_ID_PARAMS = CStruct(
    "NV0000_CTRL_GPU_GET_UUID_FROM_GPU_ID_PARAMS",
    "gpuId" / NvU32,
    "flags" / NvU32,
    "gpuUuid" / NvU8[256],
    "uuidStrLen" / NvU32,
)
