"""ctrl/ctrl0080/ctrl0080msenc.h: the video encoder of a device."""

from nvproxy_model.fields import CStruct, NvU32
from nvproxy_model.structs.ctrlxxxx import caps_table

NV0080_CTRL_MSENC_GET_CAPS_PARAMS = CStruct(
    "NV0080_CTRL_MSENC_GET_CAPS_PARAMS",
    "capsTblSize" / NvU32,
    "capsTbl" / caps_table("capsTblSize"),
    renamed={"610.43.02": "NV0080_CTRL_NVENC_GET_CAPS_PARAMS"},
)
