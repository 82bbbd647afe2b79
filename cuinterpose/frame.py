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
REPLY = 0x8000
NOBODY = bytes(IDENTITY_SIZE)
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


class Op(IntEnum):
    IDENTIFY = 1
    EXPORT = 2


class Status(IntEnum):
    OK = 0
    MALFORMED = 1
    VERSION = 2
    PEER = 3  # of another uid; said locally, never sent
    PARTICIPANT = 4  # somebody else listens there now
    UNKNOWN = 5  # no such resource
    KIND = 6  # it is of the other kind
    BUSY = 7  # a checkpoint is being taken
    CUDA = 8  # the driver refused
    RESOURCES = 9  # no descriptor left
    OP = 10
    TRANSPORT = 11  # no socket, timeout, hang-up; said locally, never sent


LOCAL = (Status.PEER, Status.TRANSPORT)

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
    """The CUresult that an importer returns; 999, CUDA_ERROR_UNKNOWN, for what is a bug or mixed versions."""
    return cuda if status is Status.CUDA else _CUDA_RESULTS.get(status, 999)


class ProtocolError(Exception):
    """No usable answer, or an answer that is not OK. status says which; cuda is the creator's CUresult of CUDA."""

    def __init__(self, status: Status, why: str, cuda: int = 0) -> None:
        super().__init__(f"{status.name}: {why}")
        self.status = status
        self.cuda = cuda

    @property
    def cuda_result(self) -> int:
        return cuda_result(self.status, self.cuda)


@dataclass(frozen=True)
class Frame:
    op: int
    serial: int = 0
    kind: int = 0
    participant: bytes = NOBODY
    resource: bytes = NOBODY
    status: int = 0
    cuda: int = 0
    length: int = 0

    def encode(self) -> bytes:
        data: bytes = LAYOUT.build({**self.__dict__, "version": 1, "flags": 0})
        return data


def decode(message: bytes) -> Frame:
    """The frame of one whole message; ProtocolError MALFORMED or VERSION."""
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
    """Sends one frame; fd goes along and stays the caller's. ProtocolError TRANSPORT."""
    ancillary = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
    try:
        connection.sendmsg([frame.encode()], ancillary, socket.MSG_NOSIGNAL)
    except OSError as error:
        raise ProtocolError(Status.TRANSPORT, str(error)) from error


def receive(connection: socket.socket) -> tuple[Frame, int | None]:
    """One message without payload and the descriptor that came with it, which the caller owns, or None.

    ProtocolError MALFORMED, VERSION or TRANSPORT; whatever descriptors came are then closed. Not socket.recv_fds:
    that ignores its flags, and descriptors would be inherited by every child.
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
