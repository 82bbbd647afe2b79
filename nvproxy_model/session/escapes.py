"""What the frontend's and UVM's own handlers need of a session: before the host call, after an NV_OK, and at the end."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from nvproxy_model.abi import constants as nv
from nvproxy_model.errors import MemoryFault
from nvproxy_model.policy.decision import Call, Decision, Verdict, Why, int32
from nvproxy_model.policy.handlers import maps_at_once, offset, reader
from nvproxy_model.session.objects import Object
from nvproxy_model.session.ports import File, MapContext, Result
from nvproxy_model.structs import nvos
from nvproxy_model.structs.nv_ioctl import nv_ioctl_alloc_os_event_t, nv_ioctl_export_to_dma_buf_fd_t
from nvproxy_model.structs.nv_unix_nvos_params_wrappers import (
    nv_ioctl_nvos02_parameters_with_fd,
    nv_ioctl_nvos33_parameters_with_fd,
)
from nvproxy_model.structs.uvm_linux_ioctl import UVM_INITIALIZE_PARAMS

if TYPE_CHECKING:
    from nvproxy_model.session.session import Session

__all__ = ["AFTER", "BEFORE", "FINISH", "let_go", "unknown_client"]

_CACHING = {
    nv.NVOS33_FLAGS_CACHING_TYPE_CACHED: "write-back",
    nv.NVOS33_FLAGS_CACHING_TYPE_WRITEBACK: "write-back",
    nv.NVOS33_FLAGS_CACHING_TYPE_WRITECOMBINED: "write-combine",
    nv.NVOS33_FLAGS_CACHING_TYPE_DEFAULT: "write-combine",
}
"""The control device's (nv-mmap.c:nv_encode_caching()); all other types, and GPU devices, are uncached."""

_free = reader(nvos.NVOS00_PARAMETERS, "hRoot", "hObjectOld")
_dup = reader(nvos.NVOS55_PARAMETERS, "hClient", "hParent", "hObject", "hClientSrc", "hObjectSrc")
_dma2 = reader(nvos.NVOS39_PARAMETERS, "hObjectParent", "hObjectNew", "hClass", "hMemory")
_nvos02 = reader(
    nv_ioctl_nvos02_parameters_with_fd,
    *(f"params.{name}" for name in ("hRoot", "hObjectParent", "hObjectNew", "hClass", "flags", "limit")),
    "fd",
)
_nvos33 = reader(nv_ioctl_nvos33_parameters_with_fd, "params.length", "params.flags", "fd")
_os_event = reader(nv_ioctl_alloc_os_event_t, "hClient", "fd")
_vid_heap_root = reader(nvos.NVOS32_PARAMETERS, "hRoot")
_DMABUF_FD = offset(nv_ioctl_export_to_dma_buf_fd_t, "fd")
_UVM_FLAGS = offset(UVM_INITIALIZE_PARAMS, "flags")
_VID_HEAP = (
    "hRoot",
    "hObjectParent",
    "hVASpace",
    *(f"data.AllocSize.{name}" for name in ("hMemory", "flags", "attr", "attr2")),
)


def _memory_type(file: File, caching: int) -> str:
    return _CACHING.get(caching, "uncached") if file.control_device else "uncached"


def unknown_client(call: Call, client: int) -> Decision:
    """The refusal of a call on behalf of a client that is not alive."""
    return Decision(Verdict.REJECT, Why.CLIENT, call, 0, nv.NV_ERR_INVALID_CLIENT, detail=(f"client {client:#x}",))


def _in_use(decision: Decision) -> Decision:
    detail = ("fd", "the file has a map context, for its life")
    return Decision(Verdict.REJECT, Why.IN_USE, decision.call, errno.EINVAL, detail=detail)


def _need_client(session: Session, client: int, decision: Decision) -> Decision:
    return decision if session.graph.has_client(client) else unknown_client(decision.call, client)


def _before_free(session: Session, data: bytes, decision: Decision) -> Decision:
    return _need_client(session, _free(data)[0], decision)


def _before_dup(session: Session, data: bytes, decision: Decision) -> Decision:
    client, _, _, source_client, _ = _dup(data)
    decision = _need_client(session, client, decision)
    return _need_client(session, source_client, decision) if decision.allowed else decision


def _before_dma2(session: Session, data: bytes, decision: Decision) -> Decision:
    return _need_client(session, _dma2(data)[0], decision)


def _before_map(session: Session, data: bytes, decision: Decision) -> Decision:
    file = session.fds.get(_nvos33(data)[2])
    return _in_use(decision) if file is not None and file.mapping is not None else decision


def _before_alloc_memory(session: Session, data: bytes, decision: Decision) -> Decision:
    root, _, _, hclass, flags, _, fd = _nvos02(data)
    if hclass == nv.NV01_MEMORY_SYSTEM and maps_at_once(flags):
        file = session.fds.get(fd)
        if file is not None and file.mapping is not None:
            return _in_use(decision)
    for copy in decision.copies:
        # Both ends; a hole between them is for the host to find when it pins, since a guest can name terabytes.
        session.memory.read(copy.address, 1)
        session.memory.read(copy.address + copy.size - 1, 1)
    return _need_client(session, root, decision)


def _before_vid_heap(session: Session, data: bytes, decision: Decision) -> Decision:
    for copy in decision.copies:  # a fault comes before an unknown client
        session.memory.read(copy.address, copy.size)
    return _need_client(session, _vid_heap_root(data)[0], decision)


def _after_free(session: Session, data: bytes, out: bytes, decision: Decision) -> None:
    client, _ = _free(data)
    let_go(session, session.graph.free(client, _free(out)[1]))


def let_go(session: Session, freed: Iterable[Object]) -> None:
    """Objects are freed: their pins may go, and what the hardened profile knew of them."""
    for gone in freed:
        session.unpin.extend(gone.pins)
        if session.events is not None:
            session.events.freed(gone)


def _after_dup(session: Session, data: bytes, out: bytes, decision: Decision) -> None:
    client, _, _, source_client, _ = _dup(data)
    _, parent, handle, _, source = _dup(out)
    session.graph.dup(client, handle, parent, source_client, source)


def _after_dma2(session: Session, data: bytes, out: bytes, decision: Decision) -> None:
    # RmDeprecatedAllocContextDma(): hObjectParent is the client, and hMemory's parent becomes the new object's.
    client = _dma2(data)[0]
    _, new, hclass, memory = _dma2(out)
    below = session.graph.get(client, memory)
    if below is not None:
        session.graph.add(client, new, hclass, below.parent, restorable=False)


def _after_map(session: Session, data: bytes, out: bytes, decision: Decision) -> None:
    length, flags, _ = _nvos33(out)
    file = session.fds.get(_nvos33(data)[2])
    if file is not None and length:
        caching = flags >> nv.NVOS33_FLAGS_CACHING_TYPE_SHIFT & nv.NVOS33_FLAGS_CACHING_TYPE_MASK
        file.mapping = MapContext(length, _memory_type(file, caching))


def _after_alloc_memory(session: Session, data: bytes, out: bytes, decision: Decision) -> None:
    root, _, _, asked, flags, _, fd = _nvos02(data)
    _, parent, new, hclass, _, limit, _ = _nvos02(out)
    pins = tuple((copy.address, copy.size) for copy in decision.copies if copy.pinned)
    session.graph.add(root, new, hclass, parent, restorable=False, pins=pins)
    file = session.fds.get(fd)
    if asked == nv.NV01_MEMORY_SYSTEM and maps_at_once(flags) and file is not None:
        length = (limit + 1) & 0xFFFFFFFFFFFFFFFF
        if length:
            file.mapping = MapContext(length, _memory_type(file, nv.NVOS33_FLAGS_CACHING_TYPE_DEFAULT))


def _after_vid_heap(session: Session, data: bytes, out: bytes, decision: Decision) -> None:
    of = nvos.NVOS32_PARAMETERS.at(session.policy.version)
    (root,) = _vid_heap_root(data)
    _, parent, va_space, memory, flags, attr, attr2 = reader(of, *_VID_HEAP)(out)
    deps: tuple[int, ...] = ()
    if flags & nv.NVOS32_ALLOC_FLAGS_VIRTUAL:
        hclass, deps = nv.NV50_MEMORY_VIRTUAL, (va_space,)
    elif attr2 >> nv.NVOS32_ATTR2_USE_EGM_SHIFT & nv.NVOS32_ATTR2_USE_EGM_MASK:
        hclass = nv.NV_MEMORY_EXTENDED_USER
    elif attr >> nv.NVOS32_ATTR_LOCATION_SHIFT & nv.NVOS32_ATTR_LOCATION_MASK == nv.NVOS32_ATTR_LOCATION_VIDMEM:
        hclass = nv.NV01_MEMORY_LOCAL_USER
    else:
        hclass = nv.NV01_MEMORY_SYSTEM
    session.graph.add(root, memory, hclass, parent, deps, restorable=False)


def _after_os_event(session: Session, data: bytes, out: bytes, decision: Decision) -> None:
    if session.events is not None:
        session.events.register(
            *_os_event(data), alive=decision.rule is not None and decision.rule.name == "NV_ESC_ALLOC_OS_EVENT"
        )


def _finish_in_only(session: Session, argp: int, data: bytes, out: bytearray, decision: Decision, ok: bool) -> Result:
    return Result(0, 0, decision)


def _finish_uvm_initialize(
    session: Session, argp: int, data: bytes, out: bytearray, decision: Decision, ok: bool
) -> Result:
    out[_UVM_FLAGS] &= ~nv.UVM_INIT_FLAGS_MULTI_PROCESS_SHARING_MODE | data[_UVM_FLAGS]
    session.memory.write(argp, bytes(out))
    return Result(0, 0, decision)


def _finish_dmabuf(session: Session, argp: int, data: bytes, out: bytearray, decision: Decision, ok: bool) -> Result:
    """A dma-buf that the driver has just made becomes a new file of the guest's; undone when the guest cannot be told."""
    span = slice(_DMABUF_FD, _DMABUF_FD + 4)
    made = int32(int.from_bytes(out[span], "little"))
    fresh = int32(int.from_bytes(data[span], "little")) < 0
    fd = None
    if made >= 0 or not fresh:
        out[span] = data[span]
    if fresh and ok and made >= 0:
        try:
            fd = session.fds.install(File("dma-buf", made))
        except OSError as error:
            session.close_host.append(made)
            return Result(-1, error.errno or errno.EMFILE, decision)
        out[span] = fd.to_bytes(4, "little")
    try:
        session.memory.write(argp, bytes(out))
    except MemoryFault:
        if fd is not None:
            session.fds.remove(fd)
            session.close_host.append(made)
        raise
    return Result(0, 0, decision)


BEFORE: Mapping[str, Callable[[Session, bytes, Decision], Decision]] = {
    "alloc_context_dma2": _before_dma2,
    "alloc_memory": _before_alloc_memory,
    "dup_object": _before_dup,
    "free": _before_free,
    "map_memory": _before_map,
    "vid_heap_control": _before_vid_heap,
}
"""(session, the guest's bytes, the decision so far) -> the decision, by handler."""

AFTER: Mapping[str, Callable[[Session, bytes, bytes, Decision], None]] = {
    "NV_ESC_ALLOC_OS_EVENT": _after_os_event,
    "NV_ESC_FREE_OS_EVENT": _after_os_event,
    "alloc_context_dma2": _after_dma2,
    "alloc_memory": _after_alloc_memory,
    "dup_object": _after_dup,
    "free": _after_free,
    "map_memory": _after_map,
    "vid_heap_control": _after_vid_heap,
}
"""(session, the guest's bytes, the host's, the decision), after an NV_OK, by handler or, for rows without, by name."""

FINISH: Mapping[str, Callable[[Session, int, bytes, bytearray, Decision, bool], Result]] = {
    "export_to_dmabuf_fd": _finish_dmabuf,
    "in_only": _finish_in_only,
    "uvm_initialize": _finish_uvm_initialize,
}
"""(session, argp, the guest's bytes, the host's, the decision, whether NV_OK): what replaces the copy-out, by handler."""
