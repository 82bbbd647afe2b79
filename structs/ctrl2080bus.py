"""ctrl/ctrl2080/ctrl2080bus.h: bus facts."""

from nvproxy_model.fields import CStruct, NvU32, renamed_type
from nvproxy_model.structs.ctrlxxxx import NVXXXX_CTRL_XXX_INFO, info_list

NV2080_CTRL_BUS_INFO = renamed_type(NVXXXX_CTRL_XXX_INFO, "NV2080_CTRL_BUS_INFO")

NV2080_CTRL_BUS_GET_INFO_PARAMS = CStruct(
    "NV2080_CTRL_BUS_GET_INFO_PARAMS",
    "busInfoListSize" / NvU32,
    "busInfoList" / info_list(NV2080_CTRL_BUS_INFO, "busInfoListSize"),
)
