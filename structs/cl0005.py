"""class/cl0005.h: event objects."""

from nvproxy_model.fields import CStruct, Fd, Handle, NvP64, NvV32

NV0005_ALLOC_PARAMETERS = CStruct(
    "NV0005_ALLOC_PARAMETERS",
    "hParentClient" / Handle(),
    "hSrcResource" / Handle(),
    "hClass" / NvV32,
    "notifyIndex" / NvV32,
    "data" / Fd(NvP64),  # NV01_EVENT_OS_EVENT: event_api.c => osUserHandleToKernelPtr()
)
