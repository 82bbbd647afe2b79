"""From what a user has, a number, a request or a symbol, to the calls that it may mean."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nvproxy_model import abi, ioctl, versions
from nvproxy_model.abi.constants import (
    NV_ERR_INVALID_ADDRESS,
    NV_ERR_INVALID_ARGUMENT,
    NV_ERR_INVALID_CLASS,
    NV_ERR_INVALID_CLIENT,
    NV_ERR_INVALID_LIMIT,
    NV_ERR_NOT_SUPPORTED,
)
from nvproxy_model.drivers import names
from nvproxy_model.ioctl import parse_request
from nvproxy_model.rules import TABLES, Rule, Table
from nvproxy_model.tools.command import fail
from nvproxy_model.tools.policy.shared import structs
from nvproxy_model.versions import DriverVersion

__all__ = ["ROWS", "Asked", "Call", "asked", "near", "releases", "status_note"]

ROWS: Final = abi.TABLES


@dataclass(frozen=True, slots=True)
class Call:
    """One reading of what was asked: a number of a table, and for a frontend request the size that it encodes."""

    table: Table
    number: int
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """What a text means: ``calls``, its readings; or none, and ``what`` says what it is instead."""

    calls: tuple[Call, ...] = ()
    name: str | None = None
    number: int | None = None
    kind: str = "call"
    what: str = ""
    said: str = ""
    """What a pasted line of a log says became of it."""


_FOREIGN: Final = {
    "NVKMS": "/dev/nvidia-modeset (NVKMS)",
    "DRM": "/dev/dri (the kernel's DRM)",
    "WSL": "/dev/dxg (Windows' driver under WSL)",
}
_DRM: Final = re.compile(r"\bDRM_IOCTL_\w{1,80}")
"""strace knows the kernel's own DRM requests by name."""
_PRINTED: Final = re.compile(
    r"(?P<word>fe|frontend|escape|uvm|control|alloc|class)(?: command)? +(?P<number>0x[0-9a-f]+|\d+)(?:\s.*)?",
    re.IGNORECASE,
)
"""A call as these commands and nvproxy-trace print it: ``control 0x3d05 NV0000_CTRL_...``, ``UVM command 0x37``."""
_WORDS: Final[Mapping[str, Table]] = {
    "fe": "frontend",
    "frontend": "frontend",
    "escape": "frontend",
    "uvm": "uvm",
    "control": "control",
    "alloc": "alloc",
    "class": "alloc",
}
_INTEGER: Final = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|\d+)")


def asked(text: str, kind: Table | None, version: DriverVersion) -> Asked:
    """What ``text`` means, of that table only if ``kind`` says one. No reading ends the command, with suggestions."""
    text = text.strip()
    number = parse_request(text, lambda name: _size_of(name, version))
    if number is not None:
        return _numbered(number, kind)
    if _INTEGER.fullmatch(text):
        bits = abs(int(text, 16 if "x" in text.lower() else 10)).bit_length()
        if text.startswith("-"):
            return Asked(kind="number", what="is negative")
        why = f"has {bits} bits, and no number of a call has more than 32"
        return Asked(kind="number", what=f"{why}: look at its low half, or at the field that it came from")
    found = _named(text)
    if not found.calls and not found.what:
        found = _pasted(text)
    if not found.calls and not found.what:
        if (printed := _PRINTED.fullmatch(text)) is not None:
            return asked(printed["number"], kind or _WORDS[printed["word"].lower()], version)
        fail(f"{text!r}: neither a number nor a known symbol{_suggestions(text)}")
    if kind is not None and found.calls:
        of_kind = tuple(call for call in found.calls if call.table == kind)
        if not of_kind:
            fail(f"{text!r}: not a {kind} symbol; it names {', '.join(sorted({call.table for call in found.calls}))}")
        return Asked(of_kind, said=found.said)
    return found


def _size_of(name: str, version: DriverVersion) -> int | None:
    from nvproxy_model.structs import every

    for record in every():
        if name in record.ctypes:
            return int(record.at(version).sizeof())
    return None


def _numbered(number: int, kind: Table | None) -> Asked:
    request = number >> 16 and ioctl.magic(number) == ioctl.NV_IOCTL_MAGIC
    known = [
        table
        for table in TABLES
        if any(rule.number == number for rule in ROWS[table]) or names.ever_called(number)[table]
    ]
    other = ioctl.foreign(number)
    if other is not None and kind is None and not known:
        what = f"a request to {_FOREIGN[other]}, a device that nvproxy does not have; no rule of nvproxy's is about it"
        return Asked(number=number, kind="foreign", what=what)
    if kind in (None, "frontend") and "control" not in known and (request or number >> 8 == ioctl.NV_IOCTL_MAGIC):
        size = ioctl.size(number) if request else None
        return Asked((Call("frontend", ioctl.number(number), size),))
    tables: Sequence[Table] = known
    if kind is not None:
        tables = (kind,)
    elif not known:
        tables = (
            ("control",) if number > 0xFFFF else ("control", "alloc") if number > 0xFF else ("frontend", "uvm", "alloc")
        )
    return Asked(tuple(Call(table, number) for table in tables))


def _named(text: str) -> Asked:
    """A symbol: a row's name, a struct of rows, or a constant or struct of NVIDIA's headers."""
    rows = [rule for table in TABLES for rule in ROWS[table]]
    found = [Call(rule.table, rule.number) for rule in rows if text == rule.name]
    if not found:
        newest = versions.load().latest
        found = [Call(rule.table, rule.number) for rule in rows if text in (rule.struct, *structs(rule, newest))]
    if not found:
        found = [Call(rule.table, rule.number) for rule in rows if rule.name.casefold() == text.casefold()]
    if found:
        return Asked(tuple(dict.fromkeys(found)))
    if text in errno.errorcode.values():
        return Asked(name=text, number=getattr(errno, text), kind="errno", what="an errno, which a failed ioctl sets")
    symbol = names.symbol(text)
    if symbol is None:
        users = names.users_of(text)
        if users is None:
            return Asked()
        calls = tuple(Call(table, number) for table, number in users)
        return (
            Asked(calls)
            if calls
            else Asked(name=text, kind="struct", what="a struct that is not the argument of a call")
        )
    if symbol.kind in TABLES:
        return Asked((Call(symbol.kind, symbol.value),))
    return Asked(name=text, number=symbol.value, kind=symbol.kind, what=symbol.what)


_KINDS: Final[Mapping[str, Table]] = {"fe": "frontend", "uvm": "uvm", "control": "control", "alloc": "alloc"}


def _pasted(text: str) -> Asked:
    """The call of one line of strace, of nvproxy's log or of gVisor's sniffer."""
    from nvproxy_model.trace.lines import Problems, split
    from nvproxy_model.trace.logs.kinds import KINDS
    from nvproxy_model.trace.logs.prefixes import LINE_LIMIT, texts

    if (drm := _DRM.search(text)) is not None:
        what = f"a request to {_FOREIGN['DRM']}, a device that nvproxy does not have"
        return Asked(name=drm[0], kind="foreign", what=what)
    if not re.search(r"[\s(]", text):
        return Asked()
    # nvproxy's own words may have been pasted without the prefix that marks them as its own.
    for whole in (text, f"nvproxy: {text}"):
        problems = Problems()
        lines = list(texts(split(iter([whole.encode("utf-8", "replace") + b"\n"]), problems, LINE_LIMIT)))
        for takes, read in KINDS.values():
            if not any(map(takes, lines)):
                continue
            for record in read(lines, problems):
                if record["k"] == "ioctl":
                    return _recorded(record)
                return Asked(
                    name=record.get("path") or record["k"], kind="line", what=f"{_article(record['k'])}, not an ioctl"
                )
    return Asked()


def _article(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def _recorded(record: Mapping[str, Any]) -> Asked:
    number, request = int(record["key"], 16), int(record["req"], 16)
    said = f"{record['by']} refused it: {record['refused']}" if "refused" in record else ""
    table = _KINDS.get(record["kind"])
    if table is None:
        found = _numbered(request, None)
        return (
            found
            if not found.calls
            else Asked(number=request, kind="foreign", what="a request to a device of another driver")
        )
    size = ioctl.size(request) if table == "frontend" else None
    return Asked((Call(table, number, size or None),), said=said)


_MEANING: Final = {
    NV_ERR_INVALID_CLASS: "nvproxy answers an allocation with it when no rule has the class, or the capabilities do not admit it",
    NV_ERR_NOT_SUPPORTED: "nvproxy answers a control command with it when no rule has the command, or the capabilities do not "
    "admit it",
    NV_ERR_INVALID_CLIENT: "nvproxy answers with it when a client handle is not one that the program allocated",
    NV_ERR_INVALID_ADDRESS: "nvproxy answers NV_ESC_RM_ALLOC_MEMORY with it when the memory to pin wraps around",
    NV_ERR_INVALID_LIMIT: "nvproxy answers NV_ESC_RM_ALLOC_MEMORY with it when the memory to pin is empty",
    NV_ERR_INVALID_ARGUMENT: "nvproxy answers with it when a list is longer than it copies, and to UVM_MM_INITIALIZE with a "
    "descriptor that is not one of UVM's",
}
"""Which call nvproxy itself answers with a status (pkg/sentry/devices/nvproxy/frontend.go, object.go, uvm.go)."""


def status_note(number: int) -> str | None:
    """An NV status in a sentence, or None for a number that is not one."""
    name = names.ever_status(number)
    if name is None:
        return None
    meaning = _MEANING.get(number)
    own = (
        f"; {meaning}. The driver gives it for reasons of its own as well"
        if meaning
        else "; nvproxy itself never gives it"
    )
    return f"{number:#x} as an NV status is {name}" + ("" if number == 0 else own)


def near(call: Call, count: int = 5) -> list[Rule]:
    """The rows with the nearest numbers: for a control, of the same class and category before others."""

    def distance(rule: Rule) -> tuple[int, int]:
        same = (rule.number >> 8 == call.number >> 8) if call.table == "control" else True
        return (0 if same else 1, abs(rule.number - call.number))

    newest = {rule.number: rule for rule in ROWS[call.table]}
    return sorted(newest.values(), key=distance)[:count]


def _suggestions(text: str) -> str:
    from difflib import get_close_matches

    rows = sorted({rule.name for rows in ROWS.values() for rule in rows})
    folded = {name.casefold(): name for name in rows}
    close = [folded[name] for name in get_close_matches(text.casefold(), folded, 5, 0.75)]
    close += [name for name in rows if text.casefold() in name.casefold() and len(text) > 3][:5]
    return f"; nearest: {', '.join(dict.fromkeys(close))}" if close else "; see nvproxy-policy table latest"


def releases(rule: Rule) -> tuple[list[str], list[str]]:
    """(where the row begins, where it ends): releases at which it holds and at whose parent it does not, and the reverse."""
    first, last = [], []
    for node in versions.load().values():
        here = rule.active(node)
        above = node.parent is not None and rule.active(node.parent)
        if here and not above:
            first.append(node.name)
        elif above and not here:
            last.append(node.name)
    return first, last
