"""Reads the frames that recorder.c appends to its spool, and makes the records of the trace format of them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any, Final, NamedTuple

from nvproxy_model.trace.devices import ioctl_kind
from nvproxy_model.trace.format import TRUNCATED, UNFINISHED, printable
from nvproxy_model.trace.reader import Problems

__all__ = ["MAGIC", "Seen", "frames", "records"]

MAGIC: Final = b"NVTR"
_HEADER: Final = struct.Struct("=4sIHHIIIQQqiIIIII4QII")
_SECTION: Final = struct.Struct("=II")
_CHECK: Final = struct.Struct("=I")
_LARGEST: Final = 3 << 20
_CHUNK: Final = 1 << 20
_PENDING: Final = 1 << 14

PROCESS, OPEN, FD, ENTER, LEAVE, MMAP, CLOSE, DUP, EXEC = range(1, 10)
_SPACES: Final = ("fe", "uvm", "control", "alloc", "other")
BY_TABLE, FAULT, STATUS, FORKED = 2, 8, 16, 32


class Frame(NamedTuple):
    """struct frame of recorder.c, with its text and its sections taken apart."""

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
    status: int
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
    """(pid, path) of an exec after which the recorder did not speak: static, setuid, or an environment without it."""
    unfinished: int = 0
    faults: int = 0
    truncated: int = 0


def _frame(data: bytes) -> Frame:
    _, _, *numbers, a, b, c, d, text, count = _HEADER.unpack_from(data)
    frame = Frame._make([*numbers, (a, b, c, d), data[_HEADER.size : _HEADER.size + text], {}])
    if (
        max(frame.pid, frame.tid) > 0x7FFFFFFF
        or frame.err > 4095
        or max(frame.time, a, b) >= 1 << 63
        or not -1 <= frame.fd <= 0x7FFFFFFF
        or frame.type not in range(1, 10)
    ):
        raise ValueError("a frame whose numbers are none of ours")
    at = _HEADER.size + text
    end = len(data) - _CHECK.size
    for _ in range(count):
        where, size = _SECTION.unpack_from(data, at)
        at += _SECTION.size
        if at + size > end:
            raise ValueError("a section is longer than its frame")
        frame.sections[where] = data[at : at + size]
        at += size
    if at != end:
        raise ValueError("a frame is longer than its sections")
    return frame


def frames(raw: IO[bytes], problems: Problems) -> Iterator[Frame]:
    """The frames of a spool in file order. A torn one (a full disk, a process killed in its write) is skipped and reported."""
    buffer = bytearray()
    offset = 0
    torn = -1

    def fill(size: int) -> bool:
        while len(buffer) < size:
            chunk = raw.read(_CHUNK)
            if not chunk:
                return False
            buffer.extend(chunk)
        return True

    while fill(1):
        frame = None
        if fill(_HEADER.size) and buffer.startswith(MAGIC):
            size = int.from_bytes(buffer[4:8], "little")
            if _HEADER.size + _CHECK.size <= size <= _LARGEST and fill(size):
                data = bytes(buffer[:size])
                if _CHECK.unpack_from(data, size - _CHECK.size)[0] == ~size & 0xFFFFFFFF:
                    try:
                        frame = _frame(data)
                    except (ValueError, struct.error):
                        frame = None
        if frame is None:
            if torn < 0:
                torn = offset
                problems.add(0, f"a torn frame at byte {offset} of the spool")
            step = buffer.find(MAGIC, 1)
            step = step if step > 0 else max(len(buffer) - len(MAGIC) + 1, 1)
        else:
            torn = -1
            step = size
        del buffer[:step]
        offset += step
        if frame is not None:
            yield frame


def _sections(sections: dict[int, bytes], suffix: str, record: dict[str, Any]) -> None:
    for where, name in ((0, "top"), (1, "par")):
        if where in sections:
            record[name + suffix] = sections[where].hex()


def _ioctl(enter: Frame, leave: Frame | None, start: int, values: bool) -> dict[str, Any]:
    kind = _SPACES[enter.space] if enter.space < len(_SPACES) else "other"
    dev = enter.text.decode("utf-8", "replace")
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
    if leave is not None:
        if leave.err:
            record["err"] = leave.err
        if leave.flags & STATUS:
            record["status"] = hex(leave.status)
    _sections(enter.sections, "0", record)
    if leave is not None:
        _sections(leave.sections, "1", record)
    if enter.params_size and (not values or len(enter.sections.get(1, b"")) != enter.params_size):
        record["psize"] = enter.params_size
    bufs = []
    for where, before in enter.sections.items():
        if where >= 0x10000:
            item: list[Any] = [where - 0x10000, before.hex()]
            if leave is not None and where in leave.sections:
                item.append(leave.sections[where].hex())
            bufs.append(item)
    if bufs:
        record["bufs"] = bufs
    flags = enter.flags & (TRUNCATED | BY_TABLE) | (0 if leave else UNFINISHED)
    if flags:
        record["fl"] = flags
    if (enter.flags | (leave.flags if leave else 0)) & FAULT:
        record["fault"] = True
    return {name: value for name, value in record.items() if value is not None}


class _Execs:
    """Per process: programs begun, against programs that spoke."""

    def __init__(self) -> None:
        self.waiting: dict[int, list[str]] = {}
        self.spoke: dict[int, int] = {}

    def exec(self, frame: Frame) -> None:
        paths = self.waiting.setdefault(frame.pid, [])
        if frame.err:
            if paths:
                paths.pop()
        elif len(paths) < 1024:
            paths.append(frame.text.decode("utf-8", "replace"))

    def begun(self, pid: int) -> None:
        self.spoke[pid] = self.spoke.get(pid, 0) + 1

    def unseen(self, first: int | None) -> list[tuple[int, str]]:
        result = []
        for pid, paths in self.waiting.items():
            spoke = self.spoke.get(pid, 0) - (pid == first)
            result += [(pid, path) for path in paths[max(spoke, 0) :]]
        return result


def records(
    raw: IO[bytes], problems: Problems, seen: Seen, *, values: bool = True, first: int | None = None
) -> Iterator[dict[str, Any]]:
    """The records of a spool, calls in the order in which they returned.

    ``first`` is the process that the launcher began itself. A call that never returned comes last, marked unfinished.
    """
    pending: dict[tuple[int, int, int], Frame] = {}
    execs = _Execs()
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
            execs.exec(frame)
        elif frame.type == PROCESS:
            command = printable(frame.text.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace"))
            if len(seen.processes) < _PENDING:
                seen.processes[frame.pid] = command
            if not frame.flags & FORKED:
                execs.begun(frame.pid)
        elif frame.type == OPEN:
            seen.opens += 1
        record = _other(frame, start)
        if record is not None:
            yield record
    for enter in sorted(pending.values(), key=lambda f: f.time):
        seen.ioctls += 1
        seen.unfinished += 1
        yield _ioctl(enter, None, start or 0, values)
    seen.unseen = execs.unseen(first)


def _other(frame: Frame, start: int) -> dict[str, Any] | None:
    text = frame.text.decode("utf-8", "replace")
    record: dict[str, Any] = {"t": frame.time - start, "pid": frame.pid, "tid": frame.tid}
    if frame.type == PROCESS:
        command = [word.decode("utf-8", "replace") for word in frame.text.rstrip(b"\0").split(b"\0")]
        how = "fork" if frame.flags & FORKED else "exec"
        return {"k": "process", **record, "ppid": frame.args[0], "how": how, "command": command}
    if frame.type == EXEC:
        record |= {"k": "exec", "path": text}
    elif frame.type == MMAP:
        record |= {
            "k": "mmap",
            "d": frame.args[1],
            "fd": frame.fd,
            "ret": -1 if frame.err else 0,
            "dev": text,
            "addr": frame.args[0],
            "len": frame.args[2],
            "prot": frame.request,
            "flags": frame.key,
            "off": frame.args[3],
            "va": 0 if frame.err else frame.ret & 0xFFFFFFFFFFFFFFFF,
        }
    elif frame.type in (OPEN, FD, CLOSE, DUP):
        name = {OPEN: "open", FD: "fd", CLOSE: "close", DUP: "dup"}[frame.type]
        record |= {"k": name, "d": frame.args[1], "fd": frame.fd, "ret": frame.ret}
        record["path" if frame.type == OPEN else "dev"] = text
        if frame.type == OPEN:
            record["flags"] = frame.args[0]
    else:
        return None
    if frame.err:
        record["err"] = frame.err
    return record
