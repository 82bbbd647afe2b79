"""Fields that carry a file descriptor, a pointer, a pid or a host address, and how that is known.

Three ways find them: the type (``NvP64``, a C pointer), the name, and the driver's own embedded-copy list. None of them
is enough: descriptors travel in NvU64 and NvP64 fields, and a name proves nothing. So what the first two find, and what
the model translates as a descriptor, must be explained: by a role, or below by naming the driver function that consumes
the field (read at 595.45.04 and 580.105.08).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from nvproxy_model.drivers.compare.findings import Class, Finding, entries
from nvproxy_model.drivers.release import Release
from nvproxy_model.layout import Layout

__all__ = [
    "CURATED",
    "CURATED_STRUCTS",
    "Carried",
    "Carrier",
    "Known",
    "Unfit",
    "What",
    "fd_paths",
    "found_by_shape",
    "known",
    "simple_struct_carriers",
]


Carried = Literal["fd", "pid", "pointer"]
"""What a field may carry that means something in one process only."""
What = Literal[Carried, "host-address", "none"]
"""What a field is; ``none`` only looks like one."""


class Known(NamedTuple):
    """A curated entry.

    ``translate``: the number means something else in a sandbox, so that a proxy must translate it or refuse the call.
    ``shown``: the driver returns a value of the host in it, which the caller reads.
    """

    struct: str
    path: str
    what: What
    function: str
    note: str = ""
    translate: bool = False
    shown: bool = False


def _fd(struct: str, path: str, function: str, note: str = "") -> Known:
    return Known(struct, path, "fd", function, note, translate=True)


_EVENT = "osUserHandleToKernelPtr(), an event of this process by its fd"
_CAPABILITY = "osRmCapAcquire(), os_nv_cap_validate_and_dup_fd()"
_UTIL = "subdeviceCtrlCmdPerfGetGpumonPerfmonUtilSamplesV2_KERNEL()"
_UTIL_STRUCT = "NV2080_CTRL_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2_PARAMS"
_ENGINES = ("fb", "gr", "nvenc", "nvdec", "nvjpg", "nvofa")

CURATED: tuple[Known, ...] = (
    # Frontend.
    _fd("nv_ioctl_nvos02_parameters_with_fd", "fd", "rm_create_mmap_context()", "the file that is mapped later"),
    _fd("nv_ioctl_nvos33_parameters_with_fd", "fd", "rm_create_mmap_context()", "the file that is mapped later"),
    _fd("nv_ioctl_register_fd_t", "ctl_fd", "RmIoctl(), nv_get_file_private()"),
    _fd("nv_ioctl_register_fd", "ctl_fd", "RmIoctl(), nv_get_file_private()"),
    _fd("nv_ioctl_alloc_os_event_t", "fd", "allocate_os_event()", "a key: compared with the fd of later calls"),
    _fd("nv_ioctl_alloc_os_event", "fd", "allocate_os_event()", "a key: compared with the fd of later calls"),
    _fd("nv_ioctl_free_os_event_t", "fd", "free_os_event()"),
    _fd("nv_ioctl_free_os_event", "fd", "free_os_event()"),
    _fd(
        "nv_ioctl_export_to_dma_buf_fd_t", "fd", "nv_dma_buf_export()", "-1 asks for a new dma-buf, whose fd comes back"
    ),
    _fd("nv_ioctl_export_to_dma_buf_fd", "fd", "nv_dma_buf_export()", "-1 asks for a new dma-buf, whose fd comes back"),
    # Classes.
    _fd("NV0005_ALLOC_PARAMETERS", "data", f"eventapiConstruct_IMPL(), {_EVENT}", "an fd for NV01_EVENT_OS_EVENT"),
    _fd("NV00F1_ALLOCATION_PARAMETERS", "pOsEvent", f"imexsessionapiConstruct_IMPL(), {_EVENT}"),
    _fd("NV00F1_ALLOCATION_PARAMETERS", "capDescriptor", f"imexsessionapiConstruct_IMPL(), {_CAPABILITY}"),
    _fd("NV00F9_ALLOCATION_PARAMETERS", "pOsEvent", f"memoryfabricimportv2Construct_IMPL(), {_EVENT}"),
    _fd("NV00FD_ALLOCATION_PARAMETERS", "pOsEvent", f"memorymulticastfabricConstruct_IMPL(), {_EVENT}"),
    _fd("NV_EVENT_BUFFER_ALLOC_PARAMETERS", "notificationHandle", f"eventbufferConstruct_IMPL(), {_EVENT}"),
    _fd("NV000F_ALLOCATION_PARAMETERS", "capDescriptor", f"fmsessionapiConstruct_IMPL(), {_CAPABILITY}"),
    _fd("NVC637_ALLOCATION_PARAMETERS", "capDescriptor", f"gisubscriptionConstruct_IMPL(), {_CAPABILITY}"),
    _fd("NVC638_ALLOCATION_PARAMETERS", "capDescriptor", f"cisubscriptionConstruct_IMPL(), {_CAPABILITY}"),
    _fd("NVC639_ALLOCATION_PARAMETERS", "capDescriptor", f"migconfigsessionConstruct_IMPL(), {_CAPABILITY}"),
    _fd("NVC640_ALLOCATION_PARAMETERS", "capDescriptor", f"migmonitorsessionConstruct_IMPL(), {_CAPABILITY}"),
    Known("NV_CHANNEL_ALLOC_PARAMS", "ProcessID", "pid", "kchannelConstruct_IMPL()", "cleared for a program's call"),
    Known("NV_CHANNEL_ALLOC_PARAMS", "SubProcessID", "pid", "kchannelConstruct_IMPL()", "cleared for a program's call"),
    Known("NV_CHANNELGPFIFO_ALLOCATION_PARAMETERS", "ProcessID", "pid", "kchannelConstruct_IMPL()"),
    Known("NV_CHANNELGPFIFO_ALLOCATION_PARAMETERS", "SubProcessID", "pid", "kchannelConstruct_IMPL()"),
    Known("NV0000_ALLOC_PARAMETERS", "processID", "pid", "rmclientConstruct_IMPL()", "the driver fills it in itself"),
    Known(
        "NV0000_ALLOC_PARAMETERS", "pOsPidInfo", "host-address", "rmclientConstruct_IMPL()", "the kernel's own, for GSP"
    ),
    # Controls.
    _fd("NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS", "fd", "cliresCtrlCmdOsUnixExportObjectToFd_IMPL()"),
    _fd("NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS", "fd", "cliresCtrlCmdOsUnixImportObjectFromFd_IMPL()"),
    _fd("NV0000_CTRL_OS_UNIX_GET_EXPORT_OBJECT_INFO_PARAMS", "fd", "cliresCtrlCmdOsUnixGetExportObjectInfo_IMPL()"),
    _fd("NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_PARAMS", "fd", "cliresCtrlCmdOsUnixExportObjectsToFd_IMPL()"),
    _fd("NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS", "fd", "cliresCtrlCmdOsUnixImportObjectsFromFd_IMPL()"),
    _fd("NV0000_CTRL_OS_UNIX_CREATE_EXPORT_OBJECT_FD_PARAMS", "fd", "cliresCtrlCmdOsUnixCreateExportObjectFd_IMPL()"),
    _fd(
        "NV0000_CTRL_OS_UNIX_GET_CONTROL_FILE_DESCRIPTOR_PARAMS",
        "fd",
        "no consumer in the open driver: its number has no method",
    ),
    _fd("NV2080_CTRL_DMABUF_EXPORT_MEM_PARAMS", "fd", "no consumer in the open driver: its number has no method"),
    _fd("NV0000_CTRL_CLIENT_SUBSCRIBE_TO_IMEX_CHANNEL_PARAMS", "devDescriptor", "osImexChannelGet()"),
    _fd("NV00FD_CTRL_ATTACH_GPU_PARAMS", "devDescriptor", "RmGetDeviceFd(), nv_get_file_private()"),
    _fd("NV00E0_CTRL_EXPORT_MEM_PARAMS", "devDescriptor", "RmGetDeviceFd(), nv_get_file_private()"),
    _fd("NV00FD_CTRL_REGISTER_EVENT_PARAMS", "pOsEvent", f"memorymulticastfabricCtrlRegisterEvent_IMPL(), {_EVENT}"),
    _fd(
        "NV_SEMAPHORE_SURFACE_CTRL_REGISTER_WAITER_PARAMS",
        "notificationHandle",
        f"semsurfCtrlCmdRegisterWaiter_IMPL(), {_EVENT}",
    ),
    _fd(
        "NV_SEMAPHORE_SURFACE_CTRL_UNREGISTER_WAITER_PARAMS",
        "notificationHandle",
        f"semsurfCtrlCmdUnregisterWaiter_IMPL(), {_EVENT}",
    ),
    Known(
        "NV0000_CTRL_GPUACCT_GET_ACCOUNTING_STATE_PARAMS", "pid", "pid", "cliresCtrlCmdGpuAcctGetAccountingState_IMPL()"
    ),
    Known(
        "NV2080_CTRL_GPU_GET_PIDS_PARAMS",
        "pidTbl",
        "pid",
        "subdeviceCtrlCmdGpuGetPids_IMPL()",
        "the host's pids, out",
        shown=True,
    ),
    Known("NV2080_CTRL_GPU_GET_PID_INFO_PARAMS", "pidInfoList[].pid", "pid", "subdeviceCtrlCmdGpuGetPidInfo_IMPL()"),
    *(
        Known(
            _UTIL_STRUCT, f"samples[].{e}.procId", "pid", _UTIL, "of any process that used the engine, out", shown=True
        )
        for e in _ENGINES
    ),
    *(
        Known(_UTIL_STRUCT, f"samples[].{e}.subProcessID", "pid", _UTIL, "a vGPU guest's, out", shown=True)
        for e in _ENGINES
    ),
    *(
        Known(_UTIL_STRUCT, f"samples[].{e}.pOsPidInfo", "host-address", _UTIL, "cleared before it is copied out")
        for e in _ENGINES
    ),
    Known(
        "NV2080_CTRL_GR_CTXSW_ZCULL_BIND_PARAMS",
        "vMemPtr",
        "none",
        "rpcCtrlGrCtxswZcullBind_v1A_0E()",
        "a GPU virtual address",
    ),
    Known(
        "NVB0CC_CTRL_PMA_STREAM_UPDATE_GET_PUT_PARAMS",
        "putPtr",
        "none",
        "profilerBaseCtrlCmdPmaStreamUpdateGetPut()",
        "an offset, out",
    ),
    # UVM.
    _fd("UVM_REGISTER_GPU_PARAMS", "rmCtrlFd", "uvm_api_register_gpu()"),
    _fd("UVM_REGISTER_GPU_VASPACE_PARAMS", "rmCtrlFd", "uvm_api_register_gpu_va_space()"),
    _fd("UVM_REGISTER_CHANNEL_PARAMS", "rmCtrlFd", "uvm_api_register_channel()"),
    _fd("UVM_MAP_EXTERNAL_ALLOCATION_PARAMS", "rmCtrlFd", "uvm_map_external_allocation()"),
    _fd("UVM_ALLOC_DEVICE_P2P_PARAMS", "rmCtrlFd", "uvm_api_alloc_device_p2p()"),
    _fd("UVM_MM_INITIALIZE_PARAMS", "uvmFd", "uvm_api_mm_initialize(), fget()"),
    _fd("UVM_TOOLS_INIT_EVENT_TRACKER_PARAMS", "uvmFd", "uvm_api_tools_init_event_tracker(), fget()"),
    _fd("UVM_TOOLS_INIT_EVENT_TRACKER_V2_PARAMS", "uvmFd", "uvm_api_tools_init_event_tracker_v2(), fget()"),
    _fd(
        "NV0000_CTRL_OS_UNIX_MEMACCT_GET_LIMITS_PARAMS",
        "cgroupFd",
        "cliresCtrlCmdOsUnixMemacctGetLimits_IMPL()",
        "a cgroup directory; -1 asks for the caller's own",
    ),
)
"""Every entry for a struct that the model admits, and the descriptors of those that it does not."""

_FD = re.compile(r"(?:^|_)fd$|[a-z]Fd$|Descriptor$|^descriptor$|^notificationHandle$|OsEvent$")
_PID = re.compile(r"^pid$|[a-z]Pid$|^(?:[sS]ub)?[pP]roc(?:ess)?I[dD]$|^(?:sub)?[pP]idTbl$|^subPid$")
_ADDRESS = re.compile(r"^p[A-Z]\w+$|[a-z]Ptr$|^(?:cpu|user|linear|kernel)(?:Virtual|Linear)?(?:Address|Va)$")


_BY_NAME: tuple[tuple[re.Pattern[str], Carried], ...] = ((_FD, "fd"), (_PID, "pid"), (_ADDRESS, "pointer"))
_GAINED: Mapping[Carried, Class] = {"fd": "fd-gained", "pid": "pid-gained", "pointer": "pointer-gained"}


class Carrier(NamedTuple):
    """A field that may carry something: where it is and what gave it away."""

    path: str
    offset: int
    type: str
    what: Carried
    how: Literal["type", "name"]


def known(struct: str, path: str) -> Known | None:
    """The curated entry for a field, or None."""
    return _CURATED.get((struct, path))


_CURATED = {(entry.struct, entry.path): entry for entry in CURATED}
CURATED_STRUCTS = frozenset(entry.struct for entry in CURATED)
"""The structs that have a curated entry."""


def found_by_shape(layout: Layout) -> tuple[Carrier, ...]:
    """The fields of a struct that carry, or by their name may carry, something that a proxy must know of."""
    kept = _found.get(id(layout))
    if kept is None or kept[0] is not layout:
        kept = _found[id(layout)] = (layout, tuple(_find(layout)))
    return kept[1]


_found: dict[int, tuple[Layout, tuple[Carrier, ...]]] = {}


def _find(layout: Layout) -> Iterator[Carrier]:
    for entry in entries(layout):
        field = entry.field
        name = field.name
        if field.base == "record":
            continue
        if field.base == "ptr":
            yield Carrier(entry.key, entry.offset, field.type, "pointer", "type")
        elif field.base[0] in "us" and field.base not in ("u8", "s8"):
            for pattern, what in _BY_NAME:
                if pattern.search(name) and (what != "pointer" or field.base == "u64"):
                    yield Carrier(entry.key, entry.offset, field.type, what, "name")
                    break


class Unfit(NamedTuple):
    """What makes a struct unfit to be passed on as it is: a field that carries something."""

    struct: str
    path: str
    what: Carried
    why: str

    def finding(self, control: str) -> Finding:
        """The finding that ``control`` passes this struct on untranslated."""
        detail = f"{control} passes it on untranslated: {self.why}"
        name = f"{self.struct}.{self.path}" if self.path else self.struct
        return Finding("field-retyped", name, detail, None, self.why, _GAINED[self.what])


def simple_struct_carriers(release: Release, control: str, struct: str) -> Iterator[Unfit]:
    """What makes a struct unfit to be passed on untranslated; nothing if it is fit."""
    layout = release.structs.get(struct)
    if layout is None:
        return
    for carrier in found_by_shape(layout):
        entry = known(struct, carrier.path)
        if carrier.how == "type" and not (entry is not None and not entry.translate):
            yield Unfit(struct, carrier.path, "pointer", f"a pointer ({carrier.type})")
        elif entry is not None and entry.translate:
            yield Unfit(struct, carrier.path, "fd", f"an fd, consumed by {entry.function}")
        elif carrier.what == "fd" and entry is None:
            yield Unfit(struct, carrier.path, "fd", f"an fd by its name ({carrier.type})")
        elif carrier.what == "pid" and entry is None:
            yield Unfit(struct, carrier.path, "pid", f"a pid by its name ({carrier.type})")
    for path in release.embedded.get(control, ()):
        yield Unfit(struct, path, "pointer", "a user pointer by the driver's own list (embeddedParamCopyIn)")


def fd_paths() -> dict[str, frozenset[str]]:
    """Struct -> the paths of its fields that are file descriptors."""
    found: dict[str, set[str]] = {}
    for entry in CURATED:
        if entry.what == "fd":
            found.setdefault(entry.struct, set()).add(entry.path)
    return {struct: frozenset(paths) for struct, paths in found.items()}
