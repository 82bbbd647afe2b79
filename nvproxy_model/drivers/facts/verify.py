"""Whether a file of facts that did not come with the package is what `encode` writes; all of it is read before any answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from nvproxy_model.drivers.facts.encoding import Encoded, Runs, decode_class, decode_export, decode_text
from nvproxy_model.drivers.facts.files import TABLES
from nvproxy_model.drivers.privileges import Privilege
from nvproxy_model.errors import SourceError
from nvproxy_model.layout import MAX_MEMBERS, RecordKind

__all__ = ["verify"]

MAX_LINES = 1 << 17
"""Names or rows of one table; the shipped facts have 15,000 constants."""
MAX_LINE = 1 << 20
MAX_DEPTH = 64


def verify(encoded: Encoded, path: Path) -> Encoded:
    """The same. Raises SourceError, which names the first table that is damaged."""
    for name in TABLES:
        try:
            lines = encoded.table(name).lines
            if len(lines) > MAX_LINES or max(map(len, lines), default=0) > MAX_LINE:
                raise ValueError("too large")
            if name == "rows":
                _rows([json.loads(line) for line in lines])
            else:
                _runs(name, lines, encoded)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise SourceError(f"not a file of recorded facts: {name}: {error}", path) from None
    return encoded


def _rows(rows: Sequence[str]) -> None:
    """Rows, each after those of its inner records."""
    known: list[tuple[int, int]] = []
    for row in rows:
        head, *lines = row.split("\n")
        _, kind, size, align = head.split("\t")
        members, depth = len(lines), 0
        numbers = [size, align]
        for line in lines:
            _, offset, length, _, _, dims, inner = line.split("\t")
            numbers += [offset, length, *(dims.split(",") if dims else ())]
            if inner:
                if not 0 <= int(inner) < len(known):
                    raise ValueError("a record that comes later")
                members += known[int(inner)][0]
                depth = max(depth, 1 + known[int(inner)][1])
        if kind not in get_args(RecordKind) or any(int(number) < 0 for number in numbers):
            raise ValueError("no record of C")
        if members > MAX_MEMBERS or depth > MAX_DEPTH:
            raise ValueError("a record that no header declares")
        known.append((members, depth))


def _runs(name: str, lines: Sequence[bytes], encoded: Encoded) -> None:
    count, rows = len(encoded.head["versions"]), len(encoded.table("rows"))
    before = b""
    for line in lines:
        ((key, runs),) = json.loads(b"{%b}" % line).items()
        starts = runs[::2] if type(runs) is list else []
        ordered = all(type(start) is int for start in starts) and starts == sorted(set(starts))
        if not starts or len(runs) % 2 or not ordered or not 0 <= starts[0] <= starts[-1] < count:
            raise ValueError(f"{key!r} is at no releases")
        if not before < line:
            raise ValueError(f"{key!r} is not in its place")
        _values(name, key, runs, rows)
        before = line


def _values(name: str, key: str, runs: Runs, rows: int) -> None:
    for value in runs[1::2]:
        if name == "structs":
            right = type(value) is int and -1 <= value < rows
        elif value is None:
            right = True
        elif name == "constants":
            right = type(value) is int
        else:
            right = type(value) is str
            _decoded(name, key, value)
        if not right:
            raise ValueError(f"{key!r} is {value!r:.40}")


def _decoded(name: str, key: str, value: str) -> None:
    if name in ("exports", "classes"):
        int(key, 16)
        entry = decode_export(value) if name == "exports" else decode_class(value)
        if entry.privilege not in get_args(Privilege):
            raise ValueError(f"{key!r} is for nobody")
    elif name == "texts" and key == "flags":
        for word in decode_text(value):
            int(word.partition("=")[2])
