"""runsc's own strace lines in a sandbox's log: opens, closes, copies, mappings and ioctls of device nodes, with their errno.

pkg/sentry/strace: a line at the entry (E) and one at the exit (X), each with the path behind every descriptor.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from nvproxy_model.trace.devices import graphics, node, nvidia

__all__ = ["Call", "call", "is_line"]

_MAX: Final = 0x7FFFFFFF
_PATH: Final = 4096
_NAMES: Final = "ioctl|openat2?|open|close|dup[23]?|fcntl|mmap"
_LINE: Final = re.compile(rf"(?:^|\s)(?P<way>[EX]) (?P<name>{_NAMES})\((?P<args>.*)", re.DOTALL)
_PASTED: Final = re.compile(r"^(?P<way>)(?P<name>ioctl)\((?P<args>0x[0-9a-f]{1,16} /dev/.*)", re.DOTALL)
"""An ioctl as people quote it, without the process in front."""
_FD: Final = re.compile(
    r"(?P<fd>0x[0-9a-f]{1,16}) (?P<path>/[^,)]*?(?: \(deleted\))?|\(bad FD\)|[^,/()]+:[^,)]*)(?=[,)]|$)"
)
_NUMBER: Final = re.compile(r", (?P<number>0x[0-9a-fA-F]{1,16})(?=[,)])")
_OPENED: Final = re.compile(
    r"(?:(?:AT_FDCWD|0x[0-9a-f]{1,16}) [^,]*, )?0x[0-9a-f]{1,16} (?P<path>/[^,]*), (?P<flags>[^,)]*)"
)
_RESULT: Final = re.compile(
    r"\) = (?P<ret>-?\d{1,20})(?: \(0x[0-9a-f]{1,16}\))?(?: errno=(?P<errno>\d{1,9})(?: \([^)]*\))??)?"
    r"(?: \((?P<took>[\dhmsµμun.]{1,40})\))?\s*$"
)
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ns|us|µs|μs|ms|s|m(?!s)|h)")
_UNITS: Final = {"ns": 1, "us": 1e3, "µs": 1e3, "μs": 1e3, "ms": 1e6, "s": 1e9, "m": 60e9, "h": 3600e9}


class Call(NamedTuple):
    """One line. ``fields`` are those of a record; ``exited`` is False at the entry, where no result is known."""

    name: str
    exited: bool
    fields: dict[str, Any]


def is_line(text: str) -> bool:
    """Whether a line is one of runsc's about a device node."""
    return "/dev/" in text and (_LINE.search(text) is not None or _PASTED.match(text) is not None)


def call(text: str) -> Call | None:
    """The call in a line; None for a line without one, or about another kind of file.

    Raises ValueError, in a few words, for a line about a device of NVIDIA's that cannot be read.
    """
    match = _LINE.search(text) or _PASTED.match(text)
    if match is None or "/dev/" not in match["args"]:
        return None
    name, args, exited = match["name"], match["args"], match["way"] == "X"
    fields: dict[str, Any] | None
    if name.startswith("open"):
        fields = _open(args)
    else:
        fields = _on_descriptor(name, args)
    if fields is None:
        return None
    if exited:
        fields |= _result(name, args)
    return Call(name, exited, fields)


def _node(path: str) -> str | None:
    """A device node that a trace holds, or None."""
    found = node(path)
    if found is None or not (nvidia(found) or graphics(found)):
        return None
    path = found
    if len(path) > _PATH:
        raise ValueError("a path that is longer than any")
    return path


def _open(args: str) -> dict[str, Any] | None:
    match = _OPENED.match(args)
    path = _node(match["path"]) if match else None
    if path is None:
        if "/dev/nvidia" in args and match is None:
            raise ValueError("an open that is not whole")
        return None
    return {"path": path}


def _on_descriptor(name: str, args: str) -> dict[str, Any] | None:
    """The fields of a call on a descriptor; for mmap it is the fifth argument."""
    where = args
    if name == "mmap":
        pieces = args.split(", ", 5)
        if len(pieces) < 6:
            raise ValueError("an mmap that is not whole")
        where = pieces[4]
    match = _FD.match(where)
    path = _node(match["path"]) if match else None
    if match is None or path is None:
        if match is None and "/dev/nvidia" in where:
            raise ValueError("a descriptor that is not a number")
        return None
    fd = int(match["fd"], 16)
    if fd > _MAX:
        raise ValueError("a descriptor that is out of range")
    fields: dict[str, Any] = {"fd": fd, "dev": path}
    if name == "ioctl":
        request = _NUMBER.match(where, match.end())
        if request is None or int(request["number"], 16) > 0xFFFFFFFF:
            raise ValueError("an ioctl that is not whole")
        fields["req"] = hex(int(request["number"], 16))
    elif name == "mmap":
        pieces[5] = pieces[5].partition(")")[0]
        try:
            fields |= {"len": int(pieces[1], 16), "off": int(pieces[5], 16)}
        except ValueError:
            raise ValueError("an mmap that is not whole") from None
    elif name == "fcntl":
        command = _NUMBER.match(where, match.end())
        fields["command"] = int(command["number"], 16) if command else -1
    return fields


def _result(name: str, args: str) -> dict[str, Any]:
    at = args.rfind(") = ")
    match = _RESULT.match(args, at) if at >= 0 else None
    if match is None:
        raise ValueError("a call without its result")
    ret = int(match["ret"])
    found: dict[str, Any] = {}
    if match["errno"]:
        code = int(match["errno"])
        if not 0 < code <= 4095:
            raise ValueError(f"an errno that Linux does not have: {code}")
        # Releases before 2024 print "= 0 (0x0) errno=22" for a failed call.
        ret = -1
        found["err"] = code
        if name.startswith("open"):
            found["by"] = "permission"
    if 1 << 63 <= ret < 1 << 64:
        ret -= 1 << 64
    if not -(1 << 63) < ret < 1 << 63 or (ret > _MAX and name != "mmap"):
        raise ValueError("a result that is out of range")
    if match["took"]:
        took = sum(float(value) * _UNITS[unit] for value, unit in _DURATION.findall(match["took"]))
        found["d"] = min(round(took), 1 << 62)
    return {**found, "ret": ret}
