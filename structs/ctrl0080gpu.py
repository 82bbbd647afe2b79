"""ctrl/ctrl0080/ctrl0080gpu.h: classes of a device."""

from nvproxy_model.fields import CStruct, NvU32
from nvproxy_model.structs.ctrlxxxx import u32_list

NV0080_CTRL_GPU_GET_CLASSLIST_PARAMS = CStruct(
    "NV0080_CTRL_GPU_GET_CLASSLIST_PARAMS",
    "numClasses" / NvU32,
    "classList" / u32_list("numClasses"),
)
