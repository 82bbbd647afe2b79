"""nvos.h: the arguments of the RM escapes, and the allocation parameters that have no class header."""

from nvproxy_model.fields import (
    CStruct,
    CUnion,
    Handle,
    NvBool,
    NvHandle,
    NvS16,
    NvS32,
    NvU32,
    NvU64,
    NvV32,
    OpaquePointer,
    Status,
    UserPointer,
    since,
    until,
)
from nvproxy_model.structs.rs_access import RS_ACCESS_MASK, RS_SHARE_POLICY

NVOS00_PARAMETERS = CStruct(
    "NVOS00_PARAMETERS",
    "hRoot" / Handle(),
    "hObjectParent" / Handle(),
    "hObjectOld" / Handle(),
    "status" / Status(NvV32),
)

NVOS02_PARAMETERS = CStruct(
    "NVOS02_PARAMETERS",
    "hRoot" / Handle(),
    "hObjectParent" / Handle(),
    "hObjectNew" / Handle(),
    "hClass" / NvV32,
    "flags" / NvV32,
    "pMemory" / OpaquePointer(),
    "limit" / NvU64,
    "status" / Status(NvV32),
)

NVOS21_PARAMETERS = CStruct(
    "NVOS21_PARAMETERS",
    "hRoot" / Handle(),
    "hObjectParent" / Handle(),
    "hObjectNew" / Handle(),
    "hClass" / NvV32,
    "pAllocParms" / UserPointer(None),  # as long as the class has it, whatever paramsSize says
    "paramsSize" / NvU32,
    "status" / Status(NvV32),
)

NVOS64_PARAMETERS = CStruct(
    "NVOS64_PARAMETERS",
    "hRoot" / Handle(),
    "hObjectParent" / Handle(),
    "hObjectNew" / Handle(),
    "hClass" / NvV32,
    "pAllocParms" / UserPointer(None),  # as in NVOS21_PARAMETERS
    "pRightsRequested" / UserPointer(RS_ACCESS_MASK, null="forward"),
    "paramsSize" / NvU32,
    "flags" / NvU32,
    "status" / Status(NvV32),
)

# With no channels the driver is shown three NULLs. gVisor: frontend.go, rmIdleChannels.
_CHANNELS = UserPointer(NvHandle, "numChannels", empty="forward", late=True)

NVOS30_PARAMETERS = CStruct(
    "NVOS30_PARAMETERS",
    "hClient" / Handle(),
    "hDevice" / Handle(),
    "hChannel" / Handle(),
    "numChannels" / NvV32,
    "phClients" / _CHANNELS,
    "phDevices" / _CHANNELS,
    "phChannels" / _CHANNELS,
    "flags" / NvV32,
    "timeout" / NvV32,
    "status" / Status(NvV32),
)

# The members of NVOS32_PARAMETERS.data; function says which one holds. nvproxy admits AllocSize only.
_AllocSize = CStruct(
    None,
    "owner" / NvU32,
    "hMemory" / Handle(),
    "type" / NvU32,
    "flags" / NvU32,
    "attr" / NvU32,
    "format" / NvU32,
    "comprCovg" / NvU32,
    "zcullCovg" / NvU32,
    "partitionStride" / NvU32,
    "width" / NvU32,
    "height" / NvU32,
    "size" / NvU64,
    "alignment" / NvU64,
    "offset" / NvU64,
    "limit" / NvU64,
    "address" / UserPointer(NvU64, null="forward"),
    "rangeBegin" / NvU64,
    "rangeEnd" / NvU64,
    "attr2" / NvU32,
    "ctagOffset" / NvU32,
    since("550.40.07", "numaNode" / NvS32),
)

_AllocTiledPitchHeight = CStruct(
    None,
    "owner" / NvU32,
    "hMemory" / Handle(),
    "type" / NvU32,
    "flags" / NvU32,
    "height" / NvU32,
    "pitch" / NvS32,
    "attr" / NvU32,
    "width" / NvU32,
    "format" / NvU32,
    "comprCovg" / NvU32,
    "zcullCovg" / NvU32,
    "partitionStride" / NvU32,
    "size" / NvU64,
    "alignment" / NvU64,
    "offset" / NvU64,
    "limit" / NvU64,
    "address" / OpaquePointer(),
    "rangeBegin" / NvU64,
    "rangeEnd" / NvU64,
    "attr2" / NvU32,
    "ctagOffset" / NvU32,
    since("550.40.07", "numaNode" / NvS32),
)

_Free = CStruct(
    None,
    "owner" / NvU32,
    "hMemory" / Handle(),
    "flags" / NvU32,
)

_ReleaseCompr = CStruct(
    None,
    "owner" / NvU32,
    "flags" / NvU32,
    "hMemory" / Handle(),
)

_ReacquireCompr = CStruct(
    None,
    "owner" / NvU32,
    "flags" / NvU32,
    "hMemory" / Handle(),
)

_Info = CStruct(
    None,
    "attr" / NvU32,
    "offset" / NvU64,
    "size" / NvU64,
    "base" / NvU64,
)

_Dump = CStruct(
    None,
    "flags" / NvU32,
    "pBuffer" / OpaquePointer(),
    "numBlocks" / NvU32,
)

_AllocSizeRange = CStruct(
    None,
    "owner" / NvU32,
    "hMemory" / Handle(),
    "type" / NvU32,
    "flags" / NvU32,
    "attr" / NvU32,
    "format" / NvU32,
    "comprCovg" / NvU32,
    "zcullCovg" / NvU32,
    "partitionStride" / NvU32,
    "size" / NvU64,
    "alignment" / NvU64,
    "offset" / NvU64,
    "limit" / NvU64,
    "rangeBegin" / NvU64,
    "rangeEnd" / NvU64,
    "address" / OpaquePointer(),
    "attr2" / NvU32,
    "ctagOffset" / NvU32,
    since("550.40.07", "numaNode" / NvS32),
)

_AllocHintAlignment = CStruct(
    None,
    "alignType" / NvU32,
    "alignAttr" / NvU32,
    "alignInputFlags" / NvU32,
    "alignSize" / NvU64,
    "alignHeight" / NvU32,
    "alignWidth" / NvU32,
    "alignPitch" / NvU32,
    "alignPad" / NvU32,
    "alignMask" / NvU32,
    until("575.51.02", "alignOutputFlags" / NvU32[4], "alignBank" / NvU32[4]),
    "alignKind" / NvU32,
    "alignAdjust" / NvU32,
    "alignAttr2" / NvU32,
)

_comprInfo = CStruct(
    None,
    "compPageShift" / NvU32,
    "compressedKind" / NvU32,
    "compTagLineMin" / NvU32,
    "compPageIndexLo" / NvU32,
    "compPageIndexHi" / NvU32,
    "compTagLineMultiplier" / NvU32,
)

_HwAlloc = CStruct(
    None,
    "allocOwner" / NvU32,
    "allochMemory" / Handle(),
    "flags" / NvU32,
    "allocType" / NvU32,
    "allocAttr" / NvU32,
    "allocInputFlags" / NvU32,
    "allocSize" / NvU64,
    "allocHeight" / NvU32,
    "allocWidth" / NvU32,
    "allocPitch" / NvU32,
    "allocMask" / NvU32,
    "allocComprCovg" / NvU32,
    "allocZcullCovg" / NvU32,
    "bindResultFunc" / OpaquePointer(),
    "pHandle" / OpaquePointer(),
    "hResourceHandle" / Handle(),
    "retAttr" / NvU32,
    "kind" / NvU32,
    "osDeviceHandle" / NvU64,
    "allocAttr2" / NvU32,
    "retAttr2" / NvU32,
    "allocAddr" / NvU64,
    "comprInfo" / _comprInfo,
    "uncompressedKind" / NvU32,
)

_HwFree = CStruct(
    None,
    "hResourceHandle" / Handle(),
    "flags" / NvU32,
)

_AllocOsDesc = CStruct(
    None,
    "hMemory" / Handle(),
    "type" / NvU32,
    "flags" / NvU32,
    "attr" / NvU32,
    "attr2" / NvU32,
    "descriptor" / OpaquePointer(),
    "limit" / NvU64,
    "descriptorType" / NvU32,
)

_data = CUnion(
    None,
    "AllocSize" / _AllocSize,
    "AllocTiledPitchHeight" / _AllocTiledPitchHeight,
    "Free" / _Free,
    "ReleaseCompr" / _ReleaseCompr,
    "ReacquireCompr" / _ReacquireCompr,
    "Info" / _Info,
    until("575.51.02", "Dump" / _Dump),
    "AllocSizeRange" / _AllocSizeRange,
    "AllocHintAlignment" / _AllocHintAlignment,
    "HwAlloc" / _HwAlloc,
    "HwFree" / _HwFree,
    "AllocOsDesc" / _AllocOsDesc,
)

NVOS32_PARAMETERS = CStruct(
    "NVOS32_PARAMETERS",
    "hRoot" / Handle(),
    "hObjectParent" / Handle(),
    "function" / NvU32,
    "hVASpace" / Handle(),
    "ivcHeapNumber" / NvS16,
    "status" / Status(NvV32),
    "total" / NvU64,
    "free" / NvU64,
    "data" / _data,
)

NV_CONTEXT_DMA_ALLOCATION_PARAMS = CStruct(
    "NV_CONTEXT_DMA_ALLOCATION_PARAMS",
    "hSubDevice" / Handle(),
    "flags" / NvV32,
    "hMemory" / Handle(depends=True),
    "offset" / NvU64,
    "limit" / NvU64,
)

NV_MEMORY_ALLOCATION_PARAMS = CStruct(
    "NV_MEMORY_ALLOCATION_PARAMS",
    "owner" / NvU32,
    "type" / NvU32,
    "flags" / NvU32,
    "width" / NvU32,
    "height" / NvU32,
    "pitch" / NvS32,
    "attr" / NvU32,
    "attr2" / NvU32,
    "format" / NvU32,
    "comprCovg" / NvU32,
    "zcullCovg" / NvU32,
    "rangeLo" / NvU64,
    "rangeHi" / NvU64,
    "size" / NvU64,
    "alignment" / NvU64,
    "offset" / NvU64,
    "limit" / NvU64,
    "address" / OpaquePointer(),
    "ctagOffset" / NvU32,
    "hVASpace" / Handle(),
    "internalflags" / NvU32,
    "tag" / NvU32,
    since("545.23.06", "numaNode" / NvS32),
)

NVOS33_PARAMETERS = CStruct(
    "NVOS33_PARAMETERS",
    "hClient" / Handle(),
    "hDevice" / Handle(),
    "hMemory" / Handle(),
    "offset" / NvU64,
    "length" / NvU64,
    "pLinearAddress" / OpaquePointer(),
    "status" / Status(),
    "flags" / NvU32,
)

NVOS34_PARAMETERS = CStruct(
    "NVOS34_PARAMETERS",
    "hClient" / Handle(),
    "hDevice" / Handle(),
    "hMemory" / Handle(),
    "pLinearAddress" / OpaquePointer(),
    "status" / Status(),
    "flags" / NvU32,
)

NVOS39_PARAMETERS = CStruct(
    "NVOS39_PARAMETERS",
    "hObjectParent" / Handle(),
    "hSubDevice" / Handle(),
    "hObjectNew" / Handle(),
    "hClass" / NvV32,
    "flags" / NvV32,
    "selector" / NvU32,
    "hMemory" / Handle(),
    "offset" / NvU64,
    "limit" / NvU64,
    "status" / Status(NvV32),
)

NVOS46_PARAMETERS = CStruct(
    "NVOS46_PARAMETERS",
    "hClient" / Handle(),
    "hDevice" / Handle(),
    "hDma" / Handle(),
    "hMemory" / Handle(),
    "offset" / NvU64,
    "length" / NvU64,
    "flags" / NvV32,
    since("580.65.06", "flags2" / NvV32, "kindOverride" / NvV32),
    "dmaOffset" / NvU64,
    "status" / Status(NvV32),
)

NVOS47_PARAMETERS = CStruct(
    "NVOS47_PARAMETERS",
    "hClient" / Handle(),
    "hDevice" / Handle(),
    "hDma" / Handle(),
    "hMemory" / Handle(),
    "flags" / NvV32,
    "dmaOffset" / NvU64,
    since("550.40.07", "size" / NvU64),
    "status" / Status(NvV32),
)

NVOS54_PARAMETERS = CStruct(
    "NVOS54_PARAMETERS",
    "hClient" / Handle(),
    "hObject" / Handle(),
    "cmd" / NvV32,
    "flags" / NvU32,
    "params" / UserPointer(None),  # the command says what is in it
    "paramsSize" / NvU32,
    "status" / Status(NvV32),
)

NVOS55_PARAMETERS = CStruct(
    "NVOS55_PARAMETERS",
    "hClient" / Handle(),
    "hParent" / Handle(),
    "hObject" / Handle(),
    "hClientSrc" / Handle(),
    "hObjectSrc" / Handle(),
    "flags" / NvU32,
    "status" / Status(),
)

NVOS56_PARAMETERS = CStruct(
    "NVOS56_PARAMETERS",
    "hClient" / Handle(),
    "hDevice" / Handle(),
    "hMemory" / Handle(),
    "pOldCpuAddress" / OpaquePointer(),
    "pNewCpuAddress" / OpaquePointer(),
    "status" / Status(NvV32),
)

NVOS57_PARAMETERS = CStruct(
    "NVOS57_PARAMETERS",
    "hClient" / Handle(),
    "hObject" / Handle(),
    "sharePolicy" / RS_SHARE_POLICY,
    "status" / Status(),
)

NV_GR_ALLOCATION_PARAMETERS = CStruct(
    "NV_GR_ALLOCATION_PARAMETERS",
    "version" / NvU32,
    "flags" / NvU32,
    "size" / NvU32,
    "caps" / NvU32,
)

NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS = CStruct(
    "NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS",
    "hObjectError" / Handle(),
    "hObjectEccError" / Handle(),
    "hVASpace" / Handle(depends=True),
    "engineType" / NvU32,
    "bIsCallingContextVgpuPlugin" / NvBool,
    since("615.71.09", "reserved" / NvU32, "internalFlags" / NvU32),
)

NV_BSP_ALLOCATION_PARAMETERS = CStruct(
    "NV_BSP_ALLOCATION_PARAMETERS",
    "size" / NvU32,
    "prohibitMultipleInstances" / NvU32,
    "engineInstance" / NvU32,
    renamed={"610.43.02": "NV_NVDEC_ALLOCATION_PARAMETERS"},
)

NV_MSENC_ALLOCATION_PARAMETERS = CStruct(
    "NV_MSENC_ALLOCATION_PARAMETERS",
    "size" / NvU32,
    "prohibitMultipleInstances" / NvU32,
    "engineInstance" / NvU32,
    renamed={"610.43.02": "NV_NVENC_ALLOCATION_PARAMETERS"},
)

NV_NVJPG_ALLOCATION_PARAMETERS = CStruct(
    "NV_NVJPG_ALLOCATION_PARAMETERS",
    "size" / NvU32,
    "prohibitMultipleInstances" / NvU32,
    "engineInstance" / NvU32,
)

NV_OFA_ALLOCATION_PARAMETERS = CStruct(
    "NV_OFA_ALLOCATION_PARAMETERS",
    "size" / NvU32,
    "prohibitMultipleInstances" / NvU32,
    since("545.23.06", "engineInstance" / NvU32),
)

NV_VASPACE_ALLOCATION_PARAMETERS = CStruct(
    "NV_VASPACE_ALLOCATION_PARAMETERS",
    "index" / NvU32,
    "flags" / NvV32,
    "vaSize" / NvU64,
    "vaStartInternal" / NvU64,
    "vaLimitInternal" / NvU64,
    "bigPageSize" / NvU32,
    "vaBase" / NvU64,
    since("580.65.06", "pasid" / NvU32),
)

NV_CTXSHARE_ALLOCATION_PARAMETERS = CStruct(
    "NV_CTXSHARE_ALLOCATION_PARAMETERS",
    "hVASpace" / Handle(depends=True),
    "flags" / NvU32,
    "subctxId" / NvU32,
)

NV_HOPPER_USERMODE_A_PARAMS = CStruct(
    "NV_HOPPER_USERMODE_A_PARAMS",
    "bBar1Mapping" / NvBool,
    "bPriv" / NvBool,
)
