"""ctrl/ctrl0080/ctrl0080gr.h: the graphics engine of a device."""

from nvproxy_model.fields import CStruct, NvU32, NvU64, renamed_type
from nvproxy_model.structs.ctrlxxxx import NVXXXX_CTRL_XXX_INFO, caps_table, info_list

NV0080_CTRL_GR_ROUTE_INFO = CStruct(
    "NV0080_CTRL_GR_ROUTE_INFO",
    "flags" / NvU32,
    "route" / NvU64,
)

NV0080_CTRL_GR_GET_CAPS_PARAMS = CStruct(
    "NV0080_CTRL_GR_GET_CAPS_PARAMS",
    "capsTblSize" / NvU32,
    "capsTbl" / caps_table("capsTblSize"),
)

NV0080_CTRL_GR_INFO = renamed_type(NVXXXX_CTRL_XXX_INFO, "NV0080_CTRL_GR_INFO")

NV0080_CTRL_GR_GET_INFO_PARAMS = CStruct(
    "NV0080_CTRL_GR_GET_INFO_PARAMS",
    "grInfoListSize" / NvU32,
    "grInfoList" / info_list(NV0080_CTRL_GR_INFO, "grInfoListSize"),
)
