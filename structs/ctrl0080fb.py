"""ctrl/ctrl0080/ctrl0080fb.h: the frame buffer of a device."""

from nvproxy_model.fields import CStruct, NvU32
from nvproxy_model.structs.ctrlxxxx import caps_table

NV0080_CTRL_FB_GET_CAPS_PARAMS = CStruct(
    "NV0080_CTRL_FB_GET_CAPS_PARAMS",
    "capsTblSize" / NvU32,
    "capsTbl" / caps_table("capsTblSize"),
)
