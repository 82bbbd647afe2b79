"""class/cl90cd.h: event buffers, as they are allocated and as they lie in shared memory."""

from nvproxy_model.fields import CStruct, Fd, Handle, NvU16, NvU32, NvU64, OpaquePointer

NV_EVENT_BUFFER_HEADER = CStruct(
    "NV_EVENT_BUFFER_HEADER",
    "recordGet" / NvU32,
    "recordPut" / NvU32,
    "recordCount" / NvU64,
    "recordDropcount" / NvU64,
    "vardataDropcount" / NvU64,
)

NV_EVENT_BUFFER_RECORD_HEADER = CStruct(
    "NV_EVENT_BUFFER_RECORD_HEADER",
    "type" / NvU16,
    "subtype" / NvU16,
    "varData" / NvU32,
)

NV_EVENT_BUFFER_RECORD = CStruct(
    "NV_EVENT_BUFFER_RECORD",
    "recordHeader" / NV_EVENT_BUFFER_RECORD_HEADER,
    "inlinePayload" / NvU64[1],
)

NV_EVENT_BUFFER_ALLOC_PARAMETERS = CStruct(
    "NV_EVENT_BUFFER_ALLOC_PARAMETERS",
    "bufferHeader" / OpaquePointer(),  # this and the two other addresses are written by the driver
    "recordBuffer" / OpaquePointer(),
    "recordSize" / NvU32,
    "recordCount" / NvU32,
    "vardataBuffer" / OpaquePointer(),
    "vardataBufferSize" / NvU32,
    "recordsFreeThreshold" / NvU32,
    "notificationHandle" / Fd(NvU64, null=0),  # event_buffer.c => osUserHandleToKernelPtr()
    "vardataFreeThreshold" / NvU32,
    "hSubDevice" / Handle(),
    "flags" / NvU32,
    "hBufferHeader" / Handle(depends=True, required=True),  # 0 asks for buffers mapped by the driver: gVisor refuses
    "hRecordBuffer" / Handle(depends=True),  # event_buffer.c: refAddDependant()
    "hVardataBuffer" / Handle(depends=True),
)

NV_EVENT_BUFFER_BIND_PARAMETERS = CStruct(
    "NV_EVENT_BUFFER_BIND_PARAMETERS",
    "bufferHandle" / Handle(),
    "eventType" / NvU16,
    "eventSubtype" / NvU16,
    "hClientTarget" / Handle(),
    "hSrcResource" / Handle(),
    "KernelCallbackdata" / OpaquePointer(),  # of kernel clients
)
