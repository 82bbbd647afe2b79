"""Rules of the hardened profile about whom a call concerns: the client and the objects that its fields name, and the object
that it is asked of.

To the resource manager every client of a sandbox is the sentry's, so that it does not keep two programs in one sandbox apart.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Iterator, Mapping
from typing import Final

from nvproxy_model.abi.constants import (
    NV01_MEMORY_LOCAL_USER,
    NV01_MEMORY_SYSTEM,
    NV01_MEMORY_SYSTEM_OS_DESCRIPTOR,
    NV2081_BINAPI,
    NV_ERR_INVALID_ARGUMENT,
    NV_ERR_INVALID_CLIENT,
    NV_ERR_INVALID_OBJECT_HANDLE,
    NV_ERR_NOT_SUPPORTED,
)
from nvproxy_model.fields import CStruct
from nvproxy_model.policy import hardened
from nvproxy_model.policy.decision import Decision, Facts
from nvproxy_model.session.ports import Process

__all__ = ["check_binapi", "check_clients", "check_memory"]

_CLIENT: Final = re.compile(r"h\w*Client\w*")
_BY_NAME: Final[Mapping[str, tuple[tuple[str, int, int], ...]]] = {
    "NV2080_CTRL_CMD_GR_CTXSW_ZCULL_BIND": (("hClient", 0, 1),),
}
"""(field, offset, how many) for parameters that the model does not define; the same in every listed release."""
_MEMORY: Final[Mapping[str, tuple[tuple[str, int], ...]]] = {
    "NVB0CC_CTRL_CMD_ALLOC_PMA_STREAM": (("hMemPmaBuffer", 0), ("hMemPmaBytesAvailable", 24)),
    "NV83DE_CTRL_CMD_DEBUG_READ_MEMORY": (("hMemory", 0),),
}
_MEMORY_CLASSES: Final = {
    "NVB0CC_CTRL_CMD_ALLOC_PMA_STREAM": frozenset({NV01_MEMORY_SYSTEM, NV01_MEMORY_LOCAL_USER}),
    "NV83DE_CTRL_CMD_DEBUG_READ_MEMORY": frozenset(
        {NV01_MEMORY_SYSTEM, NV01_MEMORY_LOCAL_USER, NV01_MEMORY_SYSTEM_OS_DESCRIPTOR}
    ),
}
_u32 = struct.Struct("<I").unpack_from


@functools.cache
def _fields(of: CStruct) -> tuple[tuple[str, int, int], ...]:
    """The fields of a resolved struct that name a client."""
    return tuple(_found(of))


def _found(of: CStruct) -> Iterator[tuple[str, int, int]]:
    for path, offset, member in of.walk():
        if _CLIENT.fullmatch(member.name) and getattr(member.element, "base", "") == "u32" and "[]" not in path:
            count = 1
            for dimension in member.dims:
                count *= dimension
            yield path, offset, count


def check_clients(process: Process, decision: Decision, data: bytes) -> Decision:
    """Every client that the parameters name is one of this session; 0 names none."""
    rule = decision.call.rule
    if rule is None or not decision.allowed:
        return decision
    of = rule.params_at(process.policy.version)
    fields = _fields(of) if isinstance(of, CStruct) else _BY_NAME.get(rule.name, ())
    for field, offset, count in fields:
        if rule.name == "NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS":
            count = min(count, _u32(data, 4)[0])  # numChannels: what lies beyond is not read
        if offset + 4 * count > len(data):
            return _too_short(decision, data, field)
        for index in range(count):
            (client,) = _u32(data, offset + 4 * index)
            if client and not process.graph.has_client(client):
                return hardened.refuse(
                    decision.call, NV_ERR_INVALID_CLIENT, Facts(field, client, "a client of the caller")
                )
    return decision


def _too_short(decision: Decision, data: bytes, field: str) -> Decision:
    """Where a release's size of the parameters is not known they may end before the field; its driver refuses that (control.c)."""
    facts = Facts("paramsSize", len(data), f"a size that holds {field}")
    return hardened.refuse(decision.call, NV_ERR_INVALID_ARGUMENT, facts)


def check_memory(process: Process, decision: Decision, client: int, data: bytes) -> Decision:
    """Memory that a profiler or debugger names is memory of the caller, of a class that holds no registers."""
    rule = decision.call.rule
    if rule is None or not decision.allowed:
        return decision
    for field, offset in _MEMORY.get(rule.name, ()):
        if offset + 4 > len(data):
            return _too_short(decision, data, field)
        (handle,) = _u32(data, offset)
        found = process.graph.get(client, handle)
        if found is None or found.hclass not in _MEMORY_CLASSES[rule.name]:
            facts = Facts(field, handle, "memory of the caller", None if found is None else f"class {found.hclass:#x}")
            return hardened.refuse(decision.call, NV_ERR_INVALID_OBJECT_HANDLE, facts)
    return decision


def check_binapi(process: Process, decision: Decision, client: int, handle: int) -> Decision:
    """With the bypass windows closed, an object of NV2081_BINAPI takes no command: the driver sends whatever number arrives at
    one on to its firmware (binary_api.c: binapiControl_IMPL())."""
    windows = process.policy.windows
    if windows == "allow" or not decision.allowed:
        return decision
    if not isinstance(windows, str) and decision.number in windows:
        return decision
    found = process.graph.get(client, handle)
    if found is None or found.hclass != NV2081_BINAPI:
        return decision
    facts = Facts("hObject", handle, "an object of another class than NV2081_BINAPI")
    return hardened.refuse(decision.call, NV_ERR_NOT_SUPPORTED, facts)
