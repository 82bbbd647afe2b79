"""class/cl2080.h: subdevices."""

from nvproxy_model.fields import CStruct, NvU32

NV2080_ALLOC_PARAMETERS = CStruct(
    "NV2080_ALLOC_PARAMETERS",
    "subDeviceId" / NvU32,
)
