"""class/clb0b5sw.h: copy engines."""

from nvproxy_model.fields import CStruct, NvU32

NVB0B5_ALLOCATION_PARAMETERS = CStruct(
    "NVB0B5_ALLOCATION_PARAMETERS",
    "version" / NvU32,
    "engineType" / NvU32,
)
