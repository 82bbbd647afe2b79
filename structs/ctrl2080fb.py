"""ctrl/ctrl2080/ctrl2080fb.h: frame buffer facts."""

from nvproxy_model.fields import CStruct, NvU32, renamed_type
from nvproxy_model.structs.ctrlxxxx import NVXXXX_CTRL_XXX_INFO, info_list

NV2080_CTRL_FB_INFO = renamed_type(NVXXXX_CTRL_XXX_INFO, "NV2080_CTRL_FB_INFO")

NV2080_CTRL_FB_GET_INFO_PARAMS = CStruct(
    "NV2080_CTRL_FB_GET_INFO_PARAMS",
    "fbInfoListSize" / NvU32,
    "fbInfoList" / info_list(NV2080_CTRL_FB_INFO, "fbInfoListSize"),
)
