"""Reads the frames that recorded programs wrote into their spool, and makes the records of the trace format of them."""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any, Final, NamedTuple

from nvproxy_model.printable import printable
from nvproxy_model.trace.devices import ioctl_kind
from nvproxy_model.trace.format import TRUNCATED, UNFINISHED
from nvproxy_model.trace.lines import Problems
from nvproxy_model.trace.record import mapped
from nvproxy_model.trace.record.mapped import Head
from nvproxy_model.trace.record.processes import text

__all__ = ["MAGIC", "Seen", "frames", "keeps_values", "records"]

MAGIC: Final = b"NVTR"
_HEADER: Final = struct.Struct("=4sIHHIIIQQqiIIIIIII4Q")
_SECTION: Final = struct.Struct("=II")
_CHECK: Final = struct.Struct("=I")
_LARGEST: Final = 3 << 20
_CHUNK: Final = 1 << 20
_PENDING: Final = 1 << 14
_PROGRAMS: Final = 1 << 14

PROCESS, OPEN, FD, ENTER, LEAVE, MMAP, CLOSE, DUP, EXEC = range(1, 10)
_SPACES: Final = ("fe", "uvm", "control", "alloc", "other")
BY_TABLE, FAULT, FORKED, DENIED, SHELL = 2, 8, 32, 64, 128
ARGUMENT, PARAMETERS, STATUS = range(3)
POINTER: Final = 0x10000
UNREADABLE: Final = 0x80000000
_NOT_ZERO: Final = re.compile(rb"[^\0]")


class Frame(NamedTuple):
    """struct frame of recorder/spool.h, with its text and its sections taken apart."""

    type: int
    flags: int
    pid: int
    tid: int
    err: int
    time: int
    id: int
    ret: int
    fd: int
    request: int
    space: int
    key: int
    params_size: int
    args: tuple[int, int, int, int]
    text: bytes
    sections: dict[int, bytes]


@dataclass
class Seen:
    """What a run was seen to do, and where it went out of sight."""

    ioctls: int = 0
    opens: int = 0
    processes: dict[int, str] = field(default_factory=dict)
    """pid -> its command, the last one."""
    unseen: list[tuple[int, str]] = field(default_factory=list)
    """(pid, path) of programs in which the recorder did not speak: static, setuid, or an environment without it."""
    unfinished: int = 0
    faults: int = 0
    truncated: int = 0


def _frame(data: bytes) -> Frame:
    _, _, *numbers, text, count, _, a, b, c, d = _HEADER.unpack_from(data)
    heads = _HEADER.size + count * _SECTION.size
    at = heads + text
    end = len(data) - _CHECK.size
    if at > end:
        raise ValueError("a frame is shorter than its text and its sections' heads")
    frame = Frame._make([*numbers, (a, b, c, d), data[heads:at], {}])
    if (
        max(frame.pid, frame.tid) > 0x7FFFFFFF
        or frame.err > 4095
        or max(frame.time, a, b) >= 1 << 63
        or frame.ret == -(1 << 63)
        or not -1 <= frame.fd <= 0x7FFFFFFF
        or frame.type not in range(1, 10)
    ):
        raise ValueError("a frame with numbers that the recorder does not write")
    flags = frame.flags
    for where, size in _SECTION.iter_unpack(data[_HEADER.size : heads]):
        if at + size > end:
            raise ValueError("a section is longer than its frame")
        if where & UNREADABLE:
            flags |= FAULT
        else:
            frame.sections[where] = data[at : at + size]
        at += size
    if at != end:
        raise ValueError("a frame is longer than its sections")
    return frame._replace(flags=flags)


class _Stream:
    """The file, a piece at a time, with what lies between frames skipped: linear in its size whatever it holds."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._buffer = bytearray()
        self._at = 0
        self.offset = 0

    def fill(self, size: int) -> bool:
        """Whether that many bytes are left."""
        if self._at > _CHUNK:
            del self._buffer[: self._at]
            self._at = 0
        while len(self._buffer) - self._at < size:
            piece = self._raw.read(_CHUNK)
            if not piece:
                return False
            self._buffer += piece
        return True

    def peek(self, start: int, size: int) -> bytes:
        return bytes(self._buffer[self._at + start : self._at + start + size])

    def skip(self, size: int) -> None:
        size = min(size, len(self._buffer) - self._at)
        self._at += size
        self.offset += size

    def skip_zeros(self) -> None:
        while self.fill(1):
            found = _NOT_ZERO.search(self._buffer, self._at)
            self.skip((found.start() if found else len(self._buffer)) - self._at)
            if found:
                return

    def skip_to_frame(self) -> None:
        """Past what is not a frame, to the next that may be one."""
        found = self._buffer.find(MAGIC, self._at + 1)
        self.skip((found if found >= 0 else max(len(self._buffer) - len(MAGIC) + 1, self._at + 1)) - self._at)


def keeps_values(raw: IO[bytes]) -> bool:
    """Whether the bytes of arguments were kept in this spool; it is read from its start."""
    start = raw.read(ctypes.sizeof(Head))
    return len(start) < ctypes.sizeof(Head) or start[:4] != mapped.MAGIC or bool(Head.from_buffer_copy(start).values)


def _head(stream: _Stream, problems: Problems) -> Head | None:
    """The spool's own head, with the stream at its first frame; None where there are only frames."""
    size = ctypes.sizeof(Head)
    if not stream.fill(size) or stream.peek(0, 4) != mapped.MAGIC:
        return None
    head = Head.from_buffer_copy(stream.peek(0, size))
    at = (head.table_at + head.table_size + 7) & ~7
    if not mapped.FRAMES_AT <= at <= _LARGEST or not stream.fill(at):
        problems.add(0, "the spool's head is damaged: frames are looked for in all of it")
        stream.skip(4)
    else:
        stream.skip(at)
    return head


def frames(raw: IO[bytes], problems: Problems) -> Iterator[Frame]:
    """The frames of a spool in file order, and as problems what a program could not write or did not finish."""
    stream = _Stream(raw)
    head = _head(stream, problems)
    torn = False
    while True:
        at = stream.offset
        stream.skip_zeros()
        here = stream.offset if head is None else min(stream.offset, head.cursor)
        # Frames begin at multiples of 8, so fewer zeros than that lie between two of them.
        if head is not None and not torn and here - at >= 8:
            problems.add(0, f"{here - at} bytes at {at} of the spool were taken and not written")
        if not stream.fill(1) or (head is not None and stream.offset >= head.cursor):
            break
        frame = None
        size = 0
        if stream.fill(_HEADER.size) and stream.peek(0, 4) == MAGIC:
            size = int.from_bytes(stream.peek(4, 4), "little")
            if (
                _HEADER.size + _CHECK.size <= size <= _LARGEST
                and stream.fill(size)
                and int.from_bytes(stream.peek(size - _CHECK.size, _CHECK.size), "little") == ~size & 0xFFFFFFFF
            ):
                try:
                    frame = _frame(stream.peek(0, size))
                except (ValueError, struct.error):
                    frame = None
        if frame is None:
            if not torn:
                torn = True
                problems.add(0, f"a torn frame at byte {stream.offset} of the spool")
            stream.skip_to_frame()
            continue
        torn = False
        stream.skip(size)
        yield frame
    if head is None:
        return
    if stream.offset < head.cursor:
        problems.add(0, f"the spool ends {head.cursor - stream.offset} bytes early")
    if head.lost:
        problems.add(0, f"{head.lost} calls could not be written (no room left, or none could be mapped)")
    if head.lost_answers:
        problems.add(0, f"the ends of {head.lost_answers} calls could not be written (no room left)")


def _ioctl(enter: Frame, leave: Frame | None, start: int, values: bool) -> dict[str, Any]:
    kind = _SPACES[enter.space] if enter.space < len(_SPACES) else "other"
    dev = text(enter.text)
    if kind == "other" and ioctl_kind(dev) != "other":
        kind = ioctl_kind(dev)
    record: dict[str, Any] = {
        "k": "ioctl",
        "t": enter.time - start,
        "d": leave.args[1] if leave else None,
        "pid": enter.pid,
        "tid": enter.tid,
        "fd": enter.fd,
        "ret": leave.ret if leave else None,
        "dev": dev,
        "req": hex(enter.request),
        "kind": kind,
        "key": hex(enter.key),
    }
    after = leave.sections if leave is not None else {}
    if leave is not None:
        if leave.err:
            record["err"] = leave.err
        if len(after.get(STATUS, b"")) == 4:
            record["status"] = hex(int.from_bytes(after[STATUS], "little"))
    for where, name in ((ARGUMENT, "top"), (PARAMETERS, "par")):
        before = enter.sections.get(where)
        if before is not None:
            record[name + "0"] = before.hex()
        if where in after and after[where] != before:
            record[name + "1"] = after[where].hex()
    if enter.params_size and (not values or len(enter.sections.get(PARAMETERS, b"")) != enter.params_size):
        record["psize"] = enter.params_size
    bufs = []
    for where, before in enter.sections.items():
        if where >= POINTER:
            item: list[Any] = [where - POINTER, before.hex()]
            if where in after and after[where] != before:
                item.append(after[where].hex())
            bufs.append(item)
    if bufs:
        record["bufs"] = bufs[:64]
    flags = enter.flags & (TRUNCATED | BY_TABLE) | (0 if leave else UNFINISHED)
    if flags:
        record["fl"] = flags
    if (enter.flags | (leave.flags if leave else 0)) & FAULT:
        record["fault"] = True
    return {name: value for name, value in record.items() if value is not None}


class _Programs:
    """Which programs began, and in which of them the recorder spoke. By time: a parent may report a child after it spoke."""

    def __init__(self, first: int | None) -> None:
        self._first = first
        self._begun: dict[int, tuple[int, str, int]] = {}
        self._shells: dict[int, tuple[int, str, int]] = {}
        self._spoke: dict[int, int] = {}
        self._children: dict[int, int] = {}

    def begins(self, frame: Frame) -> None:
        table = self._shells if frame.flags & SHELL else self._begun
        if frame.err:
            table.pop(frame.pid, None)
        elif len(table) < _PROGRAMS:
            table[frame.pid] = (frame.time, text(frame.text) or "(by descriptor)", frame.flags)

    def spoke(self, frame: Frame) -> None:
        for table, key in ((self._spoke, frame.pid), (self._children, frame.args[0])):
            if len(table) < _PROGRAMS:
                table[key] = frame.time

    def unseen(self, problems: Problems) -> list[tuple[int, str]]:
        """(pid, path) of the silent ones. It is a problem where we know that they would have spoken if they could."""
        result = []
        for table, spoke in ((self._begun, self._spoke), (self._shells, self._children)):
            for pid, (time, path, flags) in table.items():
                if spoke.get(pid, -1) >= time:
                    continue
                result.append((pid, path))
                if flags & DENIED:
                    problems.add(0, f"process {pid} became {printable(path)} without the right to write the spool")
        if self._first is not None and self._first not in self._spoke:
            problems.add(0, "the program itself did not load the recorder: its calls are not in the trace")
        return result


def records(
    raw: IO[bytes], problems: Problems, seen: Seen, *, values: bool = True, first: int | None = None
) -> Iterator[dict[str, Any]]:
    """The records of a spool, calls in the order in which they returned.

    ``first`` is the process that the launcher began itself. A call whose end is not there comes last, marked unfinished.
    """
    pending: dict[tuple[int, int, int], Frame] = {}
    programs = _Programs(first)
    start: int | None = None
    for frame in frames(raw, problems):
        if start is None:
            start = frame.time
        if frame.type == ENTER:
            if len(pending) >= _PENDING:
                key = next(iter(pending))
                problems.add(0, f"process {key[0]}: a call without its end")
                del pending[key]
            pending[frame.pid, frame.tid, frame.id] = frame
            continue
        if frame.type == LEAVE:
            enter = pending.pop((frame.pid, frame.tid, frame.id), None)
            if enter is None:
                problems.add(0, f"process {frame.pid}: the end of a call without its begin")
                continue
            seen.ioctls += 1
            seen.faults += bool((frame.flags | enter.flags) & FAULT)
            seen.truncated += bool(enter.flags & TRUNCATED)
            yield _ioctl(enter, frame, start, values)
            continue
        if frame.type == EXEC:
            programs.begins(frame)
            if frame.flags & SHELL:
                continue
        elif frame.type == PROCESS:
            command = printable(text(frame.text.rstrip(b"\0").replace(b"\0", b" ")))
            if len(seen.processes) < _PROGRAMS:
                seen.processes[frame.pid] = command
            if not frame.flags & FORKED:
                programs.spoke(frame)
        elif frame.type == OPEN:
            seen.opens += 1
        yield _other(frame, start)
    for enter in sorted(pending.values(), key=lambda f: f.time):
        seen.ioctls += 1
        seen.unfinished += 1
        seen.faults += bool(enter.flags & FAULT)
        seen.truncated += bool(enter.flags & TRUNCATED)
        yield _ioctl(enter, None, start or 0, values)
    seen.unseen = programs.unseen(problems)


def _other(frame: Frame, start: int) -> dict[str, Any]:
    path = text(frame.text)
    record: dict[str, Any] = {"t": frame.time - start, "pid": frame.pid, "tid": frame.tid}
    if frame.type == PROCESS:
        command = [text(word) for word in frame.text.rstrip(b"\0").split(b"\0")]
        how = "fork" if frame.flags & FORKED else "exec"
        return {"k": "process", **record, "ppid": frame.args[0], "how": how, "command": command}
    if frame.type == EXEC:
        record |= {"k": "exec", "path": path or "(by descriptor)"}
    elif frame.type == MMAP:
        record |= {
            "k": "mmap",
            "d": frame.args[1],
            "fd": frame.fd,
            "ret": -1 if frame.err else 0,
            "dev": path,
            "addr": frame.args[0],
            "len": frame.args[2],
            "prot": frame.request,
            "flags": frame.key,
            "off": frame.args[3],
            "va": 0 if frame.err else frame.ret & 0xFFFFFFFFFFFFFFFF,
        }
    else:
        name = {OPEN: "open", FD: "fd", CLOSE: "close", DUP: "dup"}[frame.type]
        record |= {"k": name, "d": frame.args[1], "fd": frame.fd, "ret": frame.ret}
        record["path" if frame.type == OPEN else "dev"] = path
        if frame.type == OPEN:
            record["flags"] = frame.args[0]
    if frame.err:
        record["err"] = frame.err
    return record
