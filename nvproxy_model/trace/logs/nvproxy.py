"""nvproxy's debug log, in every wording since May 2023, with runsc's strace lines where the log has them.

A line that begins with ``nvproxy:`` is a call, a refusal, the driver's answer, or one of the messages that say nothing about a call
(`_ASIDE`). Any other is reported: it may be a refusal in words of a later release.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from nvproxy_model import ioctl
from nvproxy_model.abi import escapes
from nvproxy_model.trace.devices import kind_on
from nvproxy_model.trace.lines import Problems
from nvproxy_model.trace.logs import runsc
from nvproxy_model.trace.logs.prefixes import Clock, Line, strip

__all__ = ["is_line", "records"]

Fields = dict[str, Any]

_MARK: Final = "nvproxy: "
_HEADER: Final = re.compile(r"(?=[IWEFD]\d{4} \d\d:\d\d:\d\d\.\d{1,9} +\d{1,10} )")
"""Where a message of runsc's begins: what its text log, klog's, has before each."""
_TASK: Final = re.compile(r"\[\s*(\d{1,9}):\s*(\d{1,9})\]")
_TASKS: Final = 4096
"""Tasks whose last call is remembered. Each holds less than 10 KiB."""

_HEX: Final = r"0x[0-9a-fA-F]{1,8}"
_ESCAPE: Final = re.compile(
    rf"frontend ioctl: nr = (?:\d{{1,10}} = )?(?P<nr>{_HEX}), argSize = (?P<size>0x[0-9a-fA-F]{{1,8}}|\d{{1,10}})"
)
_REQUEST: Final = re.compile(rf"frontend ioctl (?P<request>{_HEX})$")
_UVM: Final = re.compile(rf"uvm ioctl (?:(?P<decimal>\d{{1,10}}) = )?(?P<number>{_HEX})")
_CONTROL: Final = re.compile(rf"control command (?P<number>{_HEX})(?![0-9a-fA-F])")
_ALLOC: Final = re.compile(rf"allocation class (?P<number>{_HEX})")
_DRIVER_FAILED: Final = re.compile(rf"(?:frontend |uvm )ioctl failed: status=(?P<status>{_HEX})")
_OWN_FAILED: Final = re.compile(rf"(?P<what>.{{0,120}}?internally failed): status=(?P<status>{_HEX})")
_RM_FAILED: Final = re.compile(
    rf"rm (?P<kind>control|alloc) failed: (?:\w{{1,32}}=\S{{1,64}} ){{0,6}}?(?:cmd|hClass|class)=(?P<number>{_HEX})"
    rf"(?: \w{{1,32}}=\S{{1,64}}){{0,6}}? status=(?P<status>{_HEX})"
)
_REFUSED: Final = re.compile(
    r"(?:(?P<why>[a-z][a-z ]{1,60}) for |(?P<unknown>unknown) )"
    r"(?P<what>frontend ioctl|uvm ioctl|control command|allocation class) "
    rf"(?P<number>{_HEX}|\d{{1,10}})(?: ==? (?P<hex>{_HEX}))?"
    rf"(?P<rest> \((?:argSize=\d{{1,10}}, cmd=(?P<cmd>{_HEX})|paramsSize=\d{{1,10}})\))?"
)
_KINDS: Final = {"frontend ioctl": "fe", "uvm ioctl": "uvm", "control command": "control", "allocation class": "alloc"}

_ARGUMENT: Final[tuple[tuple[re.Pattern[str], int | None], ...]] = (
    (re.compile(r"(?:unknown|[a-z ]{1,60} for) NV_ESC_RM_ALLOC_MEMORY class"), escapes.NV_ESC_RM_ALLOC_MEMORY),
    (re.compile(r"(?:unknown|[a-z ]{1,60} for) VID_HEAP_CONTROL function"), escapes.NV_ESC_RM_VID_HEAP_CONTROL),
    (re.compile(r"NV_ESC_RM_IDLE_CHANNELS: NumChannels \d+ is too large"), escapes.NV_ESC_RM_IDLE_CHANNELS),
    (re.compile(r"attempted to reuse FD"), None),
    (re.compile(r"mismatched param sizes for alloc class"), escapes.NV_ESC_RM_ALLOC),
    (re.compile(r"requested classlist size exceeds max"), escapes.NV_ESC_RM_CONTROL),
    (re.compile(r"NV83DE_CTRL_CMD_DEBUG_READ_MEMORY length \d+ exceeds limit"), escapes.NV_ESC_RM_CONTROL),
    (re.compile(r"rmAllocIMEXSession got capDescriptor file of incompatible type"), escapes.NV_ESC_RM_ALLOC),
    (re.compile(r"ignoring NV_ESC_NUMA_INFO"), escapes.NV_ESC_NUMA_INFO),
)
"""Refusals of arguments: the words, and the escape that they are about where they say it."""

_ASIDE: Final = re.compile(
    r"(?:added|freed|restored|freeing) object |restored object handle |handle \S+ already in use|client handle \S+ already in use"
    r"|client \S+(?: or \S+)? is already released|failed to get (?:client|object|clients|handle) .{0,80}unknown"
    r"|freeing object handle \S+ with unknown|duplicating object |overwriting allocation class "
    r"|NV_ESC_RM_ALLOC_MEMORY class |NV_ESC_RM_ALLOC_CONTEXT_DMA2 class |VID_HEAP_CONTROL function "
    r"|inferred memory type |unknown caching type |pinned (?:\d+ bytes|pages) for OS descriptor"
    r"|unpinn(?:ed|ing) .{0,40}released OS descriptor|failed to unmap |disabling MADV_POPULATE_WRITE "
    r"|UVM_TOOLS_(?:READ|WRITE)_PROCESS_MEMORY\(|NVIDIA driver capability set is empty|failed to open (?:host|device gofer) "
    r"|failed to open \S+: |object handle \S+ .{0,80}is not restorable|new object .{0,120}invalid|invalid (?:client|handle)"
)
"""What nvproxy says about its objects and pages, and about opens, whose errno stands in runsc's own line."""


def is_line(line: Line) -> bool:
    """Whether a line is of a sandbox's debug log and about this device."""
    return _MARK in line.text or runsc.is_line(line.text) or runsc.is_line(line.body)


def _number(text: str) -> int:
    return int(text, 16 if text.startswith("0x") else 10) & 0xFFFFFFFF


class _Open:
    """A call that is under way: its record, and whether runsc printed its entry (then its exit will come)."""

    __slots__ = ("entered", "record")

    def __init__(self, record: Fields, entered: bool) -> None:
        self.record = record
        self.entered = entered

    @property
    def what(self) -> tuple[str, int]:
        return self.record["kind"], int(self.record["key"], 16)


class _Log:
    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.clock = Clock()
        self.open: dict[int, _Open] = {}
        self.opening: dict[tuple[int, str], int] = {}
        """(task, device) -> the line at which an open began whose end did not come yet."""
        self.task = (0, 0)
        self.when = 0

    def line(self, line: Line) -> Iterator[Fields]:
        """The calls that a line begins, ends or refuses. Messages stand in one line where two threads wrote at once, or where
        a form that was filled in with them took the newlines out."""
        texts = [text for text in _HEADER.split(line.text) if _MARK in text or "/dev/" in text]
        if len(texts) < 2:
            yield from self.message(line)
            return
        for text in texts[:-1]:
            yield from self.message(Line(line.number, text, *strip(text), True))
        yield from self.message(Line(line.number, texts[-1], *strip(texts[-1]), line.whole))

    def message(self, line: Line) -> Iterator[Fields]:
        text = line.text
        if _MARK not in text and "/dev/" not in text:
            return
        if text.count(_MARK) > 1:
            self.problems.add(line.number, "two messages of nvproxy in one line: only the first was read")
        try:
            self.when = self.clock.at(line.time)
            before = text[: text.find(_MARK)] if _MARK in text else text[:512]
            tasks = _TASK.findall(before[-512:])
            self.task = (int(tasks[-1][0]), int(tasks[-1][1])) if tasks else (0, 0)
            if _MARK in text:
                yield from self.said(line, text.index(_MARK) + len(_MARK))
            elif (call := runsc.call(text) or runsc.call(line.body)) is not None:
                yield from self.traced(call, line.number)
        except ValueError as error:
            self.problems.add(line.number, str(error))

    def record(self, kind: str, key: int, request: int, **more: Any) -> Fields:
        pid, tid = self.task
        return {
            "k": "ioctl",
            "t": self.when,
            "pid": pid,
            "tid": tid,
            "req": hex(request),
            "kind": kind,
            "key": hex(key),
            **more,
        }

    # runsc's lines

    def traced(self, call: runsc.Call, number: int) -> Iterator[Fields]:
        pid, tid = self.task
        base = {"t": self.when, "pid": pid, "tid": tid}
        fields = call.fields
        if call.name == "ioctl":
            if not call.exited:
                yield from self.begin(self.request(fields), True)
                return
            under = self.open.pop(tid, None)
            record = (
                under.record if under is not None and under.record.get("fd", fields["fd"]) == fields["fd"] else None
            )
            if under is not None and record is None:
                yield under.record
            yield {
                **(record or self.request(fields)),
                **{name: fields[name] for name in ("ret", "err", "d") if name in fields},
            }
        elif call.name.startswith("open"):
            under_way = tid, fields["path"]
            if not call.exited:
                if len(self.opening) < _TASKS:
                    self.opening[under_way] = number
                return
            self.opening.pop(under_way, None)
            yield {"k": "open", **base, "fd": fields["ret"], **fields}
        elif not call.exited:
            return
        elif call.name == "close":
            yield {"k": "close", **base, **fields}
        elif call.name == "mmap":
            yield {"k": "mmap", **base, **fields, **({} if "err" in fields else {"va": fields["ret"]})}
        elif (call.name != "fcntl" or fields.pop("command") in (0, 0x406)) and fields[
            "ret"
        ] >= 0:  # F_DUPFD, F_DUPFD_CLOEXEC
            yield {"k": "dup", **base, **fields}

    def request(self, fields: Fields) -> Fields:
        request = int(fields["req"], 16)
        kind = kind_on(fields["dev"], request)
        key = ioctl.number(request) if kind == "fe" else request
        return self.record(kind, key, request, fd=fields["fd"], dev=fields["dev"])

    # nvproxy's lines

    def begin(self, record: Fields, entered: bool) -> Iterator[Fields]:
        """A call begins. Of one call runsc's line comes first and nvproxy's after it."""
        tid = self.task[1]
        under = self.open.get(tid)
        if under is not None and under.entered and not entered:
            record |= {name: under.record[name] for name in ("fd", "dev", "req", "t") if name in under.record}
            entered = True
        elif under is not None:
            yield self.open.pop(tid).record
        elif len(self.open) >= _TASKS:
            yield self.open.pop(next(iter(self.open))).record
        self.open[tid] = _Open(record, entered)

    def refine(self, escape: int, kind: str, number: int) -> Iterator[Fields]:
        """The command or class of the call that is under way."""
        under = self.open.get(self.task[1])
        if under is None or under.what != ("fe", escape):
            yield from self.begin(self.record("fe", escape, ioctl.request(escape)), False)
        self.open[self.task[1]].record |= {"kind": kind, "key": hex(number)}

    def said(self, line: Line, at: int) -> Iterator[Fields]:
        text, said = line.text, line.text[at:]

        def torn(match: re.Match[str], name: str) -> bool:
            """Whether a number of a match may have lost its last digits."""
            return line.torn(at + match.end(name))

        if (match := _REFUSED.match(said)) is not None:
            yield from self.refused(match, torn)
        elif any(pattern.match(said) for pattern, _ in _ARGUMENT):
            escape = next(escape for pattern, escape in _ARGUMENT if pattern.match(said))
            yield from self.refused_argument(escape, said)
        elif (match := _ESCAPE.match(said)) is not None:
            if torn(match, "size"):
                raise ValueError("a size that may have been cut")
            nr = _number(match["nr"]) & 0xFF
            yield from self.begin(self.record("fe", nr, ioctl.request(nr, _number(match["size"]))), False)
        elif (match := _REQUEST.match(said)) is not None:
            request = _number(match["request"])
            yield from self.begin(self.record("fe", ioctl.number(request), request), False)
        elif (match := _UVM.match(said)) is not None:
            number = _number(match["number"])
            if torn(match, "number") and int(match["decimal"] or -1) != number:
                raise ValueError("a UVM command that may have been cut")
            yield from self.begin(self.record("uvm", number, number), False)
        elif (match := _CONTROL.match(said)) is not None:
            if torn(match, "number"):
                raise ValueError("a control command that may have been cut")
            yield from self.refine(escapes.NV_ESC_RM_CONTROL, "control", _number(match["number"]))
        elif (match := _ALLOC.match(said)) is not None:
            yield from self.refine(escapes.NV_ESC_RM_ALLOC, "alloc", _class(match["number"]))
        elif (match := _DRIVER_FAILED.match(said)) is not None:
            yield from self.status(match, "driver", torn)
        elif (match := _RM_FAILED.match(said)) is not None:
            yield from self.rm_failed(match, torn)
        elif (match := _OWN_FAILED.match(said)) is not None:
            yield from self.status(match, "nvproxy", torn)
            under = self.open.get(self.task[1])
            if under is not None:
                under.record.setdefault("refused", match["what"])
        elif _ASIDE.match(said) is None:
            shown = said[:80] if said else text[-80:]
            raise ValueError(f"nvproxy said something that is not understood: {shown!r}")

    def status(self, match: re.Match[str], by: str, torn: Any) -> Iterator[Fields]:
        """The status of the call that is under way; of no call, where the log begins in the middle of one."""
        if torn(match, "status"):
            raise ValueError("a status that may have been cut")
        under = self.open.get(self.task[1])
        if under is None:
            raise ValueError("a status of a call whose beginning is not in this log")
        under.record |= {"status": hex(_number(match["status"])), "by": by}
        yield from ()

    def rm_failed(self, match: re.Match[str], torn: Any) -> Iterator[Fields]:
        """A status whose author the words leave open: the policy decides whose it is."""
        if torn(match, "status"):
            raise ValueError("a status that may have been cut")
        kind, number = match["kind"], _number(match["number"])
        under = self.open.get(self.task[1])
        if under is None or under.what != (kind, number):
            yield from self.refine(
                escapes.NV_ESC_RM_CONTROL if kind == "control" else escapes.NV_ESC_RM_ALLOC, kind, number
            )
        yield from self.done({"status": hex(_number(match["status"]))})

    def done(self, fields: Fields) -> Iterator[Fields]:
        """The last that nvproxy says of a call: it stays open only where runsc's exit will follow."""
        under = self.open[self.task[1]]
        under.record |= fields
        if not under.entered:
            yield self.open.pop(self.task[1]).record

    def refused(self, match: re.Match[str], torn: Any) -> Iterator[Fields]:
        kind = _KINDS[match["what"]]
        if kind == "alloc":
            number = _class(match["number"])
        else:
            last = "hex" if match["hex"] else "number"
            number = _number(match[last])
            sure = match["rest"] or (match["hex"] and _number(match["number"]) == number)
            if not sure and torn(match, last):
                raise ValueError(f"a number of a refused {match['what']} that may have been cut")
        escape = {"control": escapes.NV_ESC_RM_CONTROL, "alloc": escapes.NV_ESC_RM_ALLOC}.get(kind)
        key = number & 0xFF if kind == "fe" else number
        under = self.open.get(self.task[1])
        if under is None or under.what not in ((kind, key), ("fe", escape)):
            request = (
                number if kind == "uvm" else _number(match["cmd"]) if match["cmd"] else ioctl.request(escape or key)
            )
            yield from self.begin(self.record(kind, key, request), False)
        yield from self.done({"kind": kind, "key": hex(key), "refused": match["why"] or "unknown", "by": "nvproxy"})

    def refused_argument(self, escape: int | None, said: str) -> Iterator[Fields]:
        under = self.open.get(self.task[1])
        if under is None:
            if escape is None:
                raise ValueError("a refusal of a call whose beginning is not in this log")
            yield from self.begin(self.record("fe", escape, ioctl.request(escape)), False)
        yield from self.done({"refused": said[:120], "by": "nvproxy"})

    def end(self) -> Iterator[Fields]:
        for under in self.open.values():
            yield under.record
        for (_, path), number in self.opening.items():
            self.problems.add(number, f"an open of {path} whose result is not in this log")


def _class(text: str) -> int:
    """A class, which nvproxy prints with eight digits."""
    if len(text) != 10:
        raise ValueError("a class that may have been cut: it has eight digits")
    return int(text, 16)


def records(lines: Iterable[Line], problems: Problems) -> Iterator[Fields]:
    """The calls of a sandbox's log. A refusal by nvproxy has its words in ``refused`` and ``by``."""
    log = _Log(problems)
    for line in lines:
        yield from log.line(line)
    yield from log.end()
