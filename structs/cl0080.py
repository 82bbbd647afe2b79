"""class/cl0080.h: devices."""

from nvproxy_model.fields import CStruct, Handle, NvU32, NvU64, NvV32

NV0080_ALLOC_PARAMETERS = CStruct(
    "NV0080_ALLOC_PARAMETERS",
    "deviceId" / NvU32,
    "hClientShare" / Handle(),
    "hTargetClient" / Handle(),
    "hTargetDevice" / Handle(),
    "flags" / NvV32,
    "vaSpaceSize" / NvU64,
    "vaStartInternal" / NvU64,
    "vaLimitInternal" / NvU64,
    "vaMode" / NvV32,
)
