"""What the hardened profile remembers of a session: the OS events of each client, and the record size of each event buffer."""

from __future__ import annotations

from nvproxy_model.abi.constants import NV_ERR_INVALID_ARGUMENT, NV_ERR_OBJECT_NOT_FOUND, NV_EVENT_BUFFER
from nvproxy_model.policy import hardened
from nvproxy_model.policy.decision import Decision
from nvproxy_model.session.objects import Graph, Object
from nvproxy_model.structs.cl90cd import NV_EVENT_BUFFER_ALLOC_PARAMETERS
from nvproxy_model.structs.ctrl2080event import NV2080_CTRL_EVENT_VIDEO_BIND_EVTBUF_PARAMS

__all__ = ["Events"]

_VIDEO_BIND = "NV2080_CTRL_CMD_EVENT_VIDEO_BIND_EVTBUF"


class Events:
    """One session's OS events and event buffers."""

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
        return hardened.refuse(
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
        if size >= hardened.MIN_VIDEO_RECORD_SIZE:
            return decision
        return hardened.refuse(
            decision.call,
            NV_ERR_INVALID_ARGUMENT,
            f"hEventBuffer = {handle:#x}",
            f"recordSize {size:#x} is below {hardened.MIN_VIDEO_RECORD_SIZE:#x}",
        )

    def closed(self, fd: int) -> None:
        """The guest closed an fd: the driver drops a file's events with it, and the number may come to mean another."""
        self._registered = {key for key in self._registered if key[1] != fd}

    def freed(self, obj: Object) -> None:
        """An object is gone, and with a client its events."""
        self._record_size.pop(obj, None)
        if obj.handle == obj.client:
            self._registered = {key for key in self._registered if key[0] != obj.client}
