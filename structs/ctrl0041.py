"""ctrl/ctrl0041.h: surfaces of memory objects."""

from nvproxy_model.fields import CStruct, NvU32, renamed_type
from nvproxy_model.structs.ctrlxxxx import NVXXXX_CTRL_XXX_INFO, info_list

NV0041_CTRL_SURFACE_INFO = renamed_type(NVXXXX_CTRL_XXX_INFO, "NV0041_CTRL_SURFACE_INFO")

NV0041_CTRL_GET_SURFACE_INFO_PARAMS = CStruct(
    "NV0041_CTRL_GET_SURFACE_INFO_PARAMS",
    "surfaceInfoListSize" / NvU32,
    "surfaceInfoList" / info_list(NV0041_CTRL_SURFACE_INFO, "surfaceInfoListSize"),
)
