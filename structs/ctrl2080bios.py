"""ctrl/ctrl2080/ctrl2080bios.h: VBIOS facts."""

from nvproxy_model.fields import CStruct, NvU32, renamed_type
from nvproxy_model.structs.ctrlxxxx import NVXXXX_CTRL_XXX_INFO, info_list

NV2080_CTRL_BIOS_INFO = renamed_type(NVXXXX_CTRL_XXX_INFO, "NV2080_CTRL_BIOS_INFO")

NV2080_CTRL_BIOS_GET_INFO_PARAMS = CStruct(
    "NV2080_CTRL_BIOS_GET_INFO_PARAMS",
    "biosInfoListSize" / NvU32,
    "biosInfoList" / info_list(NV2080_CTRL_BIOS_INFO, "biosInfoListSize"),
)
