"""ctrl/ctrl90cd.h: event buffers."""

from nvproxy_model.fields import CStruct, NvBool, NvU8, NvU16, NvU32

NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS_PARAMS = CStruct(
    "NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS_PARAMS",
    "enable" / NvBool,
    "flags" / NvU32,
)

NV_EVENT_BUFFER_CTRL_CMD_UPDATE_GET_PARAMS = CStruct(
    "NV_EVENT_BUFFER_CTRL_CMD_UPDATE_GET_PARAMS",
    "recordBufferGet" / NvU32,
    "varDataBufferGet" / NvU32,
)

NV_EVENT_BUFFER_CTRL_CMD_POST_TELEMETRY_EVENT_PARAMS = CStruct(
    "NV_EVENT_BUFFER_CTRL_CMD_POST_TELEMETRY_EVENT_PARAMS",
    "eventType" / NvU32,
    "typeVersion" / NvU16,
    "eventData" / NvU8[256],
    "eventDataSz" / NvU16,
    "varData" / NvU8[256],
    "varDataSz" / NvU16,
)
