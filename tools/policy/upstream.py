"""Where upstream decides: gVisor's function for each row, and the driver's place for each table."""

from __future__ import annotations

from collections.abc import Mapping

from nvproxy_model.fields import CStruct
from nvproxy_model.policy.plan import plan
from nvproxy_model.rules import Rule
from nvproxy_model.versions import DriverVersion

__all__ = ["driver", "gvisor", "place"]

_GVISOR = "pkg/sentry/devices/nvproxy"

_FUNCTIONS: Mapping[str, str] = {
    "NV_ESC_ATTACH_GPUS_TO_FD": "frontendIoctlBytes",
    "NV_ESC_CARD_INFO": "frontendIoctlBytes",
    "NV_ESC_CHECK_VERSION_STR": "frontendIoctlSimpleNoStatus",
    "NV_ESC_EXPORT_TO_DMABUF_FD": "frontendExportToDMABufFD",
    "NV_ESC_NUMA_INFO": "rmNumaInfo",
    "NV_ESC_REGISTER_FD": "frontendRegisterFD",
    "NV_ESC_RM_ALLOC": "rmAlloc",
    "NV_ESC_RM_ALLOC_CONTEXT_DMA2": "rmAllocContextDMA2",
    "NV_ESC_RM_ALLOC_MEMORY": "rmAllocMemory",
    "NV_ESC_RM_CONTROL": "rmControl",
    "NV_ESC_RM_DUP_OBJECT": "rmDupObject",
    "NV_ESC_RM_FREE": "rmFree",
    "NV_ESC_RM_IDLE_CHANNELS": "rmIdleChannels",
    "NV_ESC_RM_MAP_MEMORY": "rmMapMemory",
    "NV_ESC_RM_VID_HEAP_CONTROL": "rmVidHeapControl",
    "NV_ESC_SYS_PARAMS": "frontendIoctlSimpleNoStatus",
    "UVM_DEINITIALIZE": "uvmIoctlNoParams",
    "UVM_INITIALIZE": "uvmInitialize",
    "UVM_MM_INITIALIZE": "uvmMMInitialize",
    "NV0000_CTRL_CMD_GPU_GET_ID_INFO": "ctrlGpuGetIDInfo",
    "NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION": "ctrlClientSystemGetBuildVersion",
    "NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS": "ctrlClientSystemGetP2PCaps",
    "NV0041_CTRL_CMD_GET_SURFACE_INFO": "ctrlIoctlHasInfoList",
    "NV0080_CTRL_CMD_FB_GET_CAPS": "ctrlDevGetCaps",
    "NV0080_CTRL_CMD_FIFO_GET_CAPS": "ctrlDevGetCaps",
    "NV0080_CTRL_CMD_FIFO_GET_CHANNELLIST": "ctrlDevFIFOGetChannelList",
    "NV0080_CTRL_CMD_GPU_GET_CLASSLIST": "ctrlGetNvU32List",
    "NV0080_CTRL_CMD_GR_GET_CAPS": "ctrlDevGetCaps",
    "NV0080_CTRL_CMD_GR_GET_INFO": "ctrlIoctlHasInfoList",
    "NV0080_CTRL_CMD_MSENC_GET_CAPS": "ctrlDevGetCaps",
    "NV00FD_CTRL_CMD_ATTACH_GPU": "ctrlMemoryMulticastFabricAttachGPU",
    "NV2080_CTRL_CMD_BIOS_GET_INFO": "ctrlIoctlHasInfoList",
    "NV2080_CTRL_CMD_BUS_GET_INFO": "ctrlIoctlHasInfoList",
    "NV2080_CTRL_CMD_FB_GET_INFO": "ctrlIoctlHasInfoList",
    "NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS": "ctrlSubdevFIFODisableChannels",
    "NV2080_CTRL_CMD_GPU_EXEC_REG_OPS": "ctrlGpuExecRegOps",
    "NV2080_CTRL_CMD_GPU_GET_ENGINES": "ctrlGetNvU32List",
    "NV2080_CTRL_CMD_GR_GET_INFO": "ctrlIoctlHasInfoList",
    "NV503C_CTRL_CMD_REGISTER_VA_SPACE": "ctrlRegisterVASpace",
    "NV83DE_CTRL_CMD_DEBUG_READ_MEMORY": "ctrlDebugReadMemory",
    "FERMI_CONTEXT_SHARE_A": "rmAllocContextShare",
    "GT200_DEBUGGER": "rmAllocSMDebuggerSession",
    "KEPLER_CHANNEL_GROUP_A": "rmAllocChannelGroup",
    "NV01_CONTEXT_DMA": "rmAllocContextDMA",
    "NV01_EVENT_OS_EVENT": "rmAllocEventOSEvent",
    "NV01_MEMORY_VIRTUAL": "rmAllocMemoryVirtual",
    "NV01_ROOT": "rmAllocRootClient",
    "NV01_ROOT_CLIENT": "rmAllocRootClient",
    "NV01_ROOT_NON_PRIV": "rmAllocRootClient",
    "NV_EVENT_BUFFER": "rmAllocEventBuffer",
    "NV_IMEX_SESSION": "rmAllocIMEXSession",
    "NV_MEMORY_MULTICAST_FABRIC": "rmAllocMulticastFabric",
}
_BY_RELEASE: Mapping[str, tuple[tuple[str, str], ...]] = {
    "NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS": (("550.40.07", "V550"),),
    "_CHANNEL_GPFIFO_": (("610.43.02", "V610"), ("570.86.15", "V570")),
}
"""Functions with a variant from a release on, the newest first."""
_SIMPLE = {
    "frontend": "frontendIoctlSimple",
    "uvm": "uvmIoctlSimple",
    "control": "rmControlSimple",
    "alloc": "rmAllocSimple",
}
_WITH_FD = {"frontend": "frontendIoctlHasFD", "uvm": "uvmIoctlHasFrontendFD", "control": "ctrlHasFrontendFD"}


def gvisor(rule: Rule, version: DriverVersion) -> str:
    """The handler that nvproxy registers for a row at a release, ``function`` alone."""
    of = rule.params_at(version)
    fds = isinstance(of, CStruct) and bool(plan(of).fds)
    if "_CHANNEL_GPFIFO_" in rule.name:
        name, key = "rmAllocChannel", "_CHANNEL_GPFIFO_"
    else:
        name, key = _FUNCTIONS.get(rule.name, ""), rule.name
    if not name and rule.table == "alloc" and of is None:
        return "rmAllocNoParams"
    if not name:
        return _WITH_FD[rule.table] if fds and rule.table in _WITH_FD else _SIMPLE[rule.table]
    for since, suffix in _BY_RELEASE.get(key, ()):
        if version.descends_from(since):
            return name + suffix
    return name


_DISPATCH = {"frontend": "frontendFD.Ioctl", "uvm": "uvmFD.Ioctl", "control": "rmControl", "alloc": "rmAlloc"}


def place(table: str, rule: Rule | None, version: DriverVersion) -> str:
    """`gvisor` with its package; for what nvproxy has no row for, the dispatcher that finds none."""
    has_row = rule is not None and rule.active(version) and not rule.opt_in and (rule.caps or not rule.rejected)
    if rule is None or not has_row:
        return f"{_GVISOR}: {_DISPATCH[table]}, which has no such row"
    return f"{_GVISOR}: {gvisor(rule, version)}"


_DRIVER: Mapping[str, str] = {
    "frontend": "src/nvidia/arch/nvalloc/unix/src/escape.c: RmIoctl()",
    "uvm": "kernel-open/nvidia-uvm/uvm.c: uvm_ioctl()",
    "control": "src/nvidia/src/kernel/rmapi/control.c: _rmapiRmControl()",
    "alloc": "src/nvidia/src/kernel/rmapi/alloc_free.c: serverAllocResourceUnderLock()",
}
_EVENT_BUFFER = "src/nvidia/src/kernel/rmapi/event_buffer.c"
_DRIVER_OWN: Mapping[str, str] = {
    "NV_EVENT_BUFFER": f"{_EVENT_BUFFER}: eventbufferConstruct_IMPL()",
    "NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS": f"{_EVENT_BUFFER}: eventbuffertBufferCtrlCmdEnableEvent_IMPL()",
    "NV_EVENT_BUFFER_CTRL_CMD_UPDATE_GET": f"{_EVENT_BUFFER}: eventbuffertBufferCtrlCmdUpdateGet_IMPL()",
    "NV_EVENT_BUFFER_CTRL_CMD_FLUSH": f"{_EVENT_BUFFER}: eventbuffertBufferCtrlCmdFlush_IMPL()",
    "NV_EVENT_BUFFER_CTRL_CMD_POST_TELEMETRY_EVENT": f"{_EVENT_BUFFER}: eventbuffertBufferCtrlCmdPostTelemetryEvent_IMPL()",
    "NV2080_CTRL_CMD_GR_FECS_BIND_EVTBUF_FOR_UID": "src/nvidia/src/kernel/gpu/gr/kernel_graphics.c: "
    "subdeviceCtrlCmdKGrFecsBindEvtbufForUid_IMPL()",
    "NV2080_CTRL_CMD_GR_FECS_BIND_EVTBUF_FOR_UID_V2": "src/nvidia/src/kernel/gpu/gr/kernel_graphics.c: "
    "subdeviceCtrlCmdKGrFecsBindEvtbufForUidV2_IMPL()",
    "NV01_EVENT_OS_EVENT": "src/nvidia/src/kernel/rmapi/event.c: eventConstruct_IMPL()",
    "NV_IMEX_SESSION": "src/nvidia/src/kernel/compute/imex_session_api.c: imexsessionapiConstruct_IMPL()",
    "NV_MEMORY_MULTICAST_FABRIC": "src/nvidia/src/kernel/mem_mgr/mem_multicast_fabric.c: memorymulticastfabricConstruct_IMPL()",
    "NV_ESC_ALLOC_OS_EVENT": "src/nvidia/arch/nvalloc/unix/src/osapi.c: allocate_os_event()",
    "NV_ESC_FREE_OS_EVENT": "src/nvidia/arch/nvalloc/unix/src/osapi.c: free_os_event()",
    "NV_ESC_RM_FREE": "src/nvidia/src/libraries/resserv/src/rs_server.c: serverFreeResourceTree()",
    "NV_ESC_RM_DUP_OBJECT": "src/nvidia/src/libraries/resserv/src/rs_server.c: serverCopyResource()",
}
"""Rows whose own function is known by name; the others share their table's."""


def driver(table: str, name: str | None) -> str:
    """The driver's source file and function that answers for a row, or for its table."""
    return _DRIVER_OWN.get(name or "", _DRIVER[table])
