"""strace's text, from 4.x to 7.x in any of its styles, as records.

A record holds what the line holds. Most strace versions print no argument bytes of these devices, so that a control has no
command; since 6.11 ``-v`` prints them, and they become ``top0`` and ``top1``.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from nvproxy_model import ioctl
from nvproxy_model.abi.escapes import NV_ESC_RM_ALLOC, NV_ESC_RM_CONTROL
from nvproxy_model.trace.devices import DescriptorMap, graphics, kind_on, node, nvidia
from nvproxy_model.trace.format import UNFINISHED
from nvproxy_model.trace.lines import Problems
from nvproxy_model.trace.logs.prefixes import Clock, Line
from nvproxy_model.trace.logs.syntax import (
    FD,
    HEAD,
    RESUMED,
    STRING,
    Answer,
    Call,
    Glued,
    Unreadable,
    answer_of,
    argument,
    body_of,
    cut,
    descriptor,
    literal_bytes,
    path_text,
    request_number,
)

__all__ = ["records"]

Fields = dict[str, Any]

_MAX: Final = 0x7FFFFFFF
_PATH: Final = 4096
_WAITING: Final = 2048
"""Interrupted calls that are remembered until they are resumed."""
_WAITING_TEXT: Final = 1 << 14
"""Characters of an interrupted call that are remembered. An ioctl with two copies of its argument needs fewer."""
_TASKS: Final = 1 << 16
_DESCRIPTORS: Final = 1 << 18
"""Open files of all processes together that are remembered."""


_PID: Final = re.compile(r"\[pid\s+(\d{1,30})\b")
"""strace's process column behind a prefix that the common grammar does not know."""


class _Ours(Unreadable):
    """A call that cannot be read, on what is known to be a device of NVIDIA's."""


class _Process:
    __slots__ = ("fds", "pid")

    def __init__(self, pid: int, fds: DescriptorMap) -> None:
        self.pid = pid
        self.fds = fds


class _Reader:
    """One log: who has which file open, and which calls are interrupted."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.clock = Clock()
        self.threads: dict[int, _Process] = {}
        self.waiting: dict[tuple[int, str], str] = {}
        self.left = _DESCRIPTORS
        self.when = 0
        self.calls: dict[str, Callable[[Fields, _Process, list[str], Answer | None], Iterator[Fields]]] = {
            "open": self.open,
            "openat": self.openat,
            "openat2": self.openat,
            "close": self.close,
            "close_range": self.close_range,
            "dup": self.dup,
            "dup2": self.dup,
            "dup3": self.dup,
            "fcntl": self.fcntl,
            "fcntl64": self.fcntl,
            "ioctl": self.ioctl,
            "mmap": self.mmap,
        }

    # Tasks

    def process(self, tid: int) -> _Process:
        """The process of a task that speaks."""
        process = self.threads.get(tid)
        if process is None:
            # The child of a clone that has not returned yet may speak first: it is the child of the one that waits.
            parent = next((key for key in self.waiting if key[1] in _CLONES), None)
            if parent is not None:
                self.cloned(parent[0], tid, self.waiting[parent])
                return self.threads[tid]
            # Until a second task exists strace names none: the first that it names without a clone is the one so far.
            first = self.threads.get(0)
            if first is not None and first.pid == 0:
                first.pid = tid
                process = first
            else:
                process = _Process(tid, DescriptorMap())
            self.remember(tid, process)
        return process

    def remember(self, tid: int, process: _Process) -> None:
        if len(self.threads) >= _TASKS:
            self.threads.pop(next(iter(self.threads)))
        self.threads[tid] = process

    def cloned(self, parent: int, child: int, args: str) -> None:
        above = self.threads.get(parent)
        if above is None:
            above = _Process(parent, DescriptorMap())
            self.remember(parent, above)
        if "CLONE_THREAD" in args:
            self.remember(child, above)
        elif child not in self.threads:
            self.remember(child, _Process(child, above.fds if "CLONE_FILES" in args else above.fds.copy()))

    def put(self, process: _Process, fd: int, path: str | None) -> None:
        """Remember what is behind a descriptor; ``""`` is a file that is known to be none of ours."""
        if path is None and fd not in process.fds:
            return
        if self.left:
            self.left -= 1
            process.fds.set(fd, path)
        elif nvidia(path):
            raise _Ours(f"more than {_DESCRIPTORS} open files: this one is not followed")

    # Lines

    def line(self, line: Line) -> Iterator[Fields]:
        body = body_of(line) if not HEAD.match(line.body) else line.body
        if body is None:
            return
        try:
            self.when = self.clock.at(line.time)
            yield from self.call(line, body)
        except ValueError as error:
            self.problems.add(line.number, str(error))

    def call(self, line: Line, body: str) -> Iterator[Fields]:
        pid = _PID.search(line.body, 0, len(line.body) - len(body)) if line.pid is None else None
        tid = int(line.pid or (pid[1] if pid else 0))
        resumed = RESUMED.match(body)
        if resumed is not None:
            name, rest = resumed[1], body[resumed.end() :].lstrip(" ,")
            if name not in self.calls and name not in _CLONES:
                return
            begun = self.waiting.pop((tid, name), None)
            if begun is None:
                if name == "ioctl":
                    raise Unreadable("an ioctl is resumed that was not begun in this log")
                return
            text = begun + (", " if begun and not rest.startswith(")") else "") + rest
        else:
            head = HEAD.match(body)
            if head is None:
                return
            name, text = head[1], body[head.end() :]
            if name not in self.calls and name not in _CLONES:
                return
        if tid > _MAX:
            if self.ours(name, text, None):
                raise Unreadable("a process number out of range")
            return
        try:
            call = cut(name, text)
            if call.after is None:
                self.wait(tid, name, text, call)
                return
            answer = answer_of(call.after, line)
            yield from self.answered(tid, call, text, answer)
        except Unreadable as error:
            # What is another driver's may be as broken as it likes.
            if isinstance(error, (_Ours, Glued)) or self.ours(name, text, self.threads.get(tid)):
                raise

    def answered(self, tid: int, call: Call, text: str, answer: Answer) -> Iterator[Fields]:
        if call.name in _CLONES:
            self.process(tid)
            if answer.ret is not None and 0 < answer.ret <= _MAX:
                self.cloned(tid, answer.ret, text)
            return
        process = self.process(tid)
        base: Fields = {"t": self.when, "pid": process.pid, "tid": tid or process.pid}
        if answer.duration is not None:
            base["d"] = answer.duration
        yield from self.calls[call.name](base, process, [argument(arg) for arg in call.args], answer)

    def ours(self, name: str, text: str, process: _Process | None) -> bool:
        """Whether a call that cannot be read is about one of NVIDIA's devices as far as its text shows."""
        if "/dev/nvidia" in text:
            return True
        match = FD.match(argument(text[:300]))
        if name != "ioctl" or match is None or match["path"] is not None:
            return False
        known = (
            process.fds.get(int(match["fd"]))
            if process is not None and len(match["fd"]) < 11 and match["fd"] != "AT_FDCWD"
            else None
        )
        if known is not None:
            return nvidia(known)
        return (
            any(word in text for word in ("0x46", "'F'"))
            or re.search(r"0xc[0-9a-f]{3}46[0-9a-f]{2}\b", text[:300]) is not None
        )

    def wait(self, tid: int, name: str, text: str, call: Call) -> None:
        begun = ", ".join(arg for arg in call.args if arg)
        if len(begun) > _WAITING_TEXT:
            raise Unreadable("an interrupted call that is too long to be remembered")
        if len(self.waiting) >= _WAITING:
            raise Unreadable(f"more than {_WAITING} interrupted calls: this one is not followed")
        self.waiting[tid, name] = begun

    def end(self, number: int) -> Iterator[Fields]:
        """The calls that never returned."""
        for (tid, name), text in self.waiting.items():
            if name != "ioctl" and not name.startswith("open"):
                continue
            try:
                call = cut(name, f"{text})")
                process = self.process(tid)
                base: Fields = {"t": self.when, "pid": process.pid, "tid": tid or process.pid}
                yield from self.calls[name](base, process, [argument(arg) for arg in call.args], None)
            except Unreadable as error:
                if self.ours(name, text, self.threads.get(tid)):
                    self.problems.add(number, str(error))

    # Calls

    def openat(self, base: Fields, process: _Process, args: list[str], answer: Answer | None) -> Iterator[Fields]:
        folder = FD.match(args[0]) if args else None
        yield from self.open(base, process, args[1:], answer, folder["path"] if folder else None)

    def open(
        self, base: Fields, process: _Process, args: list[str], answer: Answer | None, folder: str | None = None
    ) -> Iterator[Fields]:
        match = STRING.match(args[0]) if args else None
        if match is None:
            return
        path = path_text(match[1])
        if folder is not None and not path.startswith("/"):
            path = f"{folder}/{path}"
        if path.startswith("/dev") and ("/." in path or "//" in path):
            path = posixpath.normpath(path)
        path = node(path) or path
        if answer is None or answer.ret is None:
            if nvidia(path):
                raise _Ours("an open whose result is not in this log")
            return
        found = node(path_text(answer.path)) if answer.path is not None else None
        path = found if found is not None and nvidia(found) else path
        ours = nvidia(path) or graphics(path)
        if len(path) > _PATH:
            raise Unreadable("a path that is longer than any")
        if not -4095 <= answer.ret <= _MAX:
            raise Unreadable("a descriptor that is out of range")
        if answer.ret >= 0:
            self.put(process, answer.ret, path if ours else _OTHER)
        if ours:
            yield {
                "k": "open",
                **base,
                "fd": max(answer.ret, -1),
                "ret": answer.ret,
                "path": path,
                **_failed(answer, "open"),
            }

    def file(self, process: _Process, text: str) -> tuple[int, str | None]:
        """A descriptor argument and the device behind it."""
        fd, printed = descriptor(text)
        if printed is not None and len(printed) > _PATH:
            raise Unreadable("a path that is longer than any")
        if fd is None:
            raise Unreadable("a descriptor that is out of range")
        path = node(path_text(printed)) if printed is not None else None
        return fd, path if path is not None else process.fds.get(fd)

    def close(self, base: Fields, process: _Process, args: list[str], answer: Answer | None) -> Iterator[Fields]:
        if not args or answer is None or answer.ret is None:
            return
        fd, path = self.file(process, args[0])
        if fd >= 0:
            self.put(process, fd, None)
        if nvidia(path) or graphics(path):
            yield {"k": "close", **base, "fd": fd, "ret": answer.ret, **_failed(answer)}

    def close_range(self, base: Fields, process: _Process, args: list[str], answer: Answer | None) -> Iterator[Fields]:
        if len(args) < 3 or answer is None or answer.ret != 0 or "CLOEXEC" in args[2]:
            return
        try:
            first, last = int(args[0], 0), int(args[1], 0)
        except ValueError:
            return
        for fd, path in list(process.fds.items()):
            if first <= fd <= last:
                self.put(process, fd, None)
                if path != _OTHER:
                    yield {"k": "close", **base, "fd": fd, "ret": 0}

    def dup(self, base: Fields, process: _Process, args: list[str], answer: Answer | None) -> Iterator[Fields]:
        if not args or answer is None or answer.ret is None or not 0 <= answer.ret <= _MAX:
            return
        fd, path = self.file(process, args[0])
        # A copy of a file that nothing in the log opened takes the place of what the number was before.
        self.put(process, answer.ret, path)
        if nvidia(path) or graphics(path):
            yield {"k": "dup", **base, "fd": fd, "ret": answer.ret, "dev": path}

    def fcntl(self, base: Fields, process: _Process, args: list[str], answer: Answer | None) -> Iterator[Fields]:
        if len(args) > 1 and (args[1].startswith("F_DUPFD") or args[1] in ("0", "0x406", "1030")):
            yield from self.dup(base, process, args, answer)

    def mmap(self, base: Fields, process: _Process, args: list[str], answer: Answer | None) -> Iterator[Fields]:
        if len(args) < 6 or answer is None or answer.ret is None or args[4].startswith("-1"):
            return
        fd, path = self.file(process, args[4])
        if not nvidia(path):
            return
        try:
            length, offset = int(args[1], 0), int(args[5], 0)
        except ValueError:
            raise _Ours("a mapping whose size is not a number") from None
        va = {} if answer.err else {"va": answer.ret}
        yield {
            "k": "mmap",
            **base,
            "fd": fd,
            "ret": answer.ret,
            "dev": path,
            "len": length,
            "off": offset,
            **va,
            **_failed(answer),
        }

    def ioctl(self, base: Fields, process: _Process, args: list[str], answer: Answer | None) -> Iterator[Fields]:
        if len(args) < 2:
            raise Unreadable("an ioctl without a request")
        fd, path = self.file(process, args[0])
        request = request_number(args[1])
        if path is not None and not (nvidia(path) or graphics(path)):
            return
        if request is None:
            if path is not None:
                raise Unreadable("a request that is not a number")
            return
        kind = _kind(path, request)
        if kind is None:
            if path is None and (request in _UVM or request in range(1, 0x100)) and args[1].startswith("_IOC"):
                raise _Ours("a request that may be one of UVM's, on a descriptor whose open is not in this log")
            return
        record: Fields = {"k": "ioctl", **base, "fd": fd, "dev": path, "req": hex(request), "kind": kind}
        record["key"] = hex(ioctl.number(request) if kind == "fe" else request)
        record |= {"fl": UNFINISHED} if answer is None or answer.ret is None else {"ret": answer.ret, **_failed(answer)}
        if kind in ("fe", "uvm") and len(args) > 2 and args[2].startswith(('"', "=>")):
            record |= _contents(args[2], record, kind)
        yield record


_UVM: Final = (0x30000001, 0x30000002)
"""UVM_INITIALIZE and UVM_DEINITIALIZE; its other commands are small numbers, which hardly any other driver has."""

_OTHER: Final = "/"
"""A file that is none of NVIDIA's: a later ioctl on its descriptor is another driver's."""

_CLONES: Final = frozenset(("clone", "clone3", "fork", "vfork"))


def _failed(answer: Answer, call: str = "") -> Fields:
    if not answer.err:
        return {}
    return {"err": answer.err, **({"by": "permission"} if call == "open" else {})}


def _kind(path: str | None, request: int) -> str | None:
    """The kind of an ioctl's record; None for a request that may be any driver's, on a descriptor that the log never opened."""
    if path is None and ioctl.foreign(request) is not None:
        return "other"
    if path is not None:
        return kind_on(path, request)
    # Only what cannot be another driver's: read and write, NVIDIA's letter, one of its escapes (linux/fb.h has lower ones).
    ours = request >> 30 == 3 and ioctl.magic(request) == ioctl.NV_IOCTL_MAGIC and ioctl.number(request) >= 0x27
    return "fe" if ours else None


def _contents(text: str, record: Fields, kind: str) -> Fields:
    """The argument's bytes before and after the call, and the command or class that they name."""
    before, _, after = text.partition("=>")
    pieces = [STRING.match(side.strip()) for side in (before, after)]
    if before.strip() and pieces[0] is None:
        return {}
    top0 = literal_bytes(pieces[0][1]) if pieces[0] else None
    top1 = literal_bytes(pieces[1][1]) if pieces[1] else None
    cut = any(piece is not None and piece[2] for piece in pieces)
    found: Fields = {"top0": top0.hex()} if top0 is not None else {}
    if top1 is not None and top1 != top0:
        found["top1"] = top1.hex()
    if kind != "fe":
        return found
    number, size = int(record["key"], 16), ioctl.size(int(record["req"], 16))
    where = {NV_ESC_RM_CONTROL: ("control", 8, 28), NV_ESC_RM_ALLOC: ("alloc", 12, 28 if size == 32 else 40)}.get(
        number
    )
    data = top0 if top0 is not None else top1
    if where is None or data is None or len(data) < where[1] + 4:
        return found
    # NVOS54.cmd and NVOS64.hClass, and their statuses (nvos.h).
    found |= {"kind": where[0], "key": hex(int.from_bytes(data[where[1] : where[1] + 4], "little"))}
    last = top1 if top1 is not None else top0
    if (
        last is not None
        and not record.get("err")
        and "ret" in record
        and not (cut and len(last) < size)
        and len(last) >= where[2] + 4
    ):
        found["status"] = hex(int.from_bytes(last[where[2] : where[2] + 4], "little"))
    return found


def records(lines: Iterable[Line], problems: Problems) -> Iterator[Fields]:
    """The records of a log's lines; what cannot be read is added to ``problems`` with its line."""
    reader = _Reader(problems)
    number = 0
    for line in lines:
        number = line.number
        yield from reader.line(line)
    yield from reader.end(number)
