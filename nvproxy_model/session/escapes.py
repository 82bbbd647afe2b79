"""The escapes of the frontend and the commands of UVM: their exchange, and the session's half of their
handlers."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import replace

from nvproxy_model import ioctl
from nvproxy_model.abi import constants as nv
from nvproxy_model.abi.escapes import NV_ESC_ALLOC_OS_EVENT
from nvproxy_model.errors import MemoryFault
from nvproxy_model.policy import handlers
from nvproxy_model.policy.decision import Decision, Facts, Why, int32
from nvproxy_model.policy.handlers import Handler, maps_at_once, offset, reader
from nvproxy_model.policy.policy import Entry
from nvproxy_model.policy.refusals import refuse, refuse_size
from nvproxy_model.session.exchange import Exchange, Part, answer, call, let_go
from nvproxy_model.session.mistakes import descriptor
from nvproxy_model.session.ownership import check_clients
from nvproxy_model.session.ports import Buffer, File, MapContext, MemoryType, Process, Result
from nvproxy_model.structs import nvos
from nvproxy_model.structs.ctrl503c import NV503C_CTRL_REGISTER_VA_SPACE_PARAMS
from nvproxy_model.structs.nv_ioctl import nv_ioctl_alloc_os_event_t, nv_ioctl_export_to_dma_buf_fd_t
from nvproxy_model.structs.nv_unix_nvos_params_wrappers import (
    nv_ioctl_nvos02_parameters_with_fd,
    nv_ioctl_nvos33_parameters_with_fd,
)
from nvproxy_model.structs.uvm_ioctl import UVM_TOOLS_INIT_EVENT_TRACKER_PARAMS
from nvproxy_model.structs.uvm_linux_ioctl import UVM_INITIALIZE_PARAMS

__all__ = ["HANDLERS", "any_size", "command", "escape", "no_params"]


def escape(process: Process, entry: Entry, file: File, request: int, argp: int) -> Result:
    """An escape whose argument has the size of its struct."""
    assert entry.plan is not None
    size = ioctl.size(request)
    if size != entry.plan.size:
        wrong = refuse_size(entry.decision.call, entry.plan.name, entry.plan.size, size)
        return Result(-1, errno.EINVAL, wrong)
    return command(process, entry, file, ioctl.request(request, size), argp)


def command(process: Process, entry: Entry, file: File, request: int, argp: int) -> Result:
    """An escape or UVM command whose argument is the struct that its row describes. ``request`` is the
    host's."""
    what, memory = entry.plan, process.memory
    assert what is not None
    assert entry.decide is not None
    if entry.handler.name == "uvm_tools_init_event_tracker" and file.kind == "uvm":
        return _unread(process, what.size, file, request)
    data = memory.read(argp, what.size)
    exchange = Exchange(process, file, HANDLERS[entry.handler.name], entry.decide(data, process.fds), data, what)
    status_at = None if what.status is None else what.status.offset
    if process.events is not None and exchange.decision.call.table == "uvm":
        exchange.decision = check_clients(process, exchange.decision, data)
    if not exchange.decide():
        return answer(memory, argp, data, status_at, exchange.decision)
    argument = Part(memory, argp, data, exchange.decision, what)
    return exchange.perform(request, argument, argument, (argument,), status_at)


def _unread(process: Process, size: int, file: File, request: int) -> Result:
    """/dev/nvidia-uvm refuses to make a tracker without reading the struct, so the host is given zeros
    (uvm_tools.go)."""
    error = call(process.host, file.host_fd, request, Buffer(bytearray(size)))
    return Result(-1 if error else 0, error)


def any_size(process: Process, entry: Entry, file: File, request: int, argp: int) -> Result:
    """An escape whose argument is bytes of any number. A size of 0 gives the host a NULL pointer."""
    size = ioctl.size(request)
    arg = Buffer(bytearray(process.memory.read(argp, size))) if size else None
    error = call(process.host, file.host_fd, ioctl.request(request, size), arg)
    if not error and arg is not None:
        process.memory.write(argp, bytes(arg.data))
    return Result(-1 if error else 0, error, entry.decision)


def no_params(process: Process, entry: Entry, file: File, request: int) -> Result:
    """A UVM command without an argument."""
    error = call(process.host, file.host_fd, request, None)
    return Result(-1 if error else 0, error, entry.decision)


_free = reader(nvos.NVOS00_PARAMETERS, "hRoot", "hObjectOld")


def _before_free(exchange: Exchange) -> Decision:
    return exchange.need_client(_free(exchange.data)[0])


def _after_free(exchange: Exchange) -> None:
    client, handle = _free(exchange.data)[0], _free(exchange.out)[1]
    let_go(exchange.process, exchange.process.graph.free(client, handle))


_dup = reader(nvos.NVOS55_PARAMETERS, "hClient", "hParent", "hObject", "hClientSrc", "hObjectSrc")


def _before_dup(exchange: Exchange) -> Decision:
    client, _, _, source_client, _ = _dup(exchange.data)
    exchange.decision = exchange.need_client(client)
    return exchange.need_client(source_client)


def _after_dup(exchange: Exchange) -> None:
    client, _, _, source_client, _ = _dup(exchange.data)
    _, parent, handle, _, source = _dup(exchange.out)
    exchange.process.graph.dup(client, handle, parent, source_client, source)


_dma2 = reader(nvos.NVOS39_PARAMETERS, "hObjectParent", "hObjectNew", "hClass", "hMemory")


def _before_dma2(exchange: Exchange) -> Decision:
    return exchange.need_client(_dma2(exchange.data)[0])


def _after_dma2(exchange: Exchange) -> None:
    # RmDeprecatedAllocContextDma(): hObjectParent is the client, and hMemory's parent becomes the new object's.
    client = _dma2(exchange.data)[0]
    _, new, hclass, memory = _dma2(exchange.out)
    below = exchange.process.graph.get(client, memory)
    if below is not None:
        exchange.process.graph.add(client, new, hclass, below.parent, restorable=False)


def _in_use(exchange: Exchange, fd: int) -> Decision:
    file = exchange.process.fds.get(fd)
    if file is None or file.mapping is None:
        return exchange.decision
    facts = Facts("fd", fd, "a file without a map context")
    return refuse(exchange.decision.call, Why.IN_USE, None, facts)


_CACHING: Mapping[int, MemoryType] = {
    nv.NVOS33_FLAGS_CACHING_TYPE_CACHED: "write-back",
    nv.NVOS33_FLAGS_CACHING_TYPE_WRITEBACK: "write-back",
    nv.NVOS33_FLAGS_CACHING_TYPE_WRITECOMBINED: "write-combine",
    nv.NVOS33_FLAGS_CACHING_TYPE_DEFAULT: "write-combine",
}
"""The control device's (nv-mmap.c:nv_encode_caching()); all other types, and GPU devices, are uncached."""


def _memory_type(file: File, caching: int) -> MemoryType:
    return _CACHING.get(caching, "uncached") if file.control_device else "uncached"


_nvos33 = reader(nv_ioctl_nvos33_parameters_with_fd, "params.length", "params.flags", "fd")


def _before_map(exchange: Exchange) -> Decision:
    return _in_use(exchange, _nvos33(exchange.data)[2])


def _after_map(exchange: Exchange) -> None:
    length, flags, _ = _nvos33(exchange.out)
    file = exchange.process.fds.get(_nvos33(exchange.data)[2])
    if file is not None and length:
        caching = flags >> nv.NVOS33_FLAGS_CACHING_TYPE_SHIFT & nv.NVOS33_FLAGS_CACHING_TYPE_MASK
        file.mapping = MapContext(length, _memory_type(file, caching))


_nvos02 = reader(
    nv_ioctl_nvos02_parameters_with_fd,
    *(f"params.{name}" for name in ("hRoot", "hObjectParent", "hObjectNew", "hClass", "flags", "limit")),
    "fd",
)


def _before_alloc_memory(exchange: Exchange) -> Decision:
    root, _, _, hclass, flags, _, fd = _nvos02(exchange.data)
    if hclass == nv.NV01_MEMORY_SYSTEM and maps_at_once(flags):
        exchange.decision = _in_use(exchange, fd)
        return exchange.need_client(root)
    exchange.decision = exchange.pin()
    decision = exchange.need_client(root)
    if decision is not exchange.decision:
        exchange.process.unpin += [(copy.address, copy.size) for copy in exchange.decision.copies]
    return decision


def _after_alloc_memory(exchange: Exchange) -> None:
    graph = exchange.process.graph
    root, _, _, asked, flags, _, fd = _nvos02(exchange.data)
    _, parent, new, hclass, _, limit, _ = _nvos02(exchange.out)
    pins = tuple((copy.address, copy.size) for copy in exchange.decision.copies if copy.pinned)
    obj = graph.add(root, new, hclass, parent, restorable=False, pins=pins)
    if obj is None:
        # A driver that names no handle: the pages stay pinned for as long as its client lives.
        client = graph.get(root, root)
        if client is not None:
            client.pins += pins
    file = exchange.process.fds.get(fd)
    if asked == nv.NV01_MEMORY_SYSTEM and maps_at_once(flags) and file is not None:
        length = (limit + 1) & 0xFFFFFFFFFFFFFFFF
        if length:
            file.mapping = MapContext(length, _memory_type(file, nv.NVOS33_FLAGS_CACHING_TYPE_DEFAULT))


_vid_heap_root = reader(nvos.NVOS32_PARAMETERS, "hRoot")
_VID_HEAP = (
    "hRoot",
    "hObjectParent",
    "hVASpace",
    *(f"data.AllocSize.{name}" for name in ("hMemory", "flags", "attr", "attr2")),
)


def _before_vid_heap(exchange: Exchange) -> Decision:
    for copy in exchange.decision.copies:  # a fault comes before an unknown client
        exchange.process.memory.read(copy.address, copy.size)
    return exchange.need_client(_vid_heap_root(exchange.data)[0])


def _after_vid_heap(exchange: Exchange) -> None:
    of = nvos.NVOS32_PARAMETERS.at(exchange.process.policy.version)
    (root,) = _vid_heap_root(exchange.data)
    _, parent, va_space, memory, flags, attr, attr2 = reader(of, *_VID_HEAP)(exchange.out)
    deps: tuple[int, ...] = ()
    if flags & nv.NVOS32_ALLOC_FLAGS_VIRTUAL:
        hclass, deps = nv.NV50_MEMORY_VIRTUAL, (va_space,)
    elif attr2 >> nv.NVOS32_ATTR2_USE_EGM_SHIFT & nv.NVOS32_ATTR2_USE_EGM_MASK:
        hclass = nv.NV_MEMORY_EXTENDED_USER
    elif attr >> nv.NVOS32_ATTR_LOCATION_SHIFT & nv.NVOS32_ATTR_LOCATION_MASK == nv.NVOS32_ATTR_LOCATION_VIDMEM:
        hclass = nv.NV01_MEMORY_LOCAL_USER
    else:
        hclass = nv.NV01_MEMORY_SYSTEM
    exchange.process.graph.add(root, memory, hclass, parent, deps, restorable=False)


_os_event = reader(nv_ioctl_alloc_os_event_t, "hClient", "fd")


def _before_os_event(exchange: Exchange) -> Decision:
    events = exchange.process.events
    if events is None or exchange.decision.number != NV_ESC_ALLOC_OS_EVENT:
        return exchange.decision
    return events.may_register(exchange.decision, *_os_event(exchange.data))


def _after_os_event(exchange: Exchange) -> None:
    events = exchange.process.events
    if events is None:
        return
    if exchange.decision.number == NV_ESC_ALLOC_OS_EVENT:
        events.register(*_os_event(exchange.data))
    else:
        events.unregister(*_os_event(exchange.data))


def _finish_in_only(exchange: Exchange) -> int:
    """The struct is the host's to read only: nothing of it is copied out."""
    if exchange.described is not exchange.argument:
        exchange.argument.write_struct(exchange.process.memory)
    return 0


_UVM_FLAGS = offset(UVM_INITIALIZE_PARAMS, "flags")


def _finish_uvm_initialize(exchange: Exchange) -> int:
    """The guest does not see MULTI_PROCESS_SHARING_MODE, unless it had set it."""
    mine = nv.UVM_INIT_FLAGS_MULTI_PROCESS_SHARING_MODE
    exchange.argument.buffer.data[_UVM_FLAGS] &= ~mine | exchange.data[_UVM_FLAGS]
    exchange.argument.write_struct(exchange.process.memory)
    return 0


_DMABUF_FD = offset(nv_ioctl_export_to_dma_buf_fd_t, "fd")
_DMABUF_STATUS = offset(nv_ioctl_export_to_dma_buf_fd_t, "status")


def _finish_dmabuf(exchange: Exchange) -> int:
    """A dma-buf that the driver has just made becomes a new file of the guest; it is undone if the guest
    cannot be written."""
    process, out, span = exchange.process, exchange.argument.buffer.data, slice(_DMABUF_FD, _DMABUF_FD + 4)
    made = int32(int.from_bytes(exchange.out[span], "little"))
    fresh = int32(int.from_bytes(exchange.data[span], "little")) < 0
    if fresh and made < 0:
        out[span] = exchange.out[span]
    if not fresh or made < 0 or any(out[_DMABUF_STATUS : _DMABUF_STATUS + 4]):
        exchange.argument.write_struct(process.memory)
        return 0
    try:
        fd = process.fds.install(File("dma-buf", made))
    except OSError as error:
        process.close_host.append(made)
        return error.errno or errno.EMFILE
    descriptor("fds.install(...) gave {}", fd)
    out[span] = fd.to_bytes(4, "little")
    try:
        exchange.argument.write_struct(process.memory)
    except MemoryFault:
        process.fds.remove(fd)
        process.close_host.append(made)
        raise
    return 0


_TRACKER_STATUS = offset(UVM_TOOLS_INIT_EVENT_TRACKER_PARAMS, "rmStatus")


def _before_tracker(exchange: Exchange) -> Decision:
    try:
        decision = exchange.pin()
    except MemoryFault:
        decision = refuse(exchange.decision.call, Why.PIN)
    if decision.allowed:
        return decision
    return decision._replace(errno=0, status=nv.NV_ERR_INVALID_ARGUMENT)


def _after_tracker(exchange: Exchange) -> None:
    exchange.file.pins += [(copy.address, copy.size) for copy in exchange.decision.copies]


def _finish_tracker(exchange: Exchange) -> int:
    """Of the struct the guest is given the status alone."""
    status = exchange.argument.buffer.data[_TRACKER_STATUS:]
    exchange.process.memory.write(exchange.argument.address, exchange.data[:_TRACKER_STATUS] + bytes(status))
    return 0


_va_space = reader(NV503C_CTRL_REGISTER_VA_SPACE_PARAMS, "hVASpace")


def _before_va_space(exchange: Exchange) -> Decision:
    return exchange.need_client(exchange.client)


def _after_va_space(exchange: Exchange) -> None:
    # third_party_p2p.c:CliAddThirdPartyP2PVASpace() => refAddDependant()
    exchange.process.graph.depend(exchange.client, exchange.handle, _va_space(exchange.out)[0])


_POLICY = handlers.HANDLERS

HANDLERS: Mapping[str, Handler[Exchange]] = {
    handlers.PLAIN.name: handlers.PLAIN,
    **_POLICY,
    "alloc_context_dma2": replace(_POLICY["alloc_context_dma2"], before=_before_dma2, after=_after_dma2),
    "alloc_memory": replace(_POLICY["alloc_memory"], before=_before_alloc_memory, after=_after_alloc_memory),
    "dup_object": replace(_POLICY["dup_object"], before=_before_dup, after=_after_dup),
    "export_to_dmabuf_fd": replace(_POLICY["export_to_dmabuf_fd"], finish=_finish_dmabuf),
    "free": replace(_POLICY["free"], before=_before_free, after=_after_free),
    "in_only": replace(_POLICY["in_only"], finish=_finish_in_only),
    "map_memory": replace(_POLICY["map_memory"], before=_before_map, after=_after_map),
    "os_event": replace(_POLICY["os_event"], before=_before_os_event, after=_after_os_event),
    "register_va_space": replace(_POLICY["register_va_space"], before=_before_va_space, after=_after_va_space),
    "uvm_initialize": replace(_POLICY["uvm_initialize"], finish=_finish_uvm_initialize),
    "uvm_tools_init_event_tracker": replace(
        _POLICY["uvm_tools_init_event_tracker"],
        before=_before_tracker,
        after=_after_tracker,
        finish=_finish_tracker,
    ),
    "vid_heap_control": replace(_POLICY["vid_heap_control"], before=_before_vid_heap, after=_after_vid_heap),
}
"""The policy's handlers with what a session does for them. `nvproxy_model.session.alloc` has those of
classes."""
