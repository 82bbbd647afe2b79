"""ctrl/ctrl2080/ctrl2080event.h: binding events to event buffers."""

from nvproxy_model.fields import CStruct, Handle, NvBool, NvU32, NvU64, enum

NV2080_CTRL_EVENT_VIDEO_BIND_EVTBUF_PARAMS = CStruct(
    "NV2080_CTRL_EVENT_VIDEO_BIND_EVTBUF_PARAMS",
    "hEventBuffer" / Handle(),
    "recordSize" / NvU32,
    "levelOfDetail" / enum("NV2080_CTRL_EVENT_VIDEO_BIND_EVTBUF_LOD"),
    "eventFilter" / NvU32,
    "bAllUsers" / NvBool,
)

NV2080_CTRL_EVENT_RATS_GSP_TRACE_BIND_EVTBUF_PARAMS = CStruct(
    "NV2080_CTRL_EVENT_RATS_GSP_TRACE_BIND_EVTBUF_PARAMS",
    "hEventBuffer" / Handle(),
    "tracepointMask" / NvU64,
    "gspLoggingBufferSize" / NvU32,
    "gspLoggingBufferWatermark" / NvU32,
    since="550.40.07",
)
