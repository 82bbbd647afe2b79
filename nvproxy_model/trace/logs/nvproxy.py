"""Reads what gVisor prints: nvproxy's debug lines (with runsc's strace lines about them) and the ioctl sniffer's output."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from nvproxy_model.ioctl import number as ioc_nr
from nvproxy_model.ioctl import request as _iowr
from nvproxy_model.trace.reader import Problems

__all__ = ["NVPROXY", "SNIFFER", "nvproxy", "sniffer"]

_HEX: Final = r"(0x[0-9a-fA-F]{1,8})"
_TASK: Final = re.compile(r"\[\s*(\d{1,10}):\s*(\d{1,10})\]")
_FRONTEND: Final = re.compile(r"nvproxy: frontend ioctl: nr = \d+ = " + _HEX + r", argSize = (\d{1,5})")
_CONTROL: Final = re.compile(r"nvproxy: control command " + _HEX)
_ALLOC: Final = re.compile(r"nvproxy: allocation class " + _HEX)
_UVM: Final = re.compile(r"nvproxy: uvm ioctl \d+ = " + _HEX)
_FAILED: Final = re.compile(r"nvproxy: (?:frontend |uvm )?ioctl (?:internally )?failed: status=" + _HEX)
_REFUSED: Final = re.compile(
    r"nvproxy: (?P<why>[a-z ]{1,60}) for "
    r"(?P<what>frontend ioctl|uvm ioctl|control command|allocation class) (?P<number>0x[0-9a-fA-F]{1,8}|\d{1,10})"
    r"(?: == (?P<nr>0x[0-9a-fA-F]{1,8}) \(argSize=\d+, cmd=(?P<cmd>0x[0-9a-fA-F]{1,8})\)| = (?P<uvm>0x[0-9a-fA-F]{1,8}))?"
)
_CALL: Final = re.compile(
    r"(?P<way>[EX]) ioctl\((?P<fd>0x[0-9a-f]{1,8}) (?P<dev>/dev/nvidia[\w/-]*),? (?P<req>0x[0-9a-fA-F]{1,8})"
)
_RESULT: Final = re.compile(r"\) = (-?\d{1,20})(?: \(0x[0-9a-f]+\))?(?: errno=(\d{1,4}))?")

NVPROXY: Final = re.compile(r"nvproxy: |[EX] ioctl\(0x[0-9a-f]{1,8} /dev/nvidia|^\s*ioctl\(0x[0-9a-f]+ /dev/nvidia")
"""What a line of a sandbox's debug log looks like, where it is about this device."""

_SNIFFED: Final = re.compile(
    r"(?P<class>Control|Alloc|Frontend|UVM|Unknown) ioctl: (?:path=(?P<path>\S{1,4096}) )?request="
    + _HEX.replace("(", "(?P<req>", 1)
    + r" \[nr=(?P<nr>\w{1,40})(?:, (?:cmd|hClass)=(?P<key>0x[0-9a-fA-F]{1,8}))?"
    r"(?:, size=\d{1,6})?\] => ret=(?P<ret>-?\d{1,10})(?: status=(?P<status>0x[0-9a-fA-F]{1,8}))?"
)
SNIFFER: Final = re.compile(r"(?:Control|Alloc|Frontend|UVM|Unknown) ioctl: (?:path=\S+ )?request=0x")


def nvproxy(lines: Iterator[tuple[int, str]], problems: Problems) -> Iterator[dict[str, Any]]:
    """The calls of a sandbox's log. A refusal stands in ``refused`` with nvproxy's words."""
    pending: dict[int, dict[str, Any]] = {}

    def begin(tid: int, pid: int, fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
        old = pending.get(tid)
        if old is not None and not old.pop("_entered", False):
            yield old
            old = None
        if len(pending) > 1 << 14:
            yield pending.pop(next(iter(pending)))
        kept = {key: value for key, value in (old or {}).items() if key in ("fd", "dev", "req")}
        pending[tid] = {"k": "ioctl", "t": 0, "pid": pid, "tid": tid, "ret": 0, **fields, **kept}

    def refine(tid: int, pid: int, nr: int, fields: dict[str, Any]) -> None:
        record = pending.get(tid)
        if record is None or record.get("kind") != "fe" or int(record["key"], 16) != nr:
            record = pending[tid] = {"k": "ioctl", "t": 0, "pid": pid, "tid": tid, "ret": 0, "req": hex(_iowr(nr, 0))}
        record.pop("_entered", None)
        record |= fields

    for _, text in lines:
        task = _TASK.search(text)
        pid, tid = (min(int(task[1]), 0x7FFFFFFF), min(int(task[2]), 0x7FFFFFFF)) if task else (0, 0)
        if match := _CALL.search(text) or re.match(
            r"\s*(?P<way>)ioctl\((?P<fd>0x[0-9a-f]{1,7}) (?P<dev>/dev/nvidia[\w/-]*),? (?P<req>0x[0-9a-fA-F]{1,8})",
            text,
        ):
            fd, request = int(match["fd"], 16), int(match["req"], 16)
            if match["way"] == "X":
                record = pending.pop(tid, None)
                result = _RESULT.search(text)
                if record is not None and result is not None and -(1 << 62) < int(result[1]) < 1 << 62:
                    record["ret"] = int(result[1])
                    if result[2]:
                        record["err"] = int(result[2])
                if record is not None:
                    record.pop("_entered", None)
                    yield record
                continue
            uvm = match["dev"].startswith("/dev/nvidia-uvm")
            kind = "uvm" if uvm else "fe"
            key = request if uvm else ioc_nr(request)
            fields = {"fd": fd & 0x7FFFFFFF, "dev": match["dev"], "req": hex(request), "kind": kind, "key": hex(key)}
            yield from begin(tid, pid, fields)
            pending[tid]["_entered"] = True
        elif match := _FRONTEND.search(text):
            nr, size = int(match[1], 16) & 0xFF, int(match[2])
            yield from begin(tid, pid, {"req": hex(_iowr(nr, size)), "kind": "fe", "key": hex(nr)})
        elif match := _UVM.search(text):
            yield from begin(tid, pid, {"req": match[1].lower(), "kind": "uvm", "key": hex(int(match[1], 16))})
        elif match := _CONTROL.search(text):
            refine(tid, pid, 0x2A, {"kind": "control", "key": hex(int(match[1], 16))})
        elif match := _ALLOC.search(text):
            refine(tid, pid, 0x2B, {"kind": "alloc", "key": hex(int(match[1], 16))})
        elif (match := _FAILED.search(text)) and tid in pending:
            pending[tid]["status"] = match[1].lower()
        elif match := _REFUSED.search(text):
            yield from _refusal(match, pending, pid, tid)
    for record in pending.values():
        record.pop("_entered", None)
        yield record


def _refusal(match: re.Match[str], pending: dict[int, dict[str, Any]], pid: int, tid: int) -> Iterator[dict[str, Any]]:
    kind = {"frontend ioctl": "fe", "uvm ioctl": "uvm", "control command": "control", "allocation class": "alloc"}[
        match["what"]
    ]
    text = match["nr"] or match["uvm"] or match["number"]
    number = int(text, 16 if text.startswith("0x") else 10) & 0xFFFFFFFF
    record = pending.pop(tid, None)
    if record is not None and (record.get("kind"), int(record["key"], 16)) != (kind, number):
        if record.get("kind") == "fe" and kind in ("control", "alloc"):
            record |= {"kind": kind, "key": hex(number)}
        else:
            record.pop("_entered", None)
            yield record
            record = None
    if record is None:
        request = match["cmd"] or (hex(number) if kind == "uvm" else hex(_iowr(0x2A if kind == "control" else 0x2B, 0)))
        record = {
            "k": "ioctl",
            "t": 0,
            "pid": pid,
            "tid": tid,
            "ret": 0,
            "req": request.lower(),
            "kind": kind,
            "key": hex(number),
        }
    record.pop("_entered", None)
    record["refused"] = match["why"]
    if kind in ("fe", "uvm"):
        record |= {"ret": -1, "err": 22}
    else:
        record["status"] = "0x56" if kind == "control" else "0x22"
    yield record


def sniffer(lines: Iterator[tuple[int, str]], problems: Problems) -> Iterator[dict[str, Any]]:
    """The calls that gVisor's ioctl_sniffer printed.

    Its summary holds the last instance of each unsupported call, not all of them.
    """
    kinds = {"Control": "control", "Alloc": "alloc", "Frontend": "fe", "UVM": "uvm", "Unknown": "other"}
    for number, text in lines:
        match = _SNIFFED.search(text)
        if match is None:
            if SNIFFER.search(text):
                problems.add(number, "a sniffer line that is not whole")
            continue
        kind, request = kinds[match["class"]], int(match["req"], 16)
        if match["key"]:
            key = int(match["key"], 16)
        elif kind in ("control", "alloc"):
            problems.add(number, "a sniffer line that is not whole")
            continue
        else:
            key = ioc_nr(request) if kind == "fe" else request
        record = {
            "k": "ioctl",
            "t": 0,
            "pid": 0,
            "tid": 0,
            "ret": int(match["ret"]),
            "req": hex(request),
            "kind": kind,
            "key": hex(key),
        }
        if match["status"]:
            record["status"] = match["status"].lower()
        if match["path"]:
            record["dev"] = match["path"]
        yield record
