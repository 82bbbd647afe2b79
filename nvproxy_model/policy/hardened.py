"""The hardened profile: rules of this project's own, off by default, where nvproxy and the driver differ or
ask little.

Each is described in docs/hardened.md. A policy asks `CAPS` and `CHECKS`; what a session remembers for the
profile is `nvproxy_model.session.events.Events`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nvproxy_model.abi.constants import (
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

__all__ = ["CAPS", "CHECKS", "MIN_RECORD_SIZE", "MIN_VIDEO_RECORD_SIZE", "Check", "guard", "refuse"]

MIN_RECORD_SIZE = 0x20
"""The smallest record that the driver's context-switch producers write (cl90cdfecs.h), in bytes."""
MIN_VIDEO_RECORD_SIZE = 0x30
"""The same for a buffer bound to video events (cl90cdvideo.h)."""

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


CHECKS: Mapping[str, Check] = {
    "NV_EVENT_BUFFER": _event_buffer,
    "NV2080_CTRL_CMD_GR_FECS_BIND_EVTBUF_FOR_UID": _fecs_bind,
    "NV2080_CTRL_CMD_GR_FECS_BIND_EVTBUF_FOR_UID_V2": _fecs_bind,
}
"""By rule: (parsed parameters, release) -> a status and what is wrong, or None."""


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
