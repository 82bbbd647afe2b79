"""The hardened profile: rules of this project's own, off by default, where nvproxy and the driver differ or ask little.

Each is described in docs/hardened.md. A policy asks `CAPS` and `CHECKS`; a session keeps `Events`: which OS events a client
registered, and how large the records of a buffer are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nvproxy_model.abi.constants import (
    NV_ERR_INVALID_ARGUMENT,
    NV_ERR_INVALID_OBJECT_HANDLE,
    NV_ERR_NOT_SUPPORTED,
    NV_ERR_OBJECT_NOT_FOUND,
    NV_EVENT_BUFFER,
)
from nvproxy_model.caps import Caps
from nvproxy_model.decide import Decider
from nvproxy_model.decision import Call, Decision, FdLookup, Verdict, Why
from nvproxy_model.fields import CStruct
from nvproxy_model.objects import Graph, Object
from nvproxy_model.structs.cl90cd import NV_EVENT_BUFFER_ALLOC_PARAMETERS
from nvproxy_model.structs.ctrl2080event import NV2080_CTRL_EVENT_VIDEO_BIND_EVTBUF_PARAMS
from nvproxy_model.versions import DriverVersion

__all__ = ["CAPS", "CHECKS", "MIN_RECORD_SIZE", "MIN_VIDEO_RECORD_SIZE", "Events", "guard", "refuse"]

MIN_RECORD_SIZE = 0x20
"""The smallest record that the driver's context-switch producers write (cl90cdfecs.h), in bytes."""
MIN_VIDEO_RECORD_SIZE = 0x30
"""The same for a buffer bound to video events (cl90cdvideo.h)."""

CAPS: Mapping[str, Caps] = {"NV01_MEMORY_DEVICELESS": Caps.PROFILING}
"""By rule. Deviceless memory serves event buffers only, so it needs what they need."""

Check = Callable[[Mapping[str, int], DriverVersion], tuple[int, str] | None]


def refuse(call: Call, status: int, *detail: str) -> Decision:
    """A refusal by this profile, with the status the driver gives in the like case."""
    return Decision(Verdict.REJECT, Why.HARDENED, call, 0, status, detail=detail)


def _event_buffer(params: Mapping[str, int], version: DriverVersion) -> tuple[int, str] | None:
    if params["recordSize"] < MIN_RECORD_SIZE:
        return NV_ERR_INVALID_ARGUMENT, f"recordSize {params['recordSize']:#x} is below {MIN_RECORD_SIZE:#x}"
    if not params["hSubDevice"] and version.descends_from("550.40.07"):
        return NV_ERR_INVALID_OBJECT_HANDLE, "hSubDevice is 0"
    return None


def _fecs_bind(params: Mapping[str, int], version: DriverVersion) -> tuple[int, str] | None:
    if params["bAllUsers"]:
        return NV_ERR_NOT_SUPPORTED, "bAllUsers would record the contexts of others"
    return None


_VIDEO_BIND = "NV2080_CTRL_CMD_EVENT_VIDEO_BIND_EVTBUF"

CHECKS: Mapping[str, Check] = {
    "NV_EVENT_BUFFER": _event_buffer,
    "NV2080_CTRL_CMD_GR_FECS_BIND_EVTBUF_FOR_UID": _fecs_bind,
    "NV2080_CTRL_CMD_GR_FECS_BIND_EVTBUF_FOR_UID_V2": _fecs_bind,
}
"""By rule: (parsed parameters, release) -> a status and the reason, or None."""


def guard(check: Check, inner: Decision | Decider, call: Call, of: CStruct, version: DriverVersion) -> Decider:
    """A decider that asks ``check`` first and ``inner`` when that has nothing to say."""

    size = of.sizeof()

    def decide(data: Any, fds: FdLookup) -> Decision:
        answer = inner if isinstance(inner, Decision) else inner(data, fds)
        if data is None or len(data) != size or not answer.allowed:
            return answer
        refused = check(of.parse(data), version)
        return answer if refused is None else refuse(call, *refused)

    return decide


class Events:
    """What the profile remembers of a session: the OS events of each client, and the record size of each event buffer."""

    def __init__(self) -> None:
        self._registered: set[tuple[int, int]] = set()
        self._record_size: dict[Object, int] = {}

    def register(self, client: int, fd: int, *, alive: bool) -> None:
        """NV_ESC_ALLOC_OS_EVENT or NV_ESC_FREE_OS_EVENT of a client succeeded for the guest's ``fd``."""
        if alive:
            self._registered.add((client, fd))
        else:
            self._registered.discard((client, fd))

    def alloc(self, decision: Decision, client: int, data: bytes | None) -> Decision:
        """An event buffer may name only an event that the same client registered; the driver looks up just that key."""
        if decision.number != NV_EVENT_BUFFER or data is None:
            return decision
        fd = NV_EVENT_BUFFER_ALLOC_PARAMETERS.parse(data).notificationHandle
        if not fd or (client, fd) in self._registered:
            return decision
        return refuse(
            decision.call,
            NV_ERR_OBJECT_NOT_FOUND,
            f"notificationHandle = {fd:#x}",
            "not registered with NV_ESC_ALLOC_OS_EVENT",
        )

    def allocated(self, obj: Object, data: bytes) -> None:
        """An allocation succeeded."""
        if obj.hclass == NV_EVENT_BUFFER:
            self._record_size[obj] = NV_EVENT_BUFFER_ALLOC_PARAMETERS.parse(data).recordSize

    def control(self, decision: Decision, client: int, data: bytes, graph: Graph) -> Decision:
        """A buffer with smaller records than the video producer writes may not be bound to it."""
        if (
            decision.rule is None
            or decision.rule.name != _VIDEO_BIND
            or len(data) != NV2080_CTRL_EVENT_VIDEO_BIND_EVTBUF_PARAMS.sizeof()
        ):
            return decision
        handle = NV2080_CTRL_EVENT_VIDEO_BIND_EVTBUF_PARAMS.parse(data).hEventBuffer
        buffer = graph.get(client, handle)
        size = self._record_size.get(buffer, 0) if buffer is not None else 0
        if size >= MIN_VIDEO_RECORD_SIZE:
            return decision
        return refuse(
            decision.call,
            NV_ERR_INVALID_ARGUMENT,
            f"hEventBuffer = {handle:#x}",
            f"recordSize {size:#x} is below {MIN_VIDEO_RECORD_SIZE:#x}",
        )

    def closed(self, fd: int) -> None:
        """The guest closed an fd: the driver drops a file's events with it, and the number may come to mean another."""
        self._registered = {key for key in self._registered if key[1] != fd}

    def freed(self, obj: Object) -> None:
        """An object is gone, and with a client its events."""
        self._record_size.pop(obj, None)
        if obj.handle == obj.client:
            self._registered = {key for key in self._registered if key[0] != obj.client}
