"""Frames of 64 bytes on a SOCK_SEQPACKET socket, one each way, and the descriptors that ride on them.

The layout is that of src/frame.h. SEQPACKET, so that a message and its descriptors come whole or flagged.
"""

from __future__ import annotations

import array
import os
import socket
import struct
from dataclasses import dataclass
from enum import IntEnum

from construct import Bytes, Const, ConstructError, Int16ul, Int32sl, Int32ul, Int64ul, Struct

from .ticket import IDENTITY_SIZE

SIZE = 64
"""Bytes of a frame."""
REPLY = 0x8000
"""What a reply adds to the number of its request."""
NOBODY = bytes(IDENTITY_SIZE)
"""The participant of a request that is meant for any process listening there."""
_ROOM = 16  # descriptors: room for one would let two in, and more than fit are flagged

LAYOUT = Struct(
    "magic" / Const(b"CUIF"),
    "version" / Int16ul,
    "op" / Int16ul,
    "status" / Int32sl,
    "kind" / Int16ul,
    "flags" / Int16ul,
    "serial" / Int64ul,
    "length" / Int32ul,
    "cuda" / Int32sl,
    "participant" / Bytes(IDENTITY_SIZE),
    "resource" / Bytes(IDENTITY_SIZE),
)
"""A frame's bytes, as src/frame.h has them."""


class Op(IntEnum):
    """What a request asks for; a reply adds REPLY.

    IDENTIFY: who listens there. EXPORT: the descriptor of a resource. The others come from a coordinator, and only a
    tracked process knows them; src/cycle.c says what each does: INVENTORY, STATE, CLOSE, LET_GO, HOLD, LOCK, SERVE,
    IMPORT, OPEN_GATE.
    """

    IDENTIFY = 1
    EXPORT = 2
    INVENTORY = 16
    STATE = 17
    CLOSE = 18
    LET_GO = 19
    HOLD = 20
    LOCK = 21
    SERVE = 22
    IMPORT = 23
    OPEN_GATE = 24


class Status(IntEnum):
    """How an exchange ended. PEER and TRANSPORT are found locally and never sent.

    OK. MALFORMED: the bytes are not a frame, or say what they may not. VERSION: a frame of another version. PEER: the
    other end runs as another user. PARTICIPANT: another one listens there now. UNKNOWN: no such resource. KIND: it is of
    the other kind. BUSY: a checkpoint is being taken. CUDA: the driver refused, with the CUresult beside it. RESOURCES:
    no descriptor left. OP: an op that nobody has defined. TRANSPORT: no socket, a time-out, or the other end hung up.
    """

    OK = 0
    MALFORMED = 1
    VERSION = 2
    PEER = 3
    PARTICIPANT = 4
    UNKNOWN = 5
    KIND = 6
    BUSY = 7
    CUDA = 8
    RESOURCES = 9
    OP = 10
    TRANSPORT = 11


LOCAL = (Status.PEER, Status.TRANSPORT)
"""Found on this side: no peer sends them."""

_CUDA_RESULTS = {
    Status.OK: 0,
    Status.PEER: 800,  # CUDA_ERROR_NOT_PERMITTED
    Status.PARTICIPANT: 400,  # CUDA_ERROR_INVALID_HANDLE
    Status.UNKNOWN: 400,
    Status.KIND: 400,
    Status.BUSY: 600,  # CUDA_ERROR_NOT_READY
    Status.RESOURCES: 2,  # CUDA_ERROR_OUT_OF_MEMORY
    Status.TRANSPORT: 304,  # CUDA_ERROR_OPERATING_SYSTEM
}


def cuda_result(status: Status, cuda: int = 0) -> int:
    """The CUresult that an importer returns for a status; 999, CUDA_ERROR_UNKNOWN, where it shows a bug or mixed versions."""
    return cuda if status is Status.CUDA else _CUDA_RESULTS.get(status, 999)


class ProtocolError(Exception):
    """No usable answer, or one that is not OK. status: which. cuda: with the status CUDA, the creator's CUresult, else 0."""

    def __init__(self, status: Status, why: str, cuda: int = 0) -> None:
        super().__init__(f"{status.name}: {why}")
        self.status = status
        self.cuda = cuda

    @property
    def cuda_result(self) -> int:
        """The CUresult that an importer returns for it."""
        return cuda_result(self.status, self.cuda)


@dataclass(frozen=True)
class Frame:
    """One frame, field by field as in src/frame.h.

    op: 16 bits. serial: 64 bits, echoed. kind: 16 bits, a ticket's kind or 0. participant, resource: 16 bytes each.
    status, cuda: signed, 32 bits. length: bytes of payload that follow.
    """

    op: int
    serial: int = 0
    kind: int = 0
    participant: bytes = NOBODY
    resource: bytes = NOBODY
    status: int = 0
    cuda: int = 0
    length: int = 0

    def encode(self) -> bytes:
        """Its 64 bytes."""
        data: bytes = LAYOUT.build({**self.__dict__, "version": 1, "flags": 0})
        return data


def decode(message: bytes) -> Frame:
    """The frame of one whole message, payload included. ProtocolError with the status MALFORMED or VERSION."""
    try:
        fields = LAYOUT.parse(message)
    except ConstructError:
        raise ProtocolError(Status.MALFORMED, f"{len(message)} bytes without a frame's magic") from None
    if fields.version != 1:
        raise ProtocolError(Status.VERSION, f"version {fields.version}, not 1")
    if fields.flags or len(message) != SIZE + fields.length:
        raise ProtocolError(
            Status.MALFORMED, f"flags {fields.flags}, {len(message)} bytes for {fields.length} of payload"
        )
    return Frame(
        fields.op,
        fields.serial,
        fields.kind,
        fields.participant,
        fields.resource,
        fields.status,
        fields.cuda,
        fields.length,
    )


def send(connection: socket.socket, frame: Frame, fd: int | None = None) -> None:
    """Sends one frame, and fd with it, which stays the caller's. ProtocolError with the status TRANSPORT if it fails."""
    ancillary = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
    try:
        connection.sendmsg([frame.encode()], ancillary, socket.MSG_NOSIGNAL)
    except OSError as error:
        raise ProtocolError(Status.TRANSPORT, str(error)) from error


def receive(connection: socket.socket) -> tuple[Frame, int | None]:
    """One message without payload and the descriptor that came with it, which the caller owns, or None.

    ProtocolError with the status MALFORMED, VERSION or TRANSPORT; all descriptors that came are then closed. Not by
    socket.recv_fds, which ignores its flags: every child would inherit the descriptors.
    """
    try:
        message, ancillary, flags, _ = connection.recvmsg(
            SIZE, socket.CMSG_SPACE(_ROOM * array.array("i").itemsize), socket.MSG_CMSG_CLOEXEC
        )
    except OSError as error:
        raise ProtocolError(Status.TRANSPORT, str(error)) from error
    fds = array.array("i")
    odd = False
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        else:
            odd = True
    try:
        if not message and not fds:
            raise ProtocolError(Status.TRANSPORT, "the other end hung up")
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or odd or len(fds) > 1:
            raise ProtocolError(Status.MALFORMED, f"{len(fds)} descriptors, message flags {flags:#x}")
        frame = decode(message)
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    return frame, fds[0] if fds else None


def peer(connection: socket.socket) -> tuple[int, int, int]:
    """(pid, uid, gid) of the process at the other end, as the kernel recorded them (SO_PEERCRED)."""
    size = struct.calcsize("3i")
    pid, uid, gid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return pid, uid, gid
