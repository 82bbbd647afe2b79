"""The hardened profile: rules of this project's own, off by default, where nvproxy and the driver differ or
ask little.

Each is described in docs/hardened.md. A policy asks `CAPS` and `CHECKS`; what a session remembers for the
profile is `nvproxy_model.session.events.Events`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

from nvproxy_model.abi.constants import (
    NV_ERR_INSUFFICIENT_PERMISSIONS,
    NV_ERR_INVALID_ARGUMENT,
    NV_ERR_INVALID_OBJECT_HANDLE,
    NV_ERR_NOT_SUPPORTED,
)
from nvproxy_model.caps import Caps
from nvproxy_model.fields import CStruct
from nvproxy_model.policy import refusals
from nvproxy_model.policy.decision import Call, Decision, Facts, FdLookup, Why
from nvproxy_model.policy.generate import Decider
from nvproxy_model.versions import DriverVersion

__all__ = [
    "BYTES",
    "BYTES_SIZES",
    "CAPS",
    "CHECKS",
    "MAX_DEBUG_READ",
    "MIN_RECORD_SIZE",
    "MIN_VIDEO_RECORD_SIZE",
    "Check",
    "guard",
    "refuse",
    "sized",
]

MIN_RECORD_SIZE = 0x20
"""The smallest record that the driver's context-switch producers write (cl90cdfecs.h), in bytes."""
MIN_VIDEO_RECORD_SIZE = 0x30
"""The same for a buffer bound to video events (cl90cdvideo.h)."""

MAX_DEBUG_READ = 256 << 10
"""Bytes that one NV83DE_CTRL_CMD_DEBUG_READ_MEMORY may ask for; nvproxy's own limit is 1 GiB."""

CAPS: Mapping[str, Caps] = {"NV01_MEMORY_DEVICELESS": Caps.PROFILING}
"""By rule. Deviceless memory serves event buffers only, so it needs what they need."""

Check = Callable[[Mapping[str, int], DriverVersion], tuple[int, Facts] | None]


def refuse(call: Call, status: int, facts: Facts) -> Decision:
    """A refusal by this profile, with the status that the driver returns in the equivalent case."""
    return refusals.refuse(call, Why.HARDENED, status, facts)


def _event_buffer(params: Mapping[str, int], version: DriverVersion) -> tuple[int, Facts] | None:
    if params["recordSize"] < MIN_RECORD_SIZE:
        return NV_ERR_INVALID_ARGUMENT, Facts("recordSize", params["recordSize"], f"at least {MIN_RECORD_SIZE:#x}")
    if not params["hSubDevice"] and version.descends_from("550.40.07"):
        return NV_ERR_INVALID_OBJECT_HANDLE, Facts("hSubDevice", 0, "a subdevice")
    return None


def _fecs_bind(params: Mapping[str, int], version: DriverVersion) -> tuple[int, Facts] | None:
    if params["bAllUsers"]:
        facts = Facts("bAllUsers", params["bAllUsers"], "0: it would record the contexts of others")
        return NV_ERR_NOT_SUPPORTED, facts
    return None


def _profiler_device(params: Mapping[str, int], version: DriverVersion) -> tuple[int, Facts] | None:
    for field in ("hClientTarget", "hContextTarget"):
        if not params[field]:
            facts = Facts(field, 0, "a context to profile: without one the counters are those of all tenants")
            return NV_ERR_INSUFFICIENT_PERMISSIONS, facts
    return None


def _read_memory(params: Mapping[str, int], version: DriverVersion) -> tuple[int, Facts] | None:
    if not 1 <= params["length"] <= MAX_DEBUG_READ:
        return NV_ERR_INVALID_ARGUMENT, Facts("length", params["length"], f"1 to {MAX_DEBUG_READ:#x}")
    return None


CHECKS: Mapping[str, Check] = {
    "MAXWELL_PROFILER_DEVICE": _profiler_device,
    "NV83DE_CTRL_CMD_DEBUG_READ_MEMORY": _read_memory,
    "NV_EVENT_BUFFER": _event_buffer,
    "NV2080_CTRL_CMD_GR_FECS_BIND_EVTBUF_FOR_UID": _fecs_bind,
    "NV2080_CTRL_CMD_GR_FECS_BIND_EVTBUF_FOR_UID_V2": _fecs_bind,
}
"""By rule: (parsed parameters, release) -> a status and what is wrong, or None."""

Bytes = Callable[[bytes], tuple[int, Facts] | None]


def _byte(field: str, at: int, want: int, why: str) -> Bytes:
    """One byte that must have one value."""

    def check(data: bytes) -> tuple[int, Facts] | None:
        return None if data[at] == want else (NV_ERR_INSUFFICIENT_PERMISSIONS, Facts(field, data[at], f"{want}: {why}"))

    return check


def _action(data: bytes) -> tuple[int, Facts] | None:
    action = int.from_bytes(data[:4], "little")
    if action in (1, 2):
        return None
    return NV_ERR_INVALID_ARGUMENT, Facts("action", action, "1 (enable) or 2 (disable): 3 drops the requests of others")


_REG_OPS, _REG_OP_SIZE, _REG_OPS_AT = 124, 32, 12
_READS, _CONTEXT_TYPES = frozenset({0, 2, 4}), frozenset({1, 2, 4, 8, 0x10, 0x40})


def _reg_ops(data: bytes) -> tuple[int, Facts] | None:
    count, mode = struct.unpack_from("<II", data)
    if not 1 <= count <= _REG_OPS:
        return NV_ERR_INVALID_ARGUMENT, Facts("regOpCount", count, f"1 to {_REG_OPS}")
    if mode > 1:
        return NV_ERR_INVALID_ARGUMENT, Facts("mode", mode, "0 or 1")
    for index in range(count):
        operation, kind = data[_REG_OPS_AT + index * _REG_OP_SIZE :][:2]
        if operation not in _READS:
            facts = Facts(f"regOps[{index}].regOp", operation, "a read: 0, 2 or 4")
            return NV_ERR_INSUFFICIENT_PERMISSIONS, facts
        if kind not in _CONTEXT_TYPES:
            facts = Facts(f"regOps[{index}].regType", kind, "a register of the context")
            return NV_ERR_INSUFFICIENT_PERMISSIONS, facts
    return None


_OPCODES = frozenset({0x100, 0x101, 0x301, 0x500, 0x510, 0x520, 0x540, 0x1500})
"""All opcodes that NVIDIA's header has, in every release: each reads."""


def _thermal(data: bytes) -> tuple[int, Facts] | None:
    version, revision, size, flags, _, count = struct.unpack_from("<6I", data)
    for field, value, good, want in (
        ("clientAPIVersion", version, version == 1, "1"),
        ("clientAPIRevision", revision, revision == 0, "0"),
        ("clientInstructionSizeOf", size, size == 44, "44"),
        ("executeFlags", flags, flags <= 1, "0 or 1"),
        ("instructionListSize", count, count <= 32, "at most 32"),
    ):
        if not good:
            return NV_ERR_INVALID_ARGUMENT, Facts(field, value, want)
    for index in range(count):
        (opcode,) = struct.unpack_from("<I", data, 24 + 44 * index + 8)
        if opcode not in _OPCODES:
            return NV_ERR_INVALID_ARGUMENT, Facts(f"instructionList[{index}].opcode", opcode, "a known opcode")
    return None


_OWN_CONTEXT = "the profiler's own context, not the whole GPU"
BYTES: Mapping[str, Bytes] = {
    "NV2080_CTRL_CMD_THERMAL_SYSTEM_EXECUTE_V2": _thermal,
    "NV83DE_CTRL_CMD_DEBUG_SET_MODE_ERRBAR_DEBUG": _action,
    "NV83DE_CTRL_CMD_DEBUG_SET_MODE_MMU_DEBUG": _action,
    "NVB0CC_CTRL_CMD_ALLOC_PMA_STREAM": _byte("ctxsw", 40, 1, _OWN_CONTEXT),
    "NVB0CC_CTRL_CMD_EXEC_REG_OPS": _reg_ops,
    "NVB0CC_CTRL_CMD_PMA_STREAM_UPDATE_GET_PUT": _byte("bWait", 9, 0, "the driver would spin with its locks held"),
    "NVB0CC_CTRL_CMD_RESERVE_CCU_PROF": _byte("ctxsw", 0, 1, _OWN_CONTEXT),
    "NVB0CC_CTRL_CMD_RESERVE_HWPM_LEGACY": _byte("ctxsw", 0, 1, _OWN_CONTEXT),
    "NVB0CC_CTRL_CMD_RESERVE_PM_AREA_SMPC": _byte("ctxsw", 0, 1, _OWN_CONTEXT),
}
"""By rule, for parameters that the model does not define: (bytes of the right size) -> as above. Offsets are the same in every
listed release (docs/hardened.md)."""
BYTES_SIZES: Mapping[str, int] = {
    "NV2080_CTRL_CMD_THERMAL_SYSTEM_EXECUTE_V2": 1432,
    "NV83DE_CTRL_CMD_DEBUG_SET_MODE_ERRBAR_DEBUG": 4,
    "NV83DE_CTRL_CMD_DEBUG_SET_MODE_MMU_DEBUG": 4,
    "NVB0CC_CTRL_CMD_ALLOC_PMA_STREAM": 56,
    "NVB0CC_CTRL_CMD_EXEC_REG_OPS": 3980,
    "NVB0CC_CTRL_CMD_PMA_STREAM_UPDATE_GET_PUT": 48,
    "NVB0CC_CTRL_CMD_RESERVE_CCU_PROF": 1,
    "NVB0CC_CTRL_CMD_RESERVE_HWPM_LEGACY": 1,
    "NVB0CC_CTRL_CMD_RESERVE_PM_AREA_SMPC": 1,
}
"""The sizes that the functions above read, which hold where a release's own are not recorded."""


def sized(name: str, admitted: Decision, size: int) -> Decider:
    """A decider for a control that is passed on as bytes: of just this size, and what BYTES says of them."""
    check = BYTES.get(name)

    def decide(data: Any, fds: FdLookup) -> Decision:
        found = 0 if data is None else len(data)
        if found != size:
            return refuse(admitted.call, NV_ERR_INVALID_ARGUMENT, Facts("paramsSize", found, size))
        refused = None if check is None or data is None else check(data)
        return admitted if refused is None else refuse(admitted.call, *refused)

    return decide


def guard(check: Check, inner: Decision | Decider, call: Call, of: CStruct, version: DriverVersion) -> Decider:
    """A decider that refuses what ``inner`` admits and ``check`` does not."""

    size = of.sizeof()

    def decide(data: Any, fds: FdLookup) -> Decision:
        answer = inner if isinstance(inner, Decision) else inner(data, fds)
        if data is None or len(data) != size or not answer.allowed:
            return answer
        refused = check(of.parse(data), version)
        return answer if refused is None else refuse(call, *refused)

    return decide
