"""From what a user has, a number, a request or a symbol, to the calls that it may mean."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from nvproxy_model import abi, versions
from nvproxy_model.ioctl import NV_IOCTL_MAGIC, parse_request
from nvproxy_model.ioctl import number as ioctl_nr
from nvproxy_model.ioctl import size as ioctl_size
from nvproxy_model.rules import TABLES, Rule, Table
from nvproxy_model.tools.command import fail
from nvproxy_model.tools.policy.shared import structs
from nvproxy_model.versions import DriverVersion

__all__ = ["ROWS", "Call", "calls", "driver_names", "near", "recorded", "releases"]

ROWS: Final = abi.TABLES


@dataclass(frozen=True, slots=True)
class Call:
    """One reading of what was asked: a number of a table, and for a frontend request the size that it encodes."""

    table: Table
    number: int
    size: int | None = None


def _number(text: str, version: DriverVersion) -> int | None:
    """``0x...``, decimal, ``_IOC(...)`` as strace prints it, or ``_IOWR('F', 0x2a, 32)``; a struct's name may be the size."""
    return parse_request(text, lambda name: _size_of(name, version))


def _size_of(name: str, version: DriverVersion) -> int | None:
    from nvproxy_model.structs import every

    for record in every():
        if name in record.ctypes:
            return int(record.at(version).sizeof())
    return None


def calls(text: str, kind: Table | None, version: DriverVersion) -> list[Call]:
    """Every reading of ``text``, of that table only if ``kind`` says one. No reading ends the command, with suggestions."""
    text = text.strip()
    number = _number(text, version)
    found = _named(text) if number is None else list(_numbered(number, kind))
    if number is None and not found:
        fail(f"{text!r}: neither a number nor a known symbol{_suggestions(text)}")
    if kind is not None:
        found = [call for call in found if call.table == kind] or ([Call(kind, number)] if number is not None else [])
        if not found:
            fail(f"{text!r}: no {kind} symbol; it names {', '.join(sorted({call.table for call in _named(text)}))}")
    return list(dict.fromkeys(found))


def _numbered(number: int, kind: str | None) -> Iterator[Call]:
    request = number >> 16 and number >> 8 & 0xFF == NV_IOCTL_MAGIC
    known = [table for table in TABLES if any(rule.number == number for rule in ROWS[table])]
    if request and kind in (None, "frontend") and "control" not in known:
        yield Call("frontend", ioctl_nr(number), ioctl_size(number))
        return
    if known:
        yield from (Call(table, number) for table in known)
        return
    tables = {table for table in ("control", "alloc") if driver_names(table, number)}
    if kind is None and not tables:
        if number >> 8 == NV_IOCTL_MAGIC:
            tables = {"frontend"}
        else:
            tables = {"control" if number > 0xFFFF else "alloc" if number > 0xFF else "frontend"}
    yield from (Call(table, ioctl_nr(number) if table == "frontend" else number) for table in TABLES if table in tables)


def _named(text: str) -> list[Call]:
    """The calls of a symbol: a row's name, a struct of rows, or a constant that NVIDIA's headers define."""
    rows = [rule for table in TABLES for rule in ROWS[table]]
    newest = versions.load().latest
    found = [Call(rule.table, rule.number) for rule in rows if text in (rule.name, rule.struct, *structs(rule, newest))]
    if not found:
        found = [Call(rule.table, rule.number) for rule in rows if rule.name.casefold() == text.casefold()]
    if not found:
        table, value = _table(text), recorded(text)
        if table is not None and value is not None:
            found = [Call(table, value)]
    return found


def _table(name: str) -> Table | None:
    """The table that a constant of NVIDIA's headers would stand in, by its name."""
    if "_CTRL_CMD_" in name or re.match(r"NV[0-9A-Fa-f]{4}_CTRL_", name):
        return (
            None
            if name.endswith(("_ID", "_INDEX", "_MASK", "_SIZE", "_MAX")) and "_CTRL_CMD_" not in name
            else "control"
        )
    if name.startswith("NV_ESC_"):
        return "frontend"
    if name.startswith("UVM_") and name.isupper():
        return "uvm"
    return "alloc" if re.fullmatch(r"[A-Z][A-Z0-9]*_[A-Z0-9_]*[A-Z0-9]", name) else None


def _facts() -> Any:
    from nvproxy_model.drivers import facts

    return facts.load()


def recorded(name: str) -> int | None:
    """A constant's newest value in the recorded headers of every public release."""
    for _, value in reversed(_facts().runs("constants", name)):
        if value is not None:
            return int(value)
    return None


@functools.cache
def driver_names(table: str, number: int) -> tuple[str, ...]:
    """The commands, or the classes, of that number in the recorded headers: what NVIDIA calls what no row has."""
    facts = _facts()
    return tuple(
        sorted(
            name
            for name in facts.names("constants")
            if (
                (number > 0xFF and "_CTRL_CMD_" in name)
                if table == "control"
                else table == "alloc" and _CLASS.fullmatch(name)
            )
            and any(value == number for _, value in facts.runs("constants", name))
        )
    )


_CLASS = re.compile(
    r"NV[0-9A-F]{4}_VIDEO_\w+|(?:TURING|AMPERE|ADA|HOPPER|BLACKWELL|VOLTA|PASCAL|MAXWELL|KEPLER|FERMI|GT200|GF100|NV01|NV04|NV20|NV50)_[A-Z0-9_]+"
)


def near(call: Call, count: int = 5) -> list[Rule]:
    """The rows with the nearest numbers: for a control, of the same class and category before others."""

    def distance(rule: Rule) -> tuple[int, int]:
        same = (rule.number >> 8 == call.number >> 8) if call.table == "control" else True
        return (0 if same else 1, abs(rule.number - call.number))

    newest = {rule.number: rule for rule in ROWS[call.table]}
    return sorted(newest.values(), key=distance)[:count]


def _suggestions(text: str) -> str:
    names = sorted({rule.name for rows in ROWS.values() for rule in rows})
    folded = {name.casefold(): name for name in names}
    close = [folded[name] for name in difflib.get_close_matches(text.casefold(), folded, 5, 0.75)]
    close += [name for name in names if text.casefold() in name.casefold() and len(text) > 3][:5]
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
