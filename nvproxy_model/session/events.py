"""What the hardened profile remembers of a session: the OS events of each client, and the record size of each
event buffer."""

from __future__ import annotations

from nvproxy_model.abi.constants import (
    NV2080_CTRL_CMD_EVENT_VIDEO_BIND_EVTBUF,
    NV_ERR_INSUFFICIENT_RESOURCES,
    NV_ERR_INVALID_ARGUMENT,
    NV_ERR_OBJECT_NOT_FOUND,
    NV_EVENT_BUFFER,
)
from nvproxy_model.policy import hardened
from nvproxy_model.policy.decision import Decision, Facts
from nvproxy_model.session.objects import Graph, Object
from nvproxy_model.structs.cl90cd import NV_EVENT_BUFFER_ALLOC_PARAMETERS
from nvproxy_model.structs.ctrl2080event import NV2080_CTRL_EVENT_VIDEO_BIND_EVTBUF_PARAMS

__all__ = ["MAX_OS_EVENTS", "Events"]

MAX_OS_EVENTS = 1 << 14
"""How many OS events a session remembers. The next registration is refused, until one of them is freed."""


class Events:
    """One session's OS events and event buffers."""

    def __init__(self) -> None:
        self._of_client: dict[int, set[int]] = {}
        self._of_fd: dict[int, set[int]] = {}
        self._registered = 0
        self._record_size: dict[Object, int] = {}

    def __len__(self) -> int:
        """How many OS events are remembered."""
        return self._registered

    def may_register(self, decision: Decision, client: int, fd: int) -> Decision:
        """NV_ESC_ALLOC_OS_EVENT: refused when the session remembers as many events as it can."""
        if self._registered < MAX_OS_EVENTS or fd in self._of_client.get(client, ()):
            return decision
        facts = Facts("OS events", self._registered, f"fewer than {MAX_OS_EVENTS:#x}")
        return hardened.refuse(decision.call, NV_ERR_INSUFFICIENT_RESOURCES, facts)

    def register(self, client: int, fd: int) -> None:
        """NV_ESC_ALLOC_OS_EVENT of a client succeeded for the guest's ``fd``."""
        if fd not in self._of_client.get(client, ()):
            self._of_client.setdefault(client, set()).add(fd)
            self._of_fd.setdefault(fd, set()).add(client)
            self._registered += 1

    def unregister(self, client: int, fd: int) -> None:
        """NV_ESC_FREE_OS_EVENT of a client succeeded for the guest's ``fd``."""
        if fd in self._of_client.get(client, ()):
            _discard(self._of_client, client, fd)
            _discard(self._of_fd, fd, client)
            self._registered -= 1

    def alloc(self, decision: Decision, client: int, data: bytes | None) -> Decision:
        """An event buffer may name only an event that the same client registered; the driver looks up just
        that key."""
        if decision.number != NV_EVENT_BUFFER or data is None:
            return decision
        fd = NV_EVENT_BUFFER_ALLOC_PARAMETERS.parse(data).notificationHandle
        if not fd or fd in self._of_client.get(client, ()):
            return decision
        facts = Facts("notificationHandle", fd, "an event registered with NV_ESC_ALLOC_OS_EVENT")
        return hardened.refuse(decision.call, NV_ERR_OBJECT_NOT_FOUND, facts)

    def allocated(self, obj: Object, data: bytes) -> None:
        """An allocation succeeded."""
        if obj.hclass == NV_EVENT_BUFFER:
            self._record_size[obj] = NV_EVENT_BUFFER_ALLOC_PARAMETERS.parse(data).recordSize

    def control(self, decision: Decision, client: int, data: bytes, graph: Graph) -> Decision:
        """A buffer with smaller records than the video producer writes may not be bound to it."""
        of = NV2080_CTRL_EVENT_VIDEO_BIND_EVTBUF_PARAMS
        if decision.number != NV2080_CTRL_CMD_EVENT_VIDEO_BIND_EVTBUF or len(data) != of.sizeof():
            return decision
        buffer = graph.get(client, of.parse(data).hEventBuffer)
        size = self._record_size.get(buffer, 0) if buffer is not None else 0
        if size >= hardened.MIN_VIDEO_RECORD_SIZE:
            return decision
        facts = Facts("hEventBuffer's recordSize", size, f"at least {hardened.MIN_VIDEO_RECORD_SIZE:#x}")
        return hardened.refuse(decision.call, NV_ERR_INVALID_ARGUMENT, facts)

    def closed(self, fd: int) -> None:
        """The guest closed an fd: the driver drops a file's events with it, and the number may come to mean
        another."""
        for client in tuple(self._of_fd.get(fd, ())):
            self.unregister(client, fd)

    def freed(self, obj: Object) -> None:
        """An object is gone, and with a client its events."""
        self._record_size.pop(obj, None)
        if obj.handle == obj.client:
            for fd in tuple(self._of_client.get(obj.client, ())):
                self.unregister(obj.client, fd)


def _discard(table: dict[int, set[int]], key: int, value: int) -> None:
    table[key].discard(value)
    if not table[key]:
        del table[key]
