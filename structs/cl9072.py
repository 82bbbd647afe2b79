"""class/cl9072.h: GF100_DISP_SW."""

from nvproxy_model.fields import CStruct, NvU32

NV9072_ALLOCATION_PARAMETERS = CStruct(
    "NV9072_ALLOCATION_PARAMETERS",
    "logicalHeadId" / NvU32,
    "displayMask" / NvU32,
    "caps" / NvU32,
)
