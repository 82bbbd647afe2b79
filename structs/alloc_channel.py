"""alloc/alloc_channel.h: channels."""

from nvproxy_model.fields import CStruct, Handle, NvU32, NvU64, since

NV_MEMORY_DESC_PARAMS = CStruct(
    "NV_MEMORY_DESC_PARAMS",
    "base" / NvU64,
    "size" / NvU64,
    "addressSpace" / NvU32,
    "cacheAttrib" / NvU32,
)

NV_CHANNEL_ALLOC_PARAMS = CStruct(
    "NV_CHANNEL_ALLOC_PARAMS",
    "hObjectError" / Handle(),
    "hObjectBuffer" / Handle(),
    "gpFifoOffset" / NvU64,
    "gpFifoEntries" / NvU32,
    "flags" / NvU32,
    "hContextShare" / Handle(depends=True),
    "hVASpace" / Handle(depends=True),
    since("610.43.02", "hHandleVASpace" / Handle()),  # no edge: gVisor, rmAllocChannelV610
    "hUserdMemory" / Handle()[8],
    "userdOffset" / NvU64[8],
    "engineType" / NvU32,
    "cid" / NvU32,
    "subDeviceId" / NvU32,
    "hObjectEccError" / Handle(),
    "instanceMem" / NV_MEMORY_DESC_PARAMS,
    "userdMem" / NV_MEMORY_DESC_PARAMS,
    "ramfcMem" / NV_MEMORY_DESC_PARAMS,
    "mthdbufMem" / NV_MEMORY_DESC_PARAMS,
    "hPhysChannelGroup" / Handle(),
    "internalFlags" / NvU32,
    "errorNotifierMem" / NV_MEMORY_DESC_PARAMS,
    "eccErrorNotifierMem" / NV_MEMORY_DESC_PARAMS,
    "ProcessID" / NvU32,
    "SubProcessID" / NvU32,
    "encryptIv" / NvU32[3],
    "decryptIv" / NvU32[3],
    "hmacNonce" / NvU32[8],
    since("570.86.15", "tpcConfigID" / NvU32),
)
