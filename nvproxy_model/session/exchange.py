"""One call's way to the host and back: read, decide, hand over, restore, write.

Escapes, controls and allocations all go this way. They differ in where the struct that a row describes lies:
it is the argument itself, or behind a pointer of the argument. Each makes an `Exchange`, lets it decide,
wraps the guest's structs into `Part`s and performs it.
"""

from __future__ import annotations

import errno as errnos
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from nvproxy_model.abi import constants as nv
from nvproxy_model.errors import HostError
from nvproxy_model.policy.decision import Copy, Decision, Facts, Why
from nvproxy_model.policy.handlers import PAGE, Handler
from nvproxy_model.policy.plan import Plan
from nvproxy_model.policy.refusals import refuse
from nvproxy_model.session.objects import Object
from nvproxy_model.session.ports import Buffer, File, GuestMemory, Host, Pages, PinningMemory, Process, Result

__all__ = ["Exchange", "Part", "answer", "call", "hold", "let_go", "unknown_client"]


class Part:
    """One struct of the guest on its way to the host and back.

    ``data`` are the guest's bytes at ``address``, read once; ``buffer`` is what the host is given.
    """

    __slots__ = ("_copies", "_restore", "address", "buffer", "data")

    def __init__(
        self,
        memory: GuestMemory,
        address: int,
        data: bytes,
        decision: Decision | None = None,
        what: Plan | None = None,
    ) -> None:
        """Reads the buffers that the decision copies. Raises MemoryFault."""
        self.address = address
        self.data = data
        given = data if decision is None or decision.params is None else decision.params
        self._copies: tuple[Copy, ...] = () if decision is None else decision.copies
        pointers = {copy.offset: _pointee(memory, copy) for copy in self._copies}
        self.buffer = Buffer(bytearray(given), pointers)
        self._restore = [*(() if what is None else what.restore), *((copy.offset, 8) for copy in self._copies)]

    def point(self, offset: int, behind: Part | Buffer | None) -> None:
        """Let the pointer at ``offset`` lead to ``behind``, or to nothing; the guest's own value comes back."""
        self.buffer.data[offset : offset + 8] = bytes(8)
        self._restore.append((offset, 8))
        if behind is not None:
            self.buffer.pointers[offset] = behind.buffer if isinstance(behind, Part) else behind

    def restore(self) -> None:
        """Put the guest's own descriptors and pointers back into what the host left."""
        for at, size in self._restore:
            self.buffer.data[at : at + size] = self.data[at : at + size]

    def write(self, memory: GuestMemory) -> None:
        """Copy out: the buffers, the struct, the late buffers. Raises MemoryFault."""
        self._write_buffers(memory, late=False)
        self.write_struct(memory)
        self._write_buffers(memory, late=True)

    def write_struct(self, memory: GuestMemory) -> None:
        """Copy the struct alone out."""
        memory.write(self.address, bytes(self.buffer.data))

    def _write_buffers(self, memory: GuestMemory, *, late: bool) -> None:
        for copy in self._copies:
            pointee = self.buffer.pointers[copy.offset]
            if copy.late is late and isinstance(pointee, Buffer):
                memory.write(copy.address, bytes(pointee.data))


def _pointee(memory: GuestMemory, copy: Copy) -> Buffer | Pages:
    if copy.pinned:
        return Pages(copy.address, copy.size, copy.writable)
    return Buffer(bytearray(memory.read(copy.address, copy.size) if copy.copy_in else copy.size))


@dataclass(slots=True)
class Exchange:
    """One call of the guest.

    ``file``: what the call was made on. ``handler``, ``what``: of the row, with the plan of its struct.
    ``data``: the guest's bytes of that struct; ``out``: the host's, once it has answered. ``client``,
    ``handle``: what a control or an allocation names in the struct around it. ``argument``: what was handed
    over, and ``described`` the part of it that the row describes.
    """

    process: Process
    file: File
    handler: Handler[Exchange]
    decision: Decision
    data: bytes
    what: Plan | None = None
    client: int = 0
    handle: int = 0
    out: bytes = b""
    argument: Part = field(init=False, repr=False)
    described: Part | None = field(init=False, repr=False, default=None)

    def decide(self) -> bool:
        """Let the handler look at the session's state; whether the call is admitted."""
        if self.decision.allowed and self.handler.before is not None:
            self.decision = self.handler.before(self)
        return self.decision.allowed

    def need_client(self, client: int) -> Decision:
        """The decision, unless the client is not alive."""
        if not self.decision.allowed or self.process.graph.has_client(client):
            return self.decision
        return unknown_client(self.decision, client)

    def perform(
        self, request: int, argument: Part, described: Part | None, parts: Collection[Part], ok_at: int | None
    ) -> Result:
        """Call the host with ``argument`` and write the ``parts`` back, in their order.

        ``described``: the part that the row describes, if the call has one. ``ok_at``: where the argument has
        its NV status; None: there is none, and a call that returned 0 succeeded.
        """
        process, pins = self.process, [(copy.address, copy.size) for copy in self.decision.copies if copy.pinned]
        try:
            error = call(process.host, self.file.host_fd, request, argument.buffer)
        except HostError:
            process.unpin += pins
            raise
        ok = not error and (ok_at is None or not any(argument.buffer.data[ok_at : ok_at + 4]))
        if not ok:
            process.unpin += pins
        if error:
            return Result(-1, error, self.decision)
        self.argument, self.described = argument, described
        self.out = bytes(described.buffer.data) if described is not None else b""
        if ok and self.handler.after is not None:
            self.handler.after(self)
        for part in parts:
            part.restore()
        if self.handler.finish is not None:
            error = self.handler.finish(self)
            return Result(-1 if error else 0, error, self.decision)
        for part in parts:
            part.write(process.memory)
        return Result(0, 0, self.decision)

    def pin(self) -> Decision:
        """Pin the pages that the decision names, or look at each; the decision, or the refusal of the first
        bad page."""
        memory = self.process.memory
        for index, copy in enumerate(self.decision.copies):
            if isinstance(memory, PinningMemory):
                error = memory.pin(copy.address, copy.size, copy.writable)
                if error:
                    facts = Facts(
                        "params.pMemory", copy.address, "pages that can be pinned", errnos.errorcode.get(error)
                    )
                    self.process.unpin += [(done.address, done.size) for done in self.decision.copies[:index]]
                    return refuse(self.decision.call, Why.PIN, None, facts, error=error)
            else:
                for page in range(copy.address, copy.address + copy.size, PAGE):
                    memory.read(page, 1)
        return self.decision


def call(host: Host, host_fd: int, request: int, arg: Buffer | None) -> int:
    """Host.ioctl, held to its contract. Raises HostError."""
    lengths = [] if arg is None else [(buffer, len(buffer.data)) for buffer in _buffers(arg)]
    try:
        error = host.ioctl(host_fd, request, arg)
    except OSError as raised:
        raise HostError(f"Host.ioctl raised {raised!r}: it must return the errno") from raised
    hold(error, lengths)
    return error


def hold(error: object, lengths: Iterable[tuple[Buffer, int]]) -> None:
    """Hold a host to its contract: an errno or 0, and buffers as long as they were. Raises HostError."""
    if not isinstance(error, int) or error < 0:
        raise HostError(f"Host.ioctl returned {error!r}: want an errno, or 0")
    for buffer, length in lengths:
        if not isinstance(buffer.data, bytearray) or len(buffer.data) != length:
            raise HostError(
                f"Host.ioctl changed a buffer of {length} bytes to {type(buffer.data).__name__} of {len(buffer.data)}"
            )


def _buffers(arg: Buffer) -> Iterable[Buffer]:
    yield arg
    for behind in arg.pointers.values():
        if isinstance(behind, Buffer):
            yield from _buffers(behind)


def answer(memory: GuestMemory, address: int, data: bytes, status_at: int | None, decision: Decision) -> Result:
    """A refusal: an errno, or the guest's own bytes with the NV status where the struct has one. Raises
    MemoryFault."""
    if decision.status is not None and status_at is not None:
        status = decision.status.to_bytes(4, "little")
        memory.write(address, data[:status_at] + status + data[status_at + 4 :])
    return Result(-1 if decision.errno else 0, decision.errno, decision)


def unknown_client(decision: Decision, client: int) -> Decision:
    """The refusal of a call on behalf of a client that is not alive."""
    return refuse(decision.call, Why.CLIENT, nv.NV_ERR_INVALID_CLIENT, Facts("client", client))


def let_go(process: Process, freed: Iterable[Object]) -> None:
    """Objects are freed: their pages may be unpinned, and what the hardened profile knew of them is
    forgotten."""
    for gone in freed:
        process.unpin.extend(gone.pins)
        if process.events is not None:
            process.events.freed(gone)
