"""class/cl2081.h: NV2081_BINAPI."""

from nvproxy_model.fields import CStruct, NvU32

NV2081_ALLOC_PARAMETERS = CStruct(
    "NV2081_ALLOC_PARAMETERS",
    "reserved" / NvU32,
)
