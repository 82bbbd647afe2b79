"""One tracked process, asked over its endpoint: what it holds, and the steps of a checkpoint, one after the other.

The C of src/cycle.c and src/inventory.c answers. What comes back is checked: it is another process's, and a peer may lie.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from . import frame
from .frame import NOBODY, REPLY, Frame, Op, ProtocolError, Status, cuda_result

SCHEMA = "cuinterpose.process/1"
"""The schema of a process's inventory."""
_MOST = 256 << 20  # bytes of an inventory; a mapping takes some 200
_MARGIN = 5.0  # seconds beyond a step's own limit until its process counts as silent
_serials = itertools.count(1)


class Phase(IntEnum):
    """Where a process stands; the names are the inventory's. docs/checkpoint.md has the steps between them.

    OPEN: the program runs. CLOSED: its gate holds calls back. LET_GO: imports are given up. HELD: it waits for the
    next step without a time-out. LOCKED: only a coordinator brings the imports back. SERVING: tickets are answered
    again. BACK: imports have come back. HEALING: its coordinator has gone, and it brings them back by itself.
    """

    OPEN = 0
    CLOSED = 1
    LET_GO = 2
    HELD = 3
    LOCKED = 4
    SERVING = 5
    BACK = 6
    HEALING = 7

    @property
    def word(self) -> str:
        """As an inventory has it: in lower case, with spaces."""
        return self.name.lower().replace("_", " ")


class Stage(IntEnum):
    """What of a step failed; words says it for people.

    NONE: nothing. GATE: a call did not return. CAPTURE: a stream is being captured. SYNCHRONISE: waiting for the
    device. UNMAP, RELEASE: giving an import up. ASK: the creator gave no descriptor. IMPORT, MAP, ACCESS: taking it
    in again. ORDER: another phase, or another coordinator. KEEP: an import that could not come back.
    """

    NONE = 0
    GATE = 1
    CAPTURE = 2
    SYNCHRONISE = 3
    UNMAP = 4
    RELEASE = 5
    ASK = 6
    IMPORT = 7
    MAP = 8
    ACCESS = 9
    ORDER = 10
    KEEP = 11

    @property
    def words(self) -> str:
        """For people, without a full stop."""
        return _STAGES[self]


_STAGES = {
    Stage.NONE: "nothing failed",
    Stage.GATE: "a call of the program did not return in time",
    Stage.CAPTURE: "a stream is being captured",
    Stage.SYNCHRONISE: "waiting for the device (cuCtxSynchronize)",
    Stage.UNMAP: "cuMemUnmap of an import",
    Stage.RELEASE: "cuMemRelease of an import",
    Stage.ASK: "asking the creator for a descriptor",
    Stage.IMPORT: "cuMemImportFromShareableHandle",
    Stage.MAP: "cuMemMap at the address that it had",
    Stage.ACCESS: "cuMemSetAccess",
    Stage.ORDER: "the process is in another phase, or another coordinator is at work on it",
    Stage.KEEP: "an import that could not come back",
}


class StepError(Exception):
    """A process did not do a step. stage says what failed, cuda is the driver's CUresult, resource what it was about."""

    def __init__(self, op: Op, stage: Stage, cuda: int, resource: bytes, phase: Phase) -> None:
        about = f" (resource {resource.hex()})" if any(resource) else ""
        result = f": CUresult {cuda}" if cuda and stage not in (Stage.CAPTURE, Stage.ORDER, Stage.GATE) else ""
        super().__init__(f"{stage.words}{result}{about}")
        self.op = op
        self.stage = stage
        self.cuda = cuda
        self.resource = resource
        self.phase = phase

    @property
    def waits_for_creator(self) -> bool:
        """The creator of an import is being checkpointed, and will answer once it is restored."""
        return self.stage is Stage.ASK and self.cuda == cuda_result(Status.BUSY)


@dataclass(frozen=True)
class Access:
    """The last cuMemSetAccess of a range and location, in bytes and as CUDA numbers them."""

    address: int
    size: int
    type: int
    id: int
    flags: int


@dataclass(frozen=True)
class Mapping:
    """address, size and offset in bytes. away: unmapped for a checkpoint."""

    address: int
    size: int
    offset: int
    away: bool
    access: tuple[Access, ...]


@dataclass(frozen=True)
class Importer:
    """Who was given a descriptor. started: field 22 of /proc/PID/stat, 0 if it was not readable."""

    pid: int
    started: int


@dataclass(frozen=True)
class Allocation:
    """Memory that the process created. size in bytes; device -1: not on a device; resource: None until it is exported."""

    size: int
    device: int
    handle_types: int
    multicast: bool
    references: int
    resource: bytes | None
    importers: tuple[Importer, ...]
    mappings: tuple[Mapping, ...]


@dataclass(frozen=True)
class Import:
    """Memory of another process. foreign: from no ticket, so that nobody can be asked for it again."""

    foreign: bool
    entangled: bool
    references: int
    lost: str
    participant: bytes | None
    resource: bytes | None
    endpoint: str
    mappings: tuple[Mapping, ...]


@dataclass(frozen=True)
class Holdings:
    """What a tracked process holds. notes: what a checkpoint cannot keep or judge, counted.

    devices: how many the driver shows to it (cuDeviceGetCount), 0 if that is not known.
    """

    pid: int
    participant: bytes
    phase: Phase
    captures: int
    contexts: int
    devices: int
    allocations: tuple[Allocation, ...]
    imports: tuple[Import, ...]
    reservations: tuple[tuple[int, int], ...]
    notes: dict[str, int]


class _Reader:
    """Fields of a JSON object, with their types; anything else is MALFORMED."""

    def __init__(self, value: object) -> None:
        if not isinstance(value, dict):
            raise ProtocolError(Status.MALFORMED, "an inventory with something other than an object in it")
        self._value: dict[str, Any] = value

    def _get(self, name: str, kind: type) -> Any:
        value = self._value.get(name)
        if type(value) is not kind:
            raise ProtocolError(Status.MALFORMED, f"an inventory without {name}, or of another type")
        return value

    def number(self, name: str) -> int:
        value: int = self._get(name, int)
        if not -(2**63) <= value < 2**64:
            raise ProtocolError(Status.MALFORMED, f"an inventory with {name} {value}")
        return value

    def flag(self, name: str) -> bool:
        value: bool = self._get(name, bool)
        return value

    def text(self, name: str) -> str:
        value: str = self._get(name, str)
        return value

    def identity(self, name: str) -> bytes | None:
        if name in self._value and self._value[name] is None:
            return None
        try:
            value = bytes.fromhex(self.text(name))
        except ValueError:
            value = b""
        if len(value) != len(NOBODY):
            raise ProtocolError(Status.MALFORMED, f"an inventory whose {name} is not an identity")
        return value

    def each(self, name: str) -> list[_Reader]:
        return [_Reader(item) for item in self._get(name, list)]

    def object(self, name: str) -> dict[str, Any]:
        value: dict[str, Any] = self._get(name, dict)
        return value


def _mappings(item: _Reader) -> tuple[Mapping, ...]:
    return tuple(
        Mapping(
            mapping.number("address"),
            mapping.number("size"),
            mapping.number("offset"),
            mapping.flag("away"),
            tuple(
                Access(*(access.number(name) for name in ("address", "size", "type", "id", "flags")))
                for access in mapping.each("access")
            ),
        )
        for mapping in item.each("mappings")
    )


def _lost(item: _Reader) -> str:
    why = item._value.get("lost", 0)
    if why is None:
        return ""
    failure = _Reader(why)
    stage = failure.number("stage")
    words = Stage(stage).words if stage in tuple(Stage) else f"stage {stage}"
    return f"{words}: CUresult {failure.number('cuda')}"


def parse(data: bytes, pid: int) -> Holdings:
    """An inventory that the process pid sent. ProtocolError MALFORMED for anything else."""
    try:
        document = _Reader(json.loads(data))
    except (ValueError, RecursionError):
        raise ProtocolError(Status.MALFORMED, "an inventory that is not JSON") from None
    if document.text("schema") != SCHEMA:
        raise ProtocolError(Status.VERSION, f"an inventory of schema {document.text('schema')[:60]}, not {SCHEMA}")
    phases = {phase.word: phase for phase in Phase}
    participant = document.identity("participant")
    if participant is None or document.text("phase") not in phases:
        raise ProtocolError(Status.MALFORMED, "an inventory without a participant, or in no phase that is known")
    notes = _Reader(document.object("notes"))
    return Holdings(
        pid,
        participant,
        phases[document.text("phase")],
        document.number("captures"),
        document.number("contexts"),
        document.number("devices"),
        tuple(
            Allocation(
                item.number("size"),
                item.number("device"),
                item.number("handle_types"),
                item.flag("multicast"),
                item.number("references"),
                item.identity("resource"),
                tuple(Importer(i.number("pid"), i.number("started")) for i in item.each("importers")),
                _mappings(item),
            )
            for item in document.each("allocations")
        ),
        tuple(
            Import(
                item.flag("foreign"),
                item.flag("entangled"),
                item.number("references"),
                _lost(item),
                item.identity("participant"),
                item.identity("resource"),
                item.text("endpoint"),
                _mappings(item),
            )
            for item in document.each("imports")
        ),
        tuple((item.number("address"), item.number("size")) for item in document.each("reservations")),
        {name: notes.number(name) for name in document.object("notes")},
    )


def _connect(endpoint: str, timeout: float) -> tuple[socket.socket, int]:
    """(a connection, the pid at its other end)"""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.settimeout(timeout)
        connection.connect(endpoint)
        pid, uid, _ = frame.peer(connection)
        if uid != os.geteuid():
            raise ProtocolError(Status.PEER, f"{endpoint}: listens as uid {uid}, not {os.geteuid()}")
    except OSError as error:
        connection.close()
        raise ProtocolError(Status.TRANSPORT, f"{endpoint}: {error.strerror or error}") from error
    except BaseException:
        connection.close()
        raise
    return connection, pid


def _exchange(connection: socket.socket, request: Frame) -> tuple[Frame, int | None]:
    """The reply to one request, of whatever status, and its descriptor."""
    frame.send(connection, request)
    reply, fd = frame.receive(connection)
    right = reply.op == request.op | REPLY and (reply.serial, reply.participant) == (
        request.serial,
        request.participant,
    )
    wants_fd = request.op == Op.INVENTORY and reply.status == Status.OK
    if not right or reply.length or (fd is not None) != wants_fd or reply.status not in tuple(Status):
        if fd is not None:
            os.close(fd)
        raise ProtocolError(Status.MALFORMED, f"a reply to op {request.op} that does not fit it")
    return reply, fd


def holdings(endpoint: str, participant: bytes, timeout: float = 5.0) -> Holdings:
    """What the process behind an endpoint holds. ProtocolError if it does not say, or is another."""
    connection, pid = _connect(endpoint, timeout)
    with connection:
        reply, fd = _exchange(connection, Frame(Op.INVENTORY, next(_serials), participant=participant))
    if reply.status != Status.OK or fd is None:
        raise ProtocolError(Status(reply.status), "no inventory: the process is not tracked, or has no descriptor left")
    try:
        size = os.fstat(fd).st_size
        data = os.pread(fd, size, 0) if size <= _MOST else b""
    finally:
        os.close(fd)
    if len(data) != size:
        raise ProtocolError(Status.MALFORMED, f"an inventory of {size} bytes that cannot be read")
    found = parse(data, pid)
    if found.participant != participant:
        raise ProtocolError(Status.PARTICIPANT, "the inventory of another participant")
    return found


class Conversation:
    """The steps of a checkpoint with one process, over one connection. A context manager.

    When it is closed before LOCK, or after SERVE, the process brings its imports back and opens its gate by itself.
    """

    def __init__(self, endpoint: str, participant: bytes, timeout: float = 5.0) -> None:
        self.participant = participant
        self._connection, self.pid = _connect(endpoint, timeout)

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hangs up. It may be called twice."""
        self._connection.close()

    def step(self, op: Op, limit: float = 10.0, patience: float = 30.0) -> Phase:
        """The phase after a step. StepError if the process could not; ProtocolError if it does not answer.

        limit: seconds that the step may take. patience: seconds that the process waits for the next one.
        """
        numbers = struct.pack("<II8x", min(int(limit * 1000), 2**31), min(max(int(patience * 1000), 1), 2**31))
        self._connection.settimeout(limit + _MARGIN)
        reply, _ = _exchange(
            self._connection, Frame(op, next(_serials), participant=self.participant, resource=numbers)
        )
        phase, stage = reply.kind & 0xFF, reply.kind >> 8
        if phase not in tuple(Phase) or stage not in tuple(Stage):
            raise ProtocolError(Status.MALFORMED, f"phase {phase}, stage {stage}")
        if reply.status in (Status.CUDA, Status.BUSY):
            raise StepError(op, Stage(stage), reply.cuda, reply.resource, Phase(phase))
        if reply.status != Status.OK:
            raise ProtocolError(Status(reply.status), f"op {op.name}")
        return Phase(phase)
