"""Reads strace's text: numeric and ``_IOC(...)`` requests, ``-f``, ``-y``, time stamps, interrupted and resumed calls.

strace prints no argument bytes for these devices, so a record holds the request, the device and the answer, never the
control command or the class.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from typing import Any, Final

from nvproxy_model.ioctl import NV_IOCTL_MAGIC, parse_request
from nvproxy_model.ioctl import number as ioc_nr
from nvproxy_model.trace.devices import device_kind
from nvproxy_model.trace.reader import Problems

__all__ = ["SIGNATURE", "parse"]

_PREFIX: Final = re.compile(
    r"(?:\[pid\s+(?P<pid>\d{1,10})\]\s*|(?P<pid2>\d{1,10})\s+)?"
    r"(?:(?P<time>\d\d:\d\d:\d\d(?:\.\d{1,9})?|\d{1,12}\.\d{1,9})\s+)?(?P<body>.*)",
    re.DOTALL,
)
_CALL: Final = re.compile(r"(?P<name>[a-z_0-9]+)\((?P<rest>.*)", re.DOTALL)
_RESUMED: Final = re.compile(r"<\.\.\. (?P<name>[a-z_0-9]+) resumed>\s*,?\s*(?P<rest>.*)", re.DOTALL)
_RESULT: Final = re.compile(
    r"\)\s+= (?P<ret>-?\d{1,20}|0x[0-9a-f]{1,16}|\?)(?:<[^>]*(?:<[^>]*>)?>)?"
    r"(?: (?P<errno>E[A-Z0-9]+))?[^<]*(?:<(?P<dur>\d{1,9}\.\d{1,9})>)?\s*$"
)
_FD: Final = r"(?P<fd>-?\d{1,10})(?:<(?P<path>[^<>]*)(?:<[^<>]*>)?>)?"
_IOCTL: Final = re.compile(
    _FD + r",\s*(?P<req>_IOC\([^()]*\)|0x[0-9a-fA-F]{1,8}|\d{1,10})(?:\s*/\*[^*]*\*/)?\s*(?:,.*)?$", re.DOTALL
)
_OPEN: Final = re.compile(
    r'(?:(?:AT_FDCWD|-?\d{1,10})(?:<[^<>]*>)?,\s*)?"(?P<name>(?:[^"\\]|\\.)*)"(?P<rest>.*)', re.DOTALL
)
_FIRST_FD: Final = re.compile(_FD)
_SECOND: Final = re.compile(r"[^,]*,\s*(?P<arg>[^,)\s]+)")

SIGNATURE: Final = re.compile(
    r"^(?:\[pid\s+\d+\]\s*|\d+\s+)?(?:[\d:.]+\s+)?"
    r"(?:ioctl\(-?\d+(?:<[^<>]*(?:<[^<>]*>)?>)?, (?:_IOC\(|0x|\d|[A-Z])"
    r"|open(?:at)?\(.*\) = |execve\(\"|<\.\.\. [a-z_0-9]+ resumed>)"
)
"""What a line of strace looks like."""

_WAITING: Final = 4096


def _unescape(text: str) -> str:
    return text.encode("latin-1", "replace").decode("unicode_escape", "replace") if "\\" in text else text


class _Process:
    __slots__ = ("fds", "pid")

    def __init__(self, pid: int, fds: dict[int, str]) -> None:
        self.pid = pid
        self.fds = fds


class _Parser:
    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.threads: dict[int, _Process] = {}
        self.waiting: dict[tuple[int, str], str] = {}
        self.start: float | None = None
        self.last = 0

    def process(self, tid: int) -> _Process:
        process = self.threads.get(tid)
        if process is None:
            # The child of a clone that has not returned yet may speak first: it is the child of the one that waits.
            parent = next((key for key in self.waiting if key[1] in ("clone", "clone3", "fork", "vfork")), None)
            if parent is not None:
                self.cloned(parent[0], tid, self.waiting[parent])
                return self.threads[tid]
            # Until a second task exists strace names none: the first that it names without a clone is the one so far.
            first = self.threads.get(0)
            if first is not None and first.pid == 0:
                first.pid = tid
                process = first
            else:
                process = _Process(tid, {})
            self.remember(tid, process)
        return process

    def remember(self, tid: int, process: _Process) -> None:
        if len(self.threads) >= 1 << 16:
            self.threads.pop(next(iter(self.threads)))
        self.threads[tid] = process

    def cloned(self, parent: int, child: int, args: str) -> None:
        above = self.threads.get(parent)
        if above is None:
            above = _Process(parent, {})
            self.remember(parent, above)
        if "CLONE_THREAD" in args:
            self.remember(child, above)
        elif child not in self.threads:
            shared = "CLONE_FILES" in args
            self.remember(child, _Process(child, above.fds if shared else dict(above.fds)))

    def line(self, number: int, text: str) -> Iterator[dict[str, Any]]:
        match = _PREFIX.match(text)
        if match is None:
            return
        tid = int(match["pid"] or match["pid2"] or 0)
        if tid > 0x7FFFFFFF:
            return
        when = self.when(match["time"])
        body = match["body"]
        resumed = _RESUMED.match(body)
        if resumed is not None:
            begun = self.waiting.pop((tid, resumed["name"]), None)
            if begun is None:
                if resumed["name"] == "ioctl":
                    self.problems.add(number, "an ioctl is resumed that was not begun in this log")
                return
            rest = resumed["rest"]
            joined = (
                begun + (", " if begun and not begun.rstrip().endswith(",") and not rest.startswith(")") else "") + rest
            )
            yield from self.call(number, tid, when, resumed["name"], joined)
            return
        call = _CALL.match(body)
        if call is None:
            return
        rest = call["rest"]
        cut = rest.rfind("<unfinished ...>")
        if cut >= 0:
            if len(self.waiting) < _WAITING:
                self.waiting[tid, call["name"]] = rest[:cut].rstrip().rstrip(",")
            return
        yield from self.call(number, tid, when, call["name"], rest)

    def when(self, text: str | None) -> int:
        if text is None:
            return self.last
        if ":" in text:
            hours, minutes, seconds = text.split(":")
            value = int(hours) * 3600 + int(minutes) * 60 + float(seconds)
        else:
            value = float(text)
        if self.start is None:
            self.start = value
        self.last = round((value - self.start) * 1e9)
        return self.last

    def call(self, number: int, tid: int, when: int, name: str, rest: str) -> Iterator[dict[str, Any]]:
        results = list(_RESULT.finditer(rest))
        result = results[-1] if results else None
        if result is None:
            if name == "ioctl":
                self.problems.add(number, "an ioctl without its result")
            return
        args = rest[: result.start()]
        process = self.process(tid)
        ret = None if result["ret"] == "?" else int(result["ret"], 0)
        code = getattr(errno, result["errno"] or "", 0) if result["errno"] else 0
        record: dict[str, Any] = {"t": when, "pid": process.pid, "tid": tid or process.pid}
        if result["dur"]:
            record["d"] = round(float(result["dur"]) * 1e9)
        if name in ("clone", "clone3", "fork", "vfork"):
            if ret is not None and 0 < ret <= 0x7FFFFFFF:
                self.cloned(tid, ret, args)
            return
        handler = getattr(self, "_" + name, None)
        if handler is not None:
            yield from handler(number, record, process, args, ret, code)

    def _open(
        self, _: int, record: dict[str, Any], process: _Process, args: str, ret: int | None, code: int
    ) -> Iterator[dict[str, Any]]:
        match = _OPEN.match(args)
        if match is None or ret is None:
            return
        path = _unescape(match["name"])[:4096]
        if 0 <= ret <= 0x7FFFFFFF:
            if len(process.fds) >= 1 << 16:
                process.fds.pop(next(iter(process.fds)))
            process.fds[ret] = path
        if path.startswith("/dev/nvidia"):
            yield {"k": "open", **record, "fd": ret if ret >= 0 else -1, "ret": ret, "path": path, **_err(code)}

    _openat = _openat2 = _open

    def _close(
        self, _: int, record: dict[str, Any], process: _Process, args: str, ret: int | None, code: int
    ) -> Iterator[dict[str, Any]]:
        match = _FIRST_FD.match(args)
        if match is None or ret is None:
            return
        path = process.fds.pop(int(match["fd"]), match["path"])
        if path is not None and path.startswith("/dev/nvidia"):
            yield {"k": "close", **record, "fd": int(match["fd"]), "ret": ret, **_err(code)}

    def _dup(
        self, _: int, record: dict[str, Any], process: _Process, args: str, ret: int | None, code: int
    ) -> Iterator[dict[str, Any]]:
        match = _FIRST_FD.match(args)
        if match is None or ret is None or not 0 <= ret <= 0x7FFFFFFF:
            return
        path = process.fds.get(int(match["fd"]), match["path"])
        if path is not None:
            process.fds[ret] = path
            if path.startswith("/dev/nvidia"):
                yield {"k": "dup", **record, "fd": int(match["fd"]), "ret": ret, "dev": path}
        else:
            process.fds.pop(ret, None)

    _dup2 = _dup3 = _dup

    def _fcntl(
        self, number: int, record: dict[str, Any], process: _Process, args: str, ret: int | None, code: int
    ) -> Iterator[dict[str, Any]]:
        second = _SECOND.match(args)
        if second is not None and second["arg"].startswith("F_DUPFD"):
            yield from self._dup(number, record, process, args, ret, code)

    def _ioctl(
        self, number: int, record: dict[str, Any], process: _Process, args: str, ret: int | None, code: int
    ) -> Iterator[dict[str, Any]]:
        match = _IOCTL.match(args)
        if match is None:
            return
        fd = int(match["fd"])
        request = parse_request(match["req"])
        if request is None or abs(fd) > 0x7FFFFFFF:
            self.problems.add(number, "an ioctl request that is no number")
            return
        path = match["path"] or process.fds.get(fd)
        if path is None:
            # Only what cannot be another driver's: read and write, NVIDIA's letter, one of its escapes.
            if request >> 30 != 3 or request >> 8 & 0xFF != NV_IOCTL_MAGIC or ioc_nr(request) < 0x27:
                return
            kind = "fe"
        elif not path.startswith("/dev/nvidia"):
            return
        else:
            kind = ioctl_kind(path)
        key = ioc_nr(request) if kind == "fe" else request
        record |= {"fd": fd, "ret": ret, "dev": path, "req": hex(request), "kind": kind, "key": hex(key), **_err(code)}
        if ret is None:
            record["fl"] = 4
        yield {"k": "ioctl", **record}


def ioctl_kind(path: str) -> str:
    """The kind of an ioctl on a device node of which only the request is known."""
    if path == "/dev/nvidia-uvm-tools":
        return "uvm"
    return {"frontend": "fe", "uvm": "uvm"}.get(device_kind(path), "other")


def _err(code: int) -> dict[str, int]:
    return {"err": code} if code else {}


def parse(lines: Iterator[tuple[int, str]], problems: Problems) -> Iterator[dict[str, Any]]:
    """The records of numbered lines of strace output; problems are added as they are met."""
    parser = _Parser(problems)
    number = 0
    for number, text in lines:
        yield from parser.line(number, text)
    for (tid, name), args in parser.waiting.items():
        if name == "ioctl":
            process = parser.process(tid)
            record = {"t": parser.last, "pid": process.pid, "tid": tid or process.pid}
            yield from parser._ioctl(number, record, process, args, None, 0)
