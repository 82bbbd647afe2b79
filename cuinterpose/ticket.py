"""Tickets: sealed memfds of 256 bytes that stand for a shareable handle until its creator is asked for the real one.

The layout is that of src/ticket.h, and both give the same bytes and the same verdict on every input.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from dataclasses import dataclass
from enum import Enum, IntEnum

from construct import Bytes, Check, Const, ConstructError, Int16ul, Struct, this

SIZE = 256
"""Bytes of a ticket."""
MAGIC = b"CUTICKET"
"""The first bytes of a ticket."""
ENDPOINT_MAX = 107
"""The longest path of a socket, in bytes (unix(7))."""
IDENTITY_SIZE = 16
"""Bytes of the name of a participant or of a resource."""
_ROOM = 204  # for the endpoint and the zeros after it

LAYOUT = Struct(
    "magic" / Const(MAGIC),
    "version" / Const(1, Int16ul),
    "size" / Const(SIZE, Int16ul),
    "kind" / Int16ul,
    "flags" / Const(0, Int16ul),
    "participant" / Bytes(IDENTITY_SIZE),
    "resource" / Bytes(IDENTITY_SIZE),
    "endpoint_length" / Int16ul,
    "endpoint_type" / Const(1, Int16ul),
    Check(this.endpoint_length <= ENDPOINT_MAX),
    "endpoint" / Bytes(this.endpoint_length),
    "zeros" / Bytes(_ROOM - this.endpoint_length),
)
"""A ticket's bytes, as src/ticket.h has them."""

# uapi linux/fcntl.h and memfd.h; Python has the first few of them only on some builds.
F_ADD_SEALS, F_GET_SEALS = 1033, 1034
SEALS = 0x0F
"""The seals that a ticket has: F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_WRITE."""
SEAL_NAMES = ("SEAL", "SHRINK", "GROW", "WRITE", "FUTURE_WRITE", "EXEC")
"""The names of the seals, by their bit."""
MFD_CLOEXEC, MFD_ALLOW_SEALING, MFD_NOEXEC_SEAL = 1, 2, 8


class Kind(IntEnum):
    """What a resource is: UNICAST, an allocation of cuMemCreate; MULTICAST, an object of cuMulticastCreate."""

    UNICAST = 1
    MULTICAST = 2


class TicketError(ValueError):
    """Bytes or fields that are not a ticket; the message says which rule they break."""


def new_identity() -> bytes:
    """16 random bytes, not all zero: the name of a participant or of a resource."""
    while not any(identity := secrets.token_bytes(IDENTITY_SIZE)):
        pass
    return identity


@dataclass(frozen=True)
class Ticket:
    """Who created which resource, and where to ask. Raises TicketError for fields that a ticket cannot hold.

    kind: see Kind. participant: the creator. resource: which of its resources; both are 16 bytes, not all zero. endpoint:
    the absolute path of the creator's socket, at most 107 bytes; bytes that are not UTF-8 are surrogates, as in
    os.fsdecode.
    """

    kind: Kind
    participant: bytes
    resource: bytes
    endpoint: str

    def __post_init__(self) -> None:
        path = self.endpoint_bytes
        if self.kind not in tuple(Kind):
            raise TicketError(f"kind {self.kind}: neither unicast (1) nor multicast (2)")
        for name, identity in (("participant", self.participant), ("resource", self.resource)):
            if len(identity) != IDENTITY_SIZE or not any(identity):
                raise TicketError(f"{name}: not {IDENTITY_SIZE} bytes, or all zero")
        if not path.startswith(b"/") or b"\0" in path:
            raise TicketError("endpoint: not an absolute path, or a NUL inside")
        if len(path) > ENDPOINT_MAX:
            raise TicketError(f"endpoint: {len(path)} bytes, more than {ENDPOINT_MAX}")

    @property
    def endpoint_bytes(self) -> bytes:
        """The path as the kernel takes it."""
        return self.endpoint.encode("utf-8", "surrogateescape")

    def encode(self) -> bytes:
        """The 256 bytes."""
        path = self.endpoint_bytes
        data: bytes = LAYOUT.build(
            {
                "kind": self.kind,
                "participant": self.participant,
                "resource": self.resource,
                "endpoint_length": len(path),
                "endpoint": path,
                "zeros": bytes(_ROOM - len(path)),
            }
        )
        return data


def decode(data: bytes) -> Ticket:
    """The ticket in exactly 256 bytes; TicketError names the rule that they break."""
    if len(data) != SIZE:
        raise TicketError(f"size: {len(data)} bytes, not {SIZE}")
    try:
        fields = LAYOUT.parse(data)
    except ConstructError as error:
        rule = str(error).replace("\n", " ").replace("Error in path (parsing) -> ", "").strip()
        raise TicketError(rule or "endpoint: longer than a ticket can hold") from None
    if any(fields.zeros):
        raise TicketError("a byte after the endpoint is not zero")
    if fields.kind not in tuple(Kind):
        raise TicketError(f"kind {fields.kind}: neither unicast (1) nor multicast (2)")
    endpoint = fields.endpoint.decode("utf-8", "surrogateescape")
    return Ticket(Kind(fields.kind), fields.participant, fields.resource, endpoint)


def create(ticket: Ticket) -> int:
    """A sealed descriptor with FD_CLOEXEC, as a CUDA export has; the caller owns it. OSError if the kernel refuses."""
    flags = MFD_CLOEXEC | MFD_ALLOW_SEALING
    try:
        fd = os.memfd_create("cuinterpose-ticket", flags | MFD_NOEXEC_SEAL)
    except OSError:  # before Linux 6.3 the flag is EINVAL
        fd = os.memfd_create("cuinterpose-ticket", flags)
    try:
        if os.pwrite(fd, ticket.encode(), 0) != SIZE:
            raise OSError("cuinterpose-ticket: short write")
        fcntl.fcntl(fd, F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


class Verdict(Enum):
    """What a descriptor is: NOT_A_TICKET, left to the driver to judge; TICKET; or BAD, which has a ticket's magic and is not
    a valid one, and which the driver must never see."""

    NOT_A_TICKET = "not a ticket"
    TICKET = "ticket"
    BAD = "bad ticket"


@dataclass(frozen=True)
class Classified:
    """What was found. why: for people. seals: F_GET_SEALS's bits, or -1 for a file that has none. ticket: if it is one."""

    verdict: Verdict
    why: str
    seals: int
    ticket: Ticket | None = None


def classify(fd: int) -> Classified:
    """Reads a descriptor and changes nothing of it, its offset included. Never raises, whatever fd is."""
    try:
        # Before the content is read: once it is sealed it stays as it is.
        seals = fcntl.fcntl(fd, F_GET_SEALS)
    except (OSError, ValueError, OverflowError) as error:  # the latter two for numbers that cannot be descriptors
        return Classified(Verdict.NOT_A_TICKET, f"F_GET_SEALS: {error}", -1)
    try:
        data = os.pread(fd, SIZE + 1, 0)
    except OSError as error:
        return Classified(Verdict.NOT_A_TICKET, f"not readable: {error.strerror}", seals)
    if not data.startswith(MAGIC):
        return Classified(Verdict.NOT_A_TICKET, "no magic", seals)
    if seals & SEALS != SEALS:  # a superset will do: the kernel may have added F_SEAL_EXEC
        missing = "|".join(name for bit, name in enumerate(SEAL_NAMES[:4]) if not seals >> bit & 1)
        return Classified(Verdict.BAD, f"not sealed: {missing} missing", seals)
    if len(data) > SIZE:
        return Classified(Verdict.BAD, f"size: more than {SIZE} bytes", seals)
    try:
        return Classified(Verdict.TICKET, "sealed and well-formed", seals, decode(data))
    except TicketError as error:
        return Classified(Verdict.BAD, str(error), seals)
