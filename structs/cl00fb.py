"""class/cl00fb.h: imported fabric memory."""

from nvproxy_model.fields import CStruct, NvU8, NvU16, NvU32, NvU64

NV00FB_ALLOCATION_PARAMETERS = CStruct(
    "NV00FB_ALLOCATION_PARAMETERS",
    "exportUuid" / NvU8[16],
    "index" / NvU16,
    "flags" / NvU32,
    "id" / NvU64,
    since="550.40.07",
)
