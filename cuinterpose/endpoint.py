"""The reference endpoint and client of the EXPORT exchange; the C of src/endpoint.c and src/peer.c does the same.

An endpoint is one SOCK_SEQPACKET socket per process, in a directory that belongs to its user alone, named by the
participant in 32 hexadecimal digits.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from . import frame
from .directory import open_directory
from .frame import NOBODY, REPLY, Frame, Op, ProtocolError, Status
from .ticket import Kind, Ticket, new_identity

CLIENTS = 16
"""Peers that an endpoint serves at once."""
BACKLOG = 64
"""Peers that may wait for it; see listen(2)."""
CUDA_ERROR_UNKNOWN = 999
"""What a bug of a registry is answered with."""
_serials = itertools.count(1)
_log = logging.getLogger(__name__)


class Refusal(Exception):
    """What a registry raises: UNKNOWN, KIND, BUSY, RESOURCES, or CUDA with the driver's CUresult, not 0.

    ValueError for a status that cannot be sent: OK, PEER, TRANSPORT, or a CUresult where it does not belong.
    """

    def __init__(self, status: Status, cuda: int = 0) -> None:
        if (
            status in (Status.OK, *frame.LOCAL)
            or (cuda != 0) != (status is Status.CUDA)
            or not -(2**31) <= cuda < 2**31
        ):
            raise ValueError(f"a registry cannot refuse with {status.name} and the CUresult {cuda}")
        super().__init__(status.name)
        self.status = status
        self.cuda = cuda


Registry = Callable[[bytes, int], int]
"""(resource, kind) -> a fresh descriptor, which the endpoint closes once it is sent. Raises Refusal.

OSError is answered as RESOURCES. Any other exception, or a result that is not a descriptor, is a bug of the registry: it
is logged, the client gets CUDA_ERROR_UNKNOWN, and the endpoint serves on.
"""


class Endpoint:
    """Serves EXPORT and IDENTIFY in a thread of its own, from construction to close(); a context manager.

    registry: see Registry; called in the endpoint's thread. where: the directory, absolute, ours and of mode 0700.
    participant: 16 bytes, random by default. timeout: seconds for a client to ask and to take its answer. coordinator:
    another uid that may ask. Raises OSError for a directory that cannot be trusted or a name that is taken,
    TicketError for a path that no ticket can hold.

    participant, path: what its tickets name. It belongs to the process that made it: a forked child has no thread of
    it, and closing it there releases the child's descriptors and nothing else. A child that exports makes its own.
    """

    def __init__(
        self,
        registry: Registry,
        where: Path,
        participant: bytes | None = None,
        *,
        timeout: float = 1.0,
        coordinator: int | None = None,
    ) -> None:
        self.participant = participant or new_identity()
        self.path = where / self.participant.hex()
        self._registry = registry
        self._timeout = timeout
        self._owner = os.getpid()
        self._uids = {os.geteuid(), os.geteuid() if coordinator is None else coordinator}
        with contextlib.ExitStack() as undo:
            self._directory = open_directory(where)
            undo.callback(os.close, self._directory)
            # No ticket can name a longer path; Ticket says so.
            Ticket(Kind.UNICAST, self.participant, self.participant, str(self.path))
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undo.callback(self._listener.close)
            self._listener.setblocking(False)
            # Before bind, so that the socket has this mode whatever the umask is.
            os.fchmod(self._listener.fileno(), 0o600)
            # Through the descriptor, so that the directory that was checked is the one that is used.
            self._listener.bind(f"/proc/self/fd/{self._directory}/{self.path.name}")
            undo.callback(self._unlink)
            self._listener.listen(BACKLOG)
            self._stop, self._stopped = socket.socketpair()
            undo.callback(self._stop.close)
            undo.callback(self._stopped.close)
            self._selector = selectors.DefaultSelector()
            undo.callback(self._selector.close)
            self._selector.register(self._stopped, selectors.EVENT_READ)
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._undo = undo.pop_all()
        self._thread = threading.Thread(target=self._serve, name="cuinterpose-endpoint", daemon=True)
        self._thread.start()

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the thread, unlinks the socket and closes what is open; once is enough."""
        if os.getpid() == self._owner and self._thread.is_alive():
            self._stop.send(b"x")
            self._thread.join()
        self._undo.close()

    def _unlink(self) -> None:
        if os.getpid() == self._owner:
            os.unlink(self.path.name, dir_fd=self._directory)

    def ticket(self, resource: bytes, kind: Kind = Kind.UNICAST) -> Ticket:
        """A ticket for a resource of 16 bytes that the registry knows. TicketError if there can be no such ticket."""
        return Ticket(kind, self.participant, resource, str(self.path))

    def _serve(self) -> None:
        deadlines: dict[socket.socket, float] = {}

        def drop(client: socket.socket) -> None:
            self._selector.unregister(client)
            del deadlines[client]
            client.close()

        while True:
            now = time.monotonic()
            for client in [client for client, deadline in deadlines.items() if deadline <= now]:
                drop(client)
            wait = min(deadlines.values()) - now if deadlines else None
            ready = [key.fileobj for key, _ in self._selector.select(wait)]
            for client in [client for client in deadlines if client in ready]:
                self._exchange(client)
                drop(client)
            if self._stopped in ready:
                for client in list(deadlines):
                    drop(client)
                return
            if self._listener in ready and len(deadlines) < CLIENTS and (admitted := self._admit()):
                deadlines[admitted] = time.monotonic() + self._timeout
                self._selector.register(admitted, selectors.EVENT_READ)
            elif self._listener in ready:
                time.sleep(0.01)

    def _admit(self) -> socket.socket | None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return None
        if frame.peer(client)[1] not in self._uids:  # a stranger gets no answer
            client.close()
            return None
        client.settimeout(self._timeout)
        return client

    def _exchange(self, client: socket.socket) -> None:
        """One exchange; whatever the client did, the connection is then over."""
        answer: int | None = None
        try:
            try:
                request, received = frame.receive(client)
            except ProtocolError as error:
                if error.status is not Status.TRANSPORT:
                    frame.send(client, Frame(REPLY, status=error.status))
                return
            if received is not None:
                os.close(received)
            reply, answer = self._answer(request, received is not None)
            try:
                frame.send(client, reply, answer)
            except ProtocolError:
                if answer is not None:
                    frame.send(client, replace(reply, status=Status.RESOURCES))
        except ProtocolError:
            pass  # gone
        finally:
            if answer is not None:
                os.close(answer)

    def _answer(self, request: Frame, has_fd: bool) -> tuple[Frame, int | None]:
        def reply(status: Status, cuda: int = 0, participant: bytes | None = None) -> Frame:
            who = request.participant if participant is None else participant
            return replace(request, op=request.op | REPLY, status=status, cuda=cuda, length=0, participant=who)

        if has_fd or request.status or request.cuda or request.length or request.op & REPLY:
            return reply(Status.MALFORMED), None
        if request.op == Op.IDENTIFY:
            if request.kind or request.resource != NOBODY:
                return reply(Status.MALFORMED), None
            if request.participant not in (NOBODY, self.participant):
                return reply(Status.PARTICIPANT), None
            return reply(Status.OK, participant=self.participant), None
        if request.op != Op.EXPORT:
            return reply(Status.OP), None
        if request.participant != self.participant:
            return reply(Status.PARTICIPANT), None
        try:
            fd = self._registry(request.resource, request.kind)
            if not isinstance(fd, int):
                raise TypeError(f"the registry returned {fd!r:.100}, not a descriptor")
            os.fstat(fd)  # closed, or never one: OSError
        except Refusal as refusal:
            return reply(refusal.status, refusal.cuda), None
        except OSError:  # no descriptor left, or no memory for one
            return reply(Status.RESOURCES), None
        except BaseException:  # SystemExit too: it would end the thread without a word
            _log.exception("the registry failed: %s is answered with CUDA_ERROR_UNKNOWN", request.resource.hex())
            return reply(Status.CUDA, CUDA_ERROR_UNKNOWN), None
        return reply(Status.OK), fd


def _ask(endpoint: str, request: Frame, timeout: float) -> tuple[Frame, int | None, int]:
    """(the checked reply, its descriptor or None, the pid that listens)."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(timeout)
        try:
            connection.connect(endpoint)
        except OSError as error:
            raise ProtocolError(Status.TRANSPORT, f"{endpoint}: {error.strerror or error}") from error
        pid, uid, _ = frame.peer(connection)
        if uid != os.geteuid():
            raise ProtocolError(Status.PEER, f"{endpoint}: listens as uid {uid}, not {os.geteuid()}")
        frame.send(connection, request)
        reply, fd = frame.receive(connection)
    try:
        _check(request, reply, fd is not None)
    except BaseException:
        if fd is not None:
            os.close(fd)
        raise
    return reply, fd, pid


def _check(request: Frame, reply: Frame, has_fd: bool) -> None:
    named = request.op == Op.EXPORT or (reply.status == Status.OK and request.participant != NOBODY)
    echoed = ("serial", "kind", "resource", "participant") if named else ("serial", "kind", "resource")
    wrong = [name for name in echoed if getattr(request, name) != getattr(reply, name)]
    if reply.op != request.op | REPLY or wrong or reply.length:
        raise ProtocolError(Status.MALFORMED, f"the reply's op or echo is wrong: op {reply.op:#x} {' '.join(wrong)}")
    if reply.status not in tuple(Status) or reply.status in frame.LOCAL:
        raise ProtocolError(Status.MALFORMED, f"status {reply.status}")
    expects_fd = request.op == Op.EXPORT and reply.status == Status.OK
    if has_fd != expects_fd or (reply.cuda != 0) != (reply.status == Status.CUDA):
        raise ProtocolError(Status.MALFORMED, f"status {reply.status} with cuda {reply.cuda}, descriptor: {has_fd}")
    if reply.status != Status.OK:
        raise ProtocolError(Status(reply.status), f"answered by {request.participant.hex()}", reply.cuda)


def export(ticket: Ticket, timeout: float = 1.0) -> int:
    """Asks the creator that a ticket names for the real descriptor: fresh, with FD_CLOEXEC, and the caller's to close.

    timeout: seconds for each step. ProtocolError if there is no usable answer, or it is not OK.
    """
    request = Frame(Op.EXPORT, next(_serials), ticket.kind, ticket.participant, ticket.resource)
    _, fd, _ = _ask(ticket.endpoint, request, timeout)
    assert fd is not None
    return fd


def identify(endpoint: str, expected: bytes = NOBODY, timeout: float = 1.0) -> tuple[bytes, int]:
    """(participant, pid) of what listens at a path.

    expected: the participant to ask for; by default any. timeout: seconds for each step. ProtocolError if there is no
    usable answer; its status is PARTICIPANT if another one listens there.
    """
    reply, _, pid = _ask(endpoint, Frame(Op.IDENTIFY, next(_serials), participant=expected), timeout)
    if reply.participant == NOBODY:
        raise ProtocolError(Status.MALFORMED, "a participant of zeros")
    return reply.participant, pid
