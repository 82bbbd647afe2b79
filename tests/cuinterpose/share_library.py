"""The C side of tickets and descriptors through ctypes, and descriptors made to be mistaken for tickets."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cuinterpose.frame import Frame, Status
from cuinterpose.ticket import F_ADD_SEALS, MFD_ALLOW_SEALING, MFD_CLOEXEC, SEALS, Kind, Ticket, Verdict
from tests import ROOT
from tests.cuinterpose.shim_world import NATIVE, Toolchain

SOURCES = [ROOT / "cuinterpose" / "src" / f"{name}.c" for name in ("ticket", "frame", "peer", "endpoint")]
VERDICTS = (Verdict.NOT_A_TICKET, Verdict.TICKET, Verdict.BAD)
Identity = ctypes.c_uint8 * 16


FAULTS = ("pread", "pwrite", "recvmsg", "sendmsg", "fcntl", "syscall")
_ERRNO = 4242  # no error's


def build(output: Path, tools: Toolchain) -> Path:
    """With native/faults.c between it and the kernel, which lets everything through until it is told otherwise."""
    wrap = ",".join(f"--wrap={name}" for name in FAULTS)
    return tools.shared(output, [*SOURCES, NATIVE / "faults.c"], "-Wshadow", f"-Wl,{wrap}")


class CTicket(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_uint16),
        ("participant", Identity),
        ("resource", Identity),
        ("endpoint", ctypes.c_char * 108),
    )

    @classmethod
    def of(cls, ticket: Ticket) -> CTicket:
        return cls(
            ticket.kind,
            Identity(*ticket.participant),
            Identity(*ticket.resource),
            ticket.endpoint_bytes,
        )

    def ticket(self) -> Ticket:
        path = self.endpoint.decode("utf-8", "surrogateescape")
        return Ticket(Kind(self.kind), bytes(self.participant), bytes(self.resource), path)


class CFrame(ctypes.Structure):
    _fields_ = (
        ("op", ctypes.c_uint16),
        ("status", ctypes.c_int32),
        ("kind", ctypes.c_uint16),
        ("serial", ctypes.c_uint64),
        ("length", ctypes.c_uint32),
        ("cuda", ctypes.c_int32),
        ("participant", Identity),
        ("resource", Identity),
    )

    @classmethod
    def of(cls, frame: Frame) -> CFrame:
        values = {**frame.__dict__}
        for name in ("participant", "resource"):
            values[name] = Identity(*values[name])
        return cls(**values)

    def frame(self) -> Frame:
        values = {name: getattr(self, name) for name, _ in self._fields_}
        for name in ("participant", "resource"):
            values[name] = bytes(values[name])
        return Frame(**values)


class CEndpoint(ctypes.Structure):
    _fields_ = (
        ("directory", ctypes.c_int),
        ("listener", ctypes.c_int),
        ("owner", ctypes.c_int),
        ("participant", Identity),
        ("path", ctypes.c_char * 108),
    )


LOOKUP = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.POINTER(Identity),
    ctypes.c_uint16,
    ctypes.POINTER(ctypes.c_int),
    ctypes.POINTER(ctypes.c_int32),
)


class CServer(ctypes.Structure):
    _fields_ = (
        ("lookup", LOOKUP),
        ("context", ctypes.c_void_p),
        ("timeout_ms", ctypes.c_uint),
        ("coordinator", ctypes.c_uint),
        ("stop", ctypes.c_int),
        ("served", ctypes.c_void_p),
        ("control", ctypes.c_void_p),
    )


class Library:
    def __init__(self, path: Path) -> None:
        self.c = ctypes.CDLL(str(path), use_errno=True)

    @contextmanager
    def fault(self, call: str, times: int = 1, error: int = 0, *, skip: int = 0) -> Iterator[None]:
        """Calls of the library that fail with errno, or for 0 are cut to half: after skip of them, so many, and all met."""
        assert self.c.fault(call.encode(), skip, times, error) == 0
        try:
            yield
        finally:
            met = self.c.fault(call.encode(), 0, 0, 0)
        assert self.c.fault(call.encode(), 0, 0, 0) == 0
        assert met == times, f"{call} failed {met} times"

    def encode(self, ticket: Ticket) -> bytes | None:
        data = (ctypes.c_uint8 * 256)()
        self.c.cui_ticket_encode.restype = ctypes.c_bool
        return bytes(data) if self.c.cui_ticket_encode(ctypes.byref(CTicket.of(ticket)), data) else None

    def decode(self, data: bytes) -> Ticket | None:
        ticket = CTicket()
        self.c.cui_ticket_decode.restype = ctypes.c_bool
        return ticket.ticket() if self.c.cui_ticket_decode(data, ctypes.byref(ticket)) else None

    def create(self, ticket: Ticket) -> int:
        fd = ctypes.c_int(-7)
        error = self.c.cui_ticket_create(ctypes.byref(CTicket.of(ticket)), ctypes.byref(fd))
        if error:
            assert fd.value == -1
            raise OSError(-error, os.strerror(-error))
        return fd.value

    def classify(self, fd: int) -> tuple[Verdict, Ticket | None]:
        ticket = CTicket()
        verdicts = set()
        for before in (errno.EINTR, _ERRNO):  # the program's, which the shim must leave alone, and not take for its own
            ctypes.set_errno(before)
            verdicts.add(self.c.cui_ticket_classify(fd, ctypes.byref(ticket)))
            assert ctypes.get_errno() == before
        (found,) = verdicts
        verdict = VERDICTS[found]
        return verdict, ticket.ticket() if verdict is Verdict.TICKET else None

    def encode_frame(self, frame: Frame) -> bytes:
        data = (ctypes.c_uint8 * 64)()
        self.c.cui_frame_encode(ctypes.byref(CFrame.of(frame)), data)
        return bytes(data)

    def decode_frame(self, message: bytes) -> Frame | Status:
        frame = CFrame()
        # exactly as long as it is, so that a sanitizer sees a read past its end
        data = (ctypes.c_uint8 * len(message)).from_buffer_copy(message)
        status = Status(self.c.cui_frame_decode(data, ctypes.c_size_t(len(message)), ctypes.byref(frame)))
        return frame.frame() if status is Status.OK else status

    def send(self, socket: int, frame: Frame, fd: int = -1) -> Status:
        return Status(self.c.cui_frame_send(socket, ctypes.byref(CFrame.of(frame)), fd))

    def receive(self, socket: int) -> tuple[Status, Frame, int]:
        """(status, frame, descriptor or -1)"""
        frame, fd = CFrame(), ctypes.c_int(-7)
        status = self.c.cui_frame_receive(socket, ctypes.byref(frame), ctypes.byref(fd))
        return Status(status), frame.frame(), fd.value

    def export(self, ticket: Ticket, timeout_ms: int = 300) -> tuple[Status, int, int]:
        """(status, descriptor or -1, cuda)"""
        fd, cuda = ctypes.c_int(-7), ctypes.c_int32(-7)
        status = self.c.cui_export(
            ctypes.byref(CTicket.of(ticket)), ctypes.c_uint(timeout_ms), ctypes.byref(fd), ctypes.byref(cuda)
        )
        return Status(status), fd.value, cuda.value

    def open_endpoint(self, directory: str, participant: bytes) -> CEndpoint:
        endpoint = CEndpoint()
        error = self.c.cui_endpoint_open(
            ctypes.byref(endpoint), os.fsencode(directory), ctypes.byref(Identity(*participant))
        )
        if error:
            raise OSError(-error, os.strerror(-error))
        return endpoint

    @contextmanager
    def serve(
        self,
        registry: Callable[[bytes, int], tuple[Status, int, int]],
        directory: Path,
        participant: bytes,
        timeout_ms: int,
    ) -> Iterator[str]:
        """The C server in a thread; registry gives (status, descriptor or -1, cuda)."""

        def lookup(context: object, resource: object, kind: int, fd: object, cuda: object) -> int:
            status, fd[0], cuda[0] = registry(bytes(resource[0]), kind)  # type: ignore[index]
            return status

        endpoint = self.open_endpoint(str(directory), participant)
        stop, stopped = os.pipe2(os.O_CLOEXEC)
        callback = LOOKUP(lookup)
        server = CServer(callback, None, timeout_ms, os.geteuid(), stop)
        results: list[int] = []
        thread = threading.Thread(
            target=lambda: results.append(self.c.cui_endpoint_serve(ctypes.byref(endpoint), ctypes.byref(server)))
        )
        thread.start()
        try:
            yield endpoint.path.decode()
        finally:
            os.write(stopped, b"x")
            thread.join(10)
            self.c.cui_endpoint_close(ctypes.byref(endpoint))
            os.close(stop)
            os.close(stopped)
            assert results == [0]


def memfd(data: bytes, seals: int = SEALS, flags: int = MFD_CLOEXEC | MFD_ALLOW_SEALING) -> int:
    fd = os.memfd_create("look-alike", flags)
    os.pwrite(fd, data, 0)
    if seals:
        fcntl.fcntl(fd, F_ADD_SEALS, seals)
    return fd


def open_descriptors() -> dict[str, str]:
    """Every descriptor of this process and what it is."""
    table = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            table[name] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the listing's own
    return table
