"""class/cl00fe.h: memory mappers."""

from nvproxy_model.fields import CStruct, Handle, NvBool, NvU32, NvU64, since, until

NV_MEMORY_MAPPER_ALLOCATION_PARAMS = CStruct(
    "NV_MEMORY_MAPPER_ALLOCATION_PARAMS",
    until("550.40.07", "unused" / NvBool),
    since("550.40.07", "hSemaphoreSurface" / Handle(), "maxQueueSize" / NvU32),
    since("555.42.02", "hNotificationMemory" / Handle(), "notificationOffset" / NvU64),
)
