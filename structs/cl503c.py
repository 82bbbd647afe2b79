"""class/cl503c.h: third-party peer-to-peer objects."""

from nvproxy_model.fields import CStruct, NvU32

NV503C_ALLOC_PARAMETERS = CStruct(
    "NV503C_ALLOC_PARAMETERS",
    "flags" / NvU32,
)
