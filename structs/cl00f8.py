"""class/cl00f8.h: fabric memory."""

from nvproxy_model.fields import CStruct, Handle, NvU32, NvU64

_map = CStruct(
    None,
    "offset" / NvU64,
    "hVidMem" / Handle(),
    "flags" / NvU32,
)

NV00F8_ALLOCATION_PARAMETERS = CStruct(
    "NV00F8_ALLOCATION_PARAMETERS",
    "alignment" / NvU64,
    "allocSize" / NvU64,
    "pageSize" / NvU64,
    "allocFlags" / NvU32,
    "map" / _map,
)
