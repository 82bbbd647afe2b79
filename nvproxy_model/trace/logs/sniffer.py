"""The output of gVisor's ioctl_sniffer, of 2024 and after: the calls that its own nvproxy would refuse.

Its summary has the last instance of each such call, not all of them; what it does not list it found supported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from nvproxy_model import ioctl
from nvproxy_model.trace.lines import Problems
from nvproxy_model.trace.logs.prefixes import Line

__all__ = ["is_line", "records"]

_KINDS: Final = {"Control": "control", "Alloc": "alloc", "Frontend": "fe", "UVM": "uvm", "Unknown": "other"}
_HEX: Final = r"0x[0-9a-fA-F]{1,8}"
_BEGIN: Final = re.compile(rf"(?:\b|(?<=\\[nt]))(?:{'|'.join(_KINDS)}) ioctl: (?:path=\S{{1,4096}} )?request=")
_HEADING: Final = re.compile(r"=+ Unsupported ioctls =+|(?:Frontend|Control|Alloc|UVM|Unknown): None")
_CALL: Final = re.compile(
    rf"(?P<class>{'|'.join(_KINDS)}) ioctl: (?:path=(?P<path>\S{{1,4096}}) )?request=(?P<request>{_HEX}) "
    rf"\[nr=\w{{1,40}}(?: \(\d{{1,10}}\))?(?:, (?:cmd|hClass)=(?P<key>{_HEX})(?: \(\d{{1,10}}\))?)?(?:, size=\d{{1,6}})?\] "
    rf"=> ret=(?P<ret>-?\d{{1,10}})(?: status=(?P<status>{_HEX}))?"
)


def is_line(line: Line) -> bool:
    """Whether a line is the sniffer's."""
    return _BEGIN.search(line.text) is not None or _HEADING.match(line.body) is not None


def records(lines: Iterable[Line], problems: Problems) -> Iterator[dict[str, Any]]:
    """The calls that the sniffer printed."""
    for line in lines:
        for begin in _BEGIN.finditer(line.text):  # more than one where the newlines were lost
            try:
                yield _record(line, begin.start())
            except ValueError as error:
                problems.add(line.number, str(error))


def _record(line: Line, at: int) -> dict[str, Any]:
    match = _CALL.match(line.text, at)
    if match is None:
        raise ValueError("a sniffer line that is not whole")
    kind, request = _KINDS[match["class"]], int(match["request"], 16)
    if kind in ("control", "alloc") and not match["key"]:
        raise ValueError("a sniffer line that is not whole")
    last = "status" if match["status"] else "ret"
    if line.torn(match.end(last)) and match[last] != "0":
        raise ValueError(f"a {last} that may have been cut")
    key = int(match["key"], 16) if match["key"] else ioctl.number(request) if kind == "fe" else request
    record: dict[str, Any] = {"k": "ioctl", "t": 0, "pid": 0, "tid": 0, "ret": int(match["ret"]), "req": hex(request)}
    record |= {"kind": kind, "key": hex(key)}
    if match["status"]:
        record["status"] = hex(int(match["status"], 16))
    if match["path"]:
        record["dev"] = match["path"]
    return record
