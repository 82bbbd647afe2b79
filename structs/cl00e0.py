"""class/cl00e0.h: exported memory."""

from nvproxy_model.fields import CStruct, NvU8, NvU16, NvU32

NV_EXPORT_MEM_PACKET = CStruct(
    "NV_EXPORT_MEM_PACKET",
    "uuid" / NvU8[16],
    "opaque" / NvU8[16],
    since="545.23.06",
)

NV00E0_ALLOCATION_PARAMETERS = CStruct(
    "NV00E0_ALLOCATION_PARAMETERS",
    "imexChannel" / NvU32,
    "packet" / NV_EXPORT_MEM_PACKET,
    "numMaxHandles" / NvU16,
    "flags" / NvU32,
    "metadata" / NvU8[64],
    "deviceInstanceMask" / NvU32,
    "giIdMasks" / NvU32[32],
    "numCurHandles" / NvU16,
    since="545.23.06",
)
