"""ctrl/ctrl0080/ctrl0080fifo.h: channels of a device."""

from nvproxy_model.fields import CStruct, NvU32, UserPointer
from nvproxy_model.structs.ctrlxxxx import caps_table

NV0080_CTRL_FIFO_GET_CAPS_PARAMS = CStruct(
    "NV0080_CTRL_FIFO_GET_CAPS_PARAMS",
    "capsTblSize" / NvU32,
    "capsTbl" / caps_table("capsTblSize"),
)

NV0080_CTRL_FIFO_GET_CHANNELLIST_PARAMS = CStruct(
    "NV0080_CTRL_FIFO_GET_CHANNELLIST_PARAMS",
    "numChannels" / NvU32,
    "pChannelHandleList" / UserPointer(NvU32, "numChannels"),
    "pChannelList" / UserPointer(NvU32, "numChannels"),
)
