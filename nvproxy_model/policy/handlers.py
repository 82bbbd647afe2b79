"""What no role can say: one record a handler, which rows name by ``handler=``.

A policy uses what bytes and descriptors decide (``decide``, ``duty``, ``inner``). What needs a session
(``before``, ``after``, ``finish``) is filled in by `nvproxy_model.session.escapes`, on the same records.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from nvproxy_model.abi import constants as nv
from nvproxy_model.errors import DefinitionError
from nvproxy_model.fields import CStruct
from nvproxy_model.policy.decision import Call, Copy, Decision, Facts, FdLookup, Verdict, Why
from nvproxy_model.policy.generate import Decider
from nvproxy_model.policy.refusals import refuse
from nvproxy_model.rules import Rule, Table
from nvproxy_model.structs import named

__all__ = [
    "HANDLERS",
    "PAGE",
    "PLAIN",
    "TRACKER_CONTROL",
    "TRACKER_ENTRY",
    "Handler",
    "Inner",
    "handler_of",
    "maps_at_once",
    "offset",
    "reader",
]

PAGE = 4096
"""Bytes a page."""

Decide = Callable[[Decider, Call, Any, FdLookup], Decision]
Asked = TypeVar("Asked")


def offset(of: CStruct, path: str) -> int:
    """The offset in bytes of a dotted member path, in the newest layout; for structs whose layout never
    changed there."""
    return next(at for name, at, _ in of.walk() if name == path)


@functools.cache
def reader(of: CStruct, *paths: str) -> Callable[[bytes | bytearray], tuple[Any, ...]]:
    """A function that reads these members, given in the order of their offsets, from the struct's bytes."""
    places = {name: (at, member) for name, at, member in of.walk()}
    text, end = "<", 0
    for path in paths:
        at, member = places[path]
        kind = member.element.fmtstr[1]
        text += f"{at - end}x{kind}"
        end = at + member.size
    return struct.Struct(f"{text}{of.sizeof() - end}x").unpack


class _View(NamedTuple):
    """Some members of a struct: its size in bytes, the function that reads them, the offset of each."""

    size: int
    read: Callable[[bytes | bytearray], tuple[Any, ...]]
    at: tuple[int, ...]


@functools.cache
def _view(place: str, *paths: str) -> _View:
    """These members of the struct that is `named` so, worked out when a call first needs it."""
    of = named(place)
    return _View(of.sizeof(), reader(of, *paths), tuple(offset(of, path) for path in paths))


@dataclass(frozen=True)
class Inner:
    """The number inside an escape's argument that the answer depends on: a row of ``table``.

    The number is the ``field``, of 32 bits and at the same place, of each of the ``structs``, which are `named` so.
    """

    table: Table
    field: str
    structs: tuple[str, ...]

    @functools.cached_property
    def offset(self) -> int:
        """Where the number is, in bytes."""
        return offset(named(self.structs[0]), self.field)

    @functools.cached_property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the structs, in bytes."""
        return tuple(named(place).sizeof() for place in self.structs)


@dataclass(frozen=True, slots=True)
class Handler(Generic[Asked]):
    """What becomes of a call beyond its struct's roles. Each part is optional.

    ``decide``: (the roles' decider, the question, the bytes, the descriptors) -> a decision. ``before``:
    asked by a session when the call is admitted so far; the final decision. ``after``: called by a session when
    the driver answered NV_OK. ``finish``: writes the guest's memory in place of the plain copy-out, and
    returns an errno or 0. ``duty``: what remains for the embedder. ``inner``: the command or class that the
    argument names.
    """

    name: str
    decide: Decide | None = None
    before: Callable[[Asked], Decision] | None = None
    after: Callable[[Asked], None] | None = None
    finish: Callable[[Asked], int] | None = None
    duty: str | None = None
    inner: Inner | None = None


def _patched(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


_NVOS02 = (
    "nv_unix_nvos_params_wrappers.nv_ioctl_nvos02_parameters_with_fd",
    "params.hClass",
    "params.flags",
    "params.pMemory",
    "params.limit",
    "fd",
)


def maps_at_once(flags: int) -> bool:
    """Whether allocating system memory makes an mmap context too (escape.c:RmIoctl(),
    NV_ESC_RM_ALLOC_MEMORY)."""
    alloc = flags >> nv.NVOS02_FLAGS_ALLOC_SHIFT & nv.NVOS02_FLAGS_ALLOC_MASK
    mapping = flags >> nv.NVOS02_FLAGS_MAPPING_SHIFT & nv.NVOS02_FLAGS_MAPPING_MASK
    return alloc != nv.NVOS02_FLAGS_ALLOC_NONE and mapping != nv.NVOS02_FLAGS_MAPPING_NO_MAP


def _alloc_memory(decide: Decider, call: Call, data: Any, fds: FdLookup) -> Decision:
    """By class: the descriptor is translated, or hidden from the host; an OS descriptor pins the guest's own
    pages.

    pkg/sentry/devices/nvproxy/frontend.go: rmAllocMemory; escape.c:RmAllocOsDescriptor().
    """
    view = _view(*_NVOS02)
    if data is None or len(data) != view.size:
        return decide(data, fds)
    hclass, flags, address, limit, _ = view.read(data)
    _, _, at_memory, _, at_fd = view.at
    if hclass == nv.NV01_MEMORY_SYSTEM:
        return decide(data, fds)
    hidden = _patched(data, at_fd, b"\xff\xff\xff\xff")
    if hclass in (nv.NV01_MEMORY_LOCAL_PRIVILEGED, nv.NV01_MEMORY_LOCAL_USER):
        return Decision(Verdict.TRANSLATE, Why.RULE, call, params=hidden)
    if hclass != nv.NV01_MEMORY_SYSTEM_OS_DESCRIPTOR:
        return refuse(call, Why.VALUE, None, Facts("params.hClass", hclass))
    length = (limit + 1) & 0xFFFFFFFFFFFFFFFF
    if address % PAGE:
        facts = Facts("params.pMemory", address, "a page-aligned address")
        return refuse(call, Why.VALUE, nv.NV_ERR_NOT_SUPPORTED, facts)
    if not length:
        return refuse(call, Why.VALUE, nv.NV_ERR_INVALID_LIMIT, Facts("params.limit", limit))
    length = -(-length // PAGE) * PAGE
    if length > 0xFFFFFFFFFFFFFFFF or address + length > 0xFFFFFFFFFFFFFFFF:
        facts = Facts("params.limit", limit, "an end below 2^64")
        return refuse(call, Why.VALUE, nv.NV_ERR_INVALID_ADDRESS, facts)
    writable = not flags >> nv.NVOS02_FLAGS_ALLOC_USER_READ_ONLY_SHIFT & 1
    pin = Copy(at_memory, address, length, pinned=True, writable=writable)
    return Decision(Verdict.TRANSLATE, Why.RULE, call, params=_patched(hidden, at_memory, bytes(8)), copies=(pin,))


def _vid_heap_control(decide: Decider, call: Call, data: Any, fds: FdLookup) -> Decision:
    """Only ALLOC_SIZE, whose union member holds the one pointer that is copied."""
    view = _view("nvos.NVOS32_PARAMETERS", "function")
    if data is not None and len(data) == view.size:
        (function,) = view.read(data)
        if function != nv.NVOS32_FUNCTION_ALLOC_SIZE:
            return refuse(call, Why.VALUE, None, Facts("function", function, nv.NVOS32_FUNCTION_ALLOC_SIZE))
    return decide(data, fds)


def _uvm_initialize(decide: Decider, call: Call, data: Any, fds: FdLookup) -> Decision:
    """The host shares one VA space between the sentry and the program, so MULTI_PROCESS_SHARING_MODE is
    always set for it."""
    answer = decide(data, fds)
    if not answer.allowed:
        return answer
    (at_flags,) = _view("uvm_linux_ioctl.UVM_INITIALIZE_PARAMS", "flags").at
    flags = data[at_flags] | nv.UVM_INIT_FLAGS_MULTI_PROCESS_SHARING_MODE
    return answer._replace(verdict=Verdict.TRANSLATE, params=_patched(data, at_flags, bytes([flags])))


TRACKER_ENTRY = {56: 64, 76: 72}
"""sizeof(UvmEventEntry) and sizeof(UvmEventEntry_V2), in bytes, by the command that makes a tracker of such
entries (uvm_types.h)."""
TRACKER_CONTROL = 528
"""sizeof(UvmToolsEventControlData), in bytes."""
_TRACKER = ("uvm_ioctl.UVM_TOOLS_INIT_EVENT_TRACKER_PARAMS", "queueBuffer", "queueBufferSize", "controlBuffer")


def _uvm_tools_init_event_tracker(decide: Decider, call: Call, data: Any, fds: FdLookup) -> Decision:
    """Both buffers are the guest's own pages, which the driver fills for as long as the file is open.

    pkg/sentry/devices/nvproxy/uvm_tools.go: uvmToolsInitEventTracker; uvm_tools.c: create_event_tracker(),
    map_user_pages().
    """
    answer = decide(data, fds)
    if not answer.allowed:
        return answer
    view = _view(*_TRACKER)
    queue, count, control = view.read(data)
    at_queue, _, at_control = view.at
    if count and (count & (count - 1) or not 2 <= count <= 0xFFFFFFFF):
        facts = Facts("queueBufferSize", count, "0, or a power of two from 2 to 2^31")
        return refuse(call, Why.VALUE, nv.NV_ERR_INVALID_ARGUMENT, facts)
    params = _patched(_patched(answer.params or data, at_queue, bytes(8)), at_control, bytes(8))
    spans = [(at_control, "controlBuffer", control, TRACKER_CONTROL if count else nv.UVM_TOTAL_COUNTERS * 8)]
    if count:
        spans.insert(0, (at_queue, "queueBuffer", queue, count * TRACKER_ENTRY[call.number]))
    pins = []
    for at, name, address, size in spans:
        length = -(-size // PAGE) * PAGE
        # An end of 2^64 wraps to 0, which uvm_api.h:uvm_api_range_invalid_aligned() takes for an overflow.
        if not address or address % PAGE or address + length >= 1 << 64:
            facts = Facts(name, address, f"the page-aligned start of {length} bytes")
            return refuse(call, Why.VALUE, nv.NV_ERR_INVALID_ADDRESS, facts)
        pins.append(Copy(at, address, length, pinned=True))
    return answer._replace(verdict=Verdict.TRANSLATE, params=params, copies=tuple(pins))


_BUILD_VERSION = (
    "ctrl0000system.NV0000_CTRL_SYSTEM_GET_BUILD_VERSION_PARAMS",
    "sizeOfStrings",
    "pDriverVersionBuffer",
    "pVersionBuffer",
    "pTitleBuffer",
)


def _get_build_version(decide: Decider, call: Call, data: Any, fds: FdLookup) -> Decision:
    """All three strings or none, and no more of them than the driver's own limit, which the guest sees.

    rmapi_deprecated_control.c:V2_CONVERTER(_NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION).
    """
    given, view = data, _view(*_BUILD_VERSION)
    if data is not None and len(data) == view.size:
        size, *strings = view.read(data)
        at_size, *at_strings = view.at
        if not all(strings):
            for at in at_strings:
                data = _patched(data, at, bytes(8))
        elif size > nv.NV0000_CTRL_SYSTEM_GET_BUILD_VERSION_V2_MAX_STRING_SIZE:
            clamped = nv.NV0000_CTRL_SYSTEM_GET_BUILD_VERSION_V2_MAX_STRING_SIZE
            data = _patched(data, at_size, clamped.to_bytes(4, "little"))
    answer = decide(data, fds)
    # The host is given other bytes than the guest's also where no string is copied.
    return answer._replace(verdict=Verdict.TRANSLATE) if answer.allowed and data != given else answer


PLAIN: Handler[Any] = Handler("")
"""For rows that name none: their roles say all."""

_ALL: tuple[Handler[Any], ...] = (
    Handler("alloc", inner=Inner("alloc", "hClass", ("nvos.NVOS21_PARAMETERS", "nvos.NVOS64_PARAMETERS"))),
    Handler("alloc_context_dma2"),
    Handler(
        "alloc_memory",
        decide=_alloc_memory,
        duty="NV01_MEMORY_SYSTEM: on NV_OK the named file may be mapped once, limit + 1 bytes, unless the flags say "
        "otherwise; OS descriptors: pin the guest's pages until the object is freed",
    ),
    Handler("control", inner=Inner("control", "cmd", ("nvos.NVOS54_PARAMETERS",))),
    Handler("dup_object"),
    Handler(
        "export_to_dmabuf_fd",
        duty="on NV_OK with a fresh fd: wrap the host's dma-buf in a new guest file, close-on-exec",
    ),
    Handler("free"),
    Handler("get_build_version", decide=_get_build_version),
    Handler("in_only"),
    Handler(
        "map_memory",
        duty="on NV_OK the named file may be mapped once, params.length bytes, as the returned caching type says",
    ),
    Handler("os_event"),
    Handler("register_va_space"),
    Handler("root_client"),
    Handler(
        "uvm_initialize",
        decide=_uvm_initialize,
        duty="map UVM ranges of the guest at the same address for the host: offset == address",
    ),
    Handler(
        "uvm_tools_init_event_tracker",
        decide=_uvm_tools_init_event_tracker,
        duty="on NV_OK: pin the guest's pages of both buffers until the file of the tools device is closed",
    ),
    Handler("vid_heap_control", decide=_vid_heap_control),
)

HANDLERS: Mapping[str, Handler[Any]] = {handler.name: handler for handler in _ALL}
"""Every handler that a row may name."""


def handler_of(rule: Rule) -> Handler[Any]:
    """The handler that a row names, `PLAIN` if it names none. Raises DefinitionError for a name that does not
    exist."""
    if rule.handler is None:
        return PLAIN
    if rule.handler not in HANDLERS:
        raise DefinitionError(f"{rule.table} {rule.number:#x} {rule.name}: no handler {rule.handler!r}")
    return HANDLERS[rule.handler]
