"""The rules that no role can express, as far as bytes and fds decide them. What needs a session's state is in `session`."""

from __future__ import annotations

import errno
import functools
import struct
from collections.abc import Callable, Mapping
from typing import Any

from nvproxy_model.abi import constants as nv
from nvproxy_model.fields import CStruct
from nvproxy_model.policy.decide import Decider
from nvproxy_model.policy.decision import Call, Copy, Decision, FdLookup, Verdict, Why
from nvproxy_model.structs.ctrl0000system import NV0000_CTRL_SYSTEM_GET_BUILD_VERSION_PARAMS as BUILD_VERSION
from nvproxy_model.structs.nv_unix_nvos_params_wrappers import nv_ioctl_nvos02_parameters_with_fd as nvos02_fd
from nvproxy_model.structs.nvos import NVOS32_PARAMETERS
from nvproxy_model.structs.uvm_linux_ioctl import UVM_INITIALIZE_PARAMS

__all__ = ["DECIDE", "PAGE", "maps_at_once", "offset", "reader"]

PAGE = 4096

Special = Callable[[Decider, Call, Any, FdLookup], Decision]


def offset(of: CStruct, path: str) -> int:
    """The offset in bytes of a dotted member path, in the newest layout; for structs whose layout never changed there."""
    return next(at for name, at, _ in of.walk() if name == path)


@functools.cache
def reader(of: CStruct, *paths: str) -> Callable[[bytes], tuple[Any, ...]]:
    """A function that reads these members, given in the order of their offsets, from the struct's bytes."""
    places = {name: (at, member) for name, at, member in of.walk()}
    text, end = "<", 0
    for path in paths:
        at, member = places[path]
        kind = member.element.fmtstr[1]
        text += f"{at - end}x{kind}"
        end = at + member.size
    return struct.Struct(f"{text}{of.sizeof() - end}x").unpack


def _refuse(call: Call, why: Why, status: int | None, *detail: str) -> Decision:
    return Decision(Verdict.REJECT, why, call, 0 if status is not None else errno.EINVAL, status, detail=detail)


def _patched(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


_nvos02 = reader(nvos02_fd, "params.hClass", "params.flags", "params.pMemory", "params.limit", "fd")
_NVOS02_SIZE = nvos02_fd.sizeof()
_PMEMORY, _NVOS02_FD = offset(nvos02_fd, "params.pMemory"), offset(nvos02_fd, "fd")


def maps_at_once(flags: int) -> bool:
    """Whether allocating system memory makes an mmap context too (escape.c:RmIoctl(), NV_ESC_RM_ALLOC_MEMORY)."""
    alloc = flags >> nv.NVOS02_FLAGS_ALLOC_SHIFT & nv.NVOS02_FLAGS_ALLOC_MASK
    mapping = flags >> nv.NVOS02_FLAGS_MAPPING_SHIFT & nv.NVOS02_FLAGS_MAPPING_MASK
    return alloc != nv.NVOS02_FLAGS_ALLOC_NONE and mapping != nv.NVOS02_FLAGS_MAPPING_NO_MAP


def _alloc_memory(decide: Decider, call: Call, data: Any, fds: FdLookup) -> Decision:
    """By class: the fd is translated, or hidden from the host; an OS descriptor pins the guest's own pages.

    pkg/sentry/devices/nvproxy/frontend.go: rmAllocMemory; escape.c:RmAllocOsDescriptor().
    """
    if data is None or len(data) != _NVOS02_SIZE:
        return decide(data, fds)
    hclass, flags, address, limit, _ = _nvos02(data)
    if hclass == nv.NV01_MEMORY_SYSTEM:
        return decide(data, fds)
    hidden = _patched(data, _NVOS02_FD, b"\xff\xff\xff\xff")
    if hclass in (nv.NV01_MEMORY_LOCAL_PRIVILEGED, nv.NV01_MEMORY_LOCAL_USER):
        return Decision(Verdict.TRANSLATE, Why.RULE, call, params=hidden)
    if hclass != nv.NV01_MEMORY_SYSTEM_OS_DESCRIPTOR:
        return _refuse(call, Why.VALUE, None, f"params.hClass = {hclass:#x}")
    length = (limit + 1) & 0xFFFFFFFFFFFFFFFF
    if address % PAGE:
        return _refuse(call, Why.VALUE, nv.NV_ERR_NOT_SUPPORTED, f"params.pMemory = {address:#x} is not page aligned")
    if not length:
        return _refuse(call, Why.VALUE, nv.NV_ERR_INVALID_LIMIT, f"params.limit = {limit:#x}")
    length = -(-length // PAGE) * PAGE
    if length > 0xFFFFFFFFFFFFFFFF or address + length > 0xFFFFFFFFFFFFFFFF:
        return _refuse(call, Why.VALUE, nv.NV_ERR_INVALID_ADDRESS, f"params.limit = {limit:#x} wraps")
    writable = not flags >> nv.NVOS02_FLAGS_ALLOC_USER_READ_ONLY_SHIFT & 1
    pin = Copy(_PMEMORY, address, length, pinned=True, writable=writable)
    return Decision(Verdict.TRANSLATE, Why.RULE, call, params=_patched(hidden, _PMEMORY, bytes(8)), copies=(pin,))


_NVOS32_SIZE = NVOS32_PARAMETERS.sizeof()
_nvos32 = reader(NVOS32_PARAMETERS, "function")


def _vid_heap_control(decide: Decider, call: Call, data: Any, fds: FdLookup) -> Decision:
    """Only ALLOC_SIZE, whose union member holds the one pointer that is copied."""
    if data is not None and len(data) == _NVOS32_SIZE:
        (function,) = _nvos32(data)
        if function != nv.NVOS32_FUNCTION_ALLOC_SIZE:
            return _refuse(call, Why.VALUE, None, f"function = {function:#x}")
    return decide(data, fds)


_FLAGS = offset(UVM_INITIALIZE_PARAMS, "flags")


def _uvm_initialize(decide: Decider, call: Call, data: Any, fds: FdLookup) -> Decision:
    """The host shares one VA space between the sentry and the program, so MULTI_PROCESS_SHARING_MODE is always set for it."""
    answer = decide(data, fds)
    if not answer.allowed:
        return answer
    flags = data[_FLAGS] | nv.UVM_INIT_FLAGS_MULTI_PROCESS_SHARING_MODE
    return answer._replace(verdict=Verdict.TRANSLATE, params=_patched(data, _FLAGS, bytes([flags])))


_STRINGS = ("pDriverVersionBuffer", "pVersionBuffer", "pTitleBuffer")
_BUILD_VERSION_SIZE = BUILD_VERSION.sizeof()
_build_version = reader(BUILD_VERSION, "sizeOfStrings", *_STRINGS)
_SIZE_OF_STRINGS = offset(BUILD_VERSION, "sizeOfStrings")


def _get_build_version(decide: Decider, call: Call, data: Any, fds: FdLookup) -> Decision:
    """All three strings or none, and no more of them than the driver's own limit, which the guest sees.

    rmapi_deprecated_control.c:V2_CONVERTER(_NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION).
    """
    if data is not None and len(data) == _BUILD_VERSION_SIZE:
        size, *strings = _build_version(data)
        if not all(strings):
            for name in _STRINGS:
                data = _patched(data, offset(BUILD_VERSION, name), bytes(8))
        elif size > nv.NV0000_CTRL_SYSTEM_GET_BUILD_VERSION_V2_MAX_STRING_SIZE:
            clamped = nv.NV0000_CTRL_SYSTEM_GET_BUILD_VERSION_V2_MAX_STRING_SIZE
            data = _patched(data, _SIZE_OF_STRINGS, clamped.to_bytes(4, "little"))
    return decide(data, fds)


DECIDE: Mapping[str, Special] = {
    "alloc_memory": _alloc_memory,
    "get_build_version": _get_build_version,
    "uvm_initialize": _uvm_initialize,
    "vid_heap_control": _vid_heap_control,
}
