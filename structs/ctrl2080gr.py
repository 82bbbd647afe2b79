"""ctrl/ctrl2080/ctrl2080gr.h: the graphics engine of a subdevice, and its context-switch events."""

from nvproxy_model.fields import CStruct, Handle, NvBool, NvU32, enum, renamed_type
from nvproxy_model.structs.ctrl0080gr import NV0080_CTRL_GR_INFO, NV0080_CTRL_GR_ROUTE_INFO
from nvproxy_model.structs.ctrlxxxx import info_list

NV2080_CTRL_GR_ROUTE_INFO = renamed_type(NV0080_CTRL_GR_ROUTE_INFO, "NV2080_CTRL_GR_ROUTE_INFO")

NV2080_CTRL_GR_INFO = renamed_type(NV0080_CTRL_GR_INFO, "NV2080_CTRL_GR_INFO")

NV2080_CTRL_GR_GET_INFO_PARAMS = CStruct(
    "NV2080_CTRL_GR_GET_INFO_PARAMS",
    "grInfoListSize" / NvU32,
    "grInfoList" / info_list(NV2080_CTRL_GR_INFO, "grInfoListSize"),
    "grRouteInfo" / NV2080_CTRL_GR_ROUTE_INFO,
)

NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_PARAMS = CStruct(
    "NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_PARAMS",
    "hEventBuffer" / Handle(),
    "recordSize" / NvU32,
    "levelOfDetail" / enum("NV2080_CTRL_GR_FECS_BIND_EVTBUF_LOD"),
    "eventFilter" / NvU32,
    "bAllUsers" / NvBool,
)

NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_V2_PARAMS = CStruct(
    "NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_V2_PARAMS",
    "hEventBuffer" / Handle(),
    "recordSize" / NvU32,
    "levelOfDetail" / enum("NV2080_CTRL_GR_FECS_BIND_EVTBUF_LOD"),
    "eventFilter" / NvU32,
    "bAllUsers" / NvBool,
    "reasonCode" / NvU32,
)
