"""The one form in which facts are written down: bytes to tables, releases to bytes, two files to one.

A file is a line of JSON, the head, then the tables, each compressed for itself so that only those which are asked for are
unpacked. A table is lines ``"name":runs``, sorted, so that a name is found without parsing the others; runs are
``[start, value, start, value, ...]`` over the releases in the head's order, where null (or -1 for structs) is absence.
The lines of ``rows`` are layouts, which structs name by their positions.
"""

from __future__ import annotations

import json
import zlib
from bisect import bisect_left
from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from nvproxy_model.drivers.facts.files import COLUMNS, MAX_HEAD, SCHEMA, TABLES, read_head
from nvproxy_model.drivers.privileges import ClassEntry, Export, Privilege, Privileges
from nvproxy_model.drivers.release import LayoutTable, Provenance, Release
from nvproxy_model.errors import SourceError
from nvproxy_model.layout import Layout

__all__ = [
    "ABSENT",
    "Encoded",
    "Rows",
    "Runs",
    "Table",
    "at",
    "decode_class",
    "decode_export",
    "decode_text",
    "encode",
    "joined",
    "read",
]

ABSENT: Mapping[str, Any] = {"structs": -1}

Runs = list[Any]


class Table(Mapping[str, Runs]):
    """Name -> runs. A name is looked up alone; to iterate is to parse all."""

    def __init__(self, text: bytes) -> None:
        self.lines: Sequence[bytes] = text.split(b"\n") if text else []
        """As they are in the file."""
        self._found: dict[str, Runs | None] = {}
        self._parsed: dict[str, Runs] | None = None

    def get(self, name: str, default: Any = None) -> Any:
        if self._parsed is not None:
            return self._parsed.get(name, default)
        if name not in self._found:
            key = f'"{name}":'.encode("utf-8", "surrogatepass")
            place = bisect_left(self.lines, key)
            line = self.lines[place] if place < len(self.lines) else b""
            self._found[name] = json.loads(line[len(key) :]) if line.startswith(key) else None
        found = self._found[name]
        return default if found is None else found

    def having(self, value: int) -> list[str]:
        """The names whose runs have a value, sorted."""
        digits = str(value).encode()
        found = json.loads(b"{%b}" % b",".join(line for line in self.lines if digits in line))
        return [name for name, runs in found.items() if value in runs[1::2]]

    def _all(self) -> dict[str, Runs]:
        if self._parsed is None:
            self._parsed = json.loads(b"{%b}" % b",".join(self.lines))
        return self._parsed

    def items(self) -> ItemsView[str, Runs]:
        return self._all().items()

    def __getitem__(self, name: str) -> Runs:
        runs: Runs | None = self.get(name)
        if runs is None:
            raise KeyError(name)
        return runs

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self.lines)


class Rows(Sequence[str]):
    """Layouts as rows of text, each parsed when it is asked for."""

    def __init__(self, text: bytes) -> None:
        self.lines: Sequence[bytes] = text.split(b"\n") if text else []
        """As they are in the file."""

    def __getitem__(self, position: Any) -> Any:
        return json.loads(self.lines[position])

    def __len__(self) -> int:
        return len(self.lines)


class Encoded:
    """A file as it is: its head, and its tables unpacked when first asked for."""

    def __init__(self, path: Path, head: Mapping[str, Any], packed: Mapping[str, bytes]) -> None:
        self.head = head
        self._path = path
        self._packed = packed
        self._tables: dict[str, Any] = {}

    def table(self, name: str) -> Any:
        """A table: `Rows` for ``rows``, else name -> runs. Raises SourceError if it is damaged."""
        if name not in self._tables:
            try:
                text = _unpacked(self._packed[name])
            except _DAMAGED as error:
                raise SourceError(f"not a file of recorded facts: {name}: {error}", self._path) from None
            self._tables[name] = Rows(text) if name == "rows" else Table(text)
        return self._tables[name]


class _Joined(Encoded):
    """A file, and after its releases some of another's."""

    def __init__(self, first: Encoded, second: Encoded, kept: list[int]) -> None:
        count = len(first.head["versions"])
        versions = [*first.head["versions"], *(second.head["versions"][index] for index in kept)]
        places = {version: place for place, version in enumerate(versions)}
        own = second.head["versions"]
        parents = [
            own[second.head["parents"][index]] if second.head["parents"][index] >= 0 else second.head["above"][index]
            for index in kept
        ]
        head = {name: [*first.head[name], *(second.head[name][index] for index in kept)] for name in COLUMNS}
        head["parents"] = [*first.head["parents"], *(places.get(parent or "", -1) for parent in parents)]
        super().__init__(second._path, head | {"versions": versions}, {})
        self._first, self._second, self._kept, self._count = first, second, kept, count

    def table(self, name: str) -> Any:
        if name not in self._tables:
            first, second = self._first.table(name), self._second.table(name)
            if name == "rows":
                shift = len(first)
                self._tables[name] = [*first, *(_shifted(row, shift) for row in second)]
            else:
                merged = self._runs(name, first, second)
                self._tables[name] = Table("\n".join(_lines(merged)).encode())
        return self._tables[name]

    def _runs(self, name: str, first: Mapping[str, Runs], second: Mapping[str, Runs]) -> dict[str, Runs]:
        absent = ABSENT.get(name)
        shift = len(self._first.table("rows")) if name == "structs" else 0
        merged: dict[str, Runs] = {}
        for key in sorted(first.keys() | second.keys()):
            runs = list(first.get(key, ()))
            last = runs[-1] if runs else absent
            for place, index in enumerate(self._kept, self._count):
                value = at(second.get(key, []), index)
                if value is None or value == absent:
                    value = absent
                elif shift:
                    value += shift
                if value != last:
                    runs += [place, value]
                    last = value
            if runs:
                merged[key] = runs
        return merged


def _shifted(row: str, shift: int) -> str:
    """A row whose inner records are numbered from another place on."""
    head, *lines = row.split("\n")
    parts = (line.rpartition("\t") for line in lines)
    return "\n".join([head, *(f"{own}\t{int(inner) + shift if inner else ''}" for own, _, inner in parts)])


def at(runs: Runs, index: int) -> Any:
    """The value of a run list at a release."""
    value = None
    for position in range(0, len(runs), 2):
        if runs[position] > index:
            break
        value = runs[position + 1]
    return value


def read(path: Path) -> Encoded:
    """A file. Raises SourceError if it cannot be read or is of another version."""
    try:
        with path.open("rb") as file:
            head = read_head(file.readline(MAX_HEAD))
            sizes = head["tables"]
            packed = {name: file.read(sizes[name]) for name in TABLES}
            if any(len(packed[name]) != sizes[name] for name in TABLES) or file.read(1):
                raise ValueError("its end is missing, or something follows it")
    except _DAMAGED as error:
        raise SourceError(f"not a file of recorded facts: {error}", path) from None
    return Encoded(path, head, packed)


MAX_TABLE = 16 << 20
"""Bytes of a table; the largest shipped one has one million, in lines of sixty and more."""
_DAMAGED: Final = (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, RecursionError)


def _unpacked(packed: bytes) -> bytes:
    stream = zlib.decompressobj()
    text = stream.decompress(packed, MAX_TABLE)
    if not stream.eof or text.count(b"\n") > MAX_TABLE >> 5:
        raise ValueError("its end is missing, or it is too large")
    return text


def joined(first: Encoded, second: Encoded) -> Encoded:
    """Both files' releases, the first's before those that only the second has."""
    known = set(first.head["versions"])
    kept = [index for index, version in enumerate(second.head["versions"]) if version not in known]
    return _Joined(first, second, kept) if kept else first


def decode_text(text: str) -> tuple[str, ...]:
    """A list of words."""
    return tuple(text.split(" ")) if text else ()


def decode_export(text: str) -> Export:
    """The inverse of ``_export``."""
    privilege, struct, handle = text.split("\t")
    return Export(cast(Privilege, privilege), struct or None, handle)


def decode_class(text: str) -> ClassEntry:
    """The inverse of ``_class``."""
    name, privilege, struct, required, internal, parents, chips = text.split("\t")
    on = None if chips == "-" else decode_text(chips)
    return ClassEntry(
        name, cast(Privilege, privilege), struct or None, required == "!", internal, decode_text(parents), on
    )


def _export(export: Export) -> str:
    return f"{export.privilege}\t{export.struct or ''}\t{export.handle}"


def _class(entry: ClassEntry) -> str:
    required, chips = "!" if entry.required else "", "-" if entry.chips is None else " ".join(entry.chips)
    return "\t".join(
        (entry.name, entry.privilege, entry.struct or "", required, entry.internal, " ".join(entry.parents), chips)
    )


def _texts(found: Privileges) -> dict[str, str]:
    return {
        "flags": " ".join(f"{name}={value}" for name, value in sorted(found.flags.items())),
        "deprecated": " ".join(sorted(found.deprecated)),
        "chips": " ".join(found.chips),
        "copying": " ".join(sorted(found.copying)),
    }


def encode(
    releases: Iterable[tuple[Release, Privileges | None, Provenance]], parents: Mapping[str, str | None]
) -> bytes:
    """The bytes for these releases, in this order. The same releases give the same bytes."""
    versions: list[str] = []
    counts: list[int] = []
    known_as: list[Provenance] = []
    table = LayoutTable()
    rows: dict[str, int] = {}
    texts: list[str] = []
    columns: dict[str, dict[str, Runs]] = {name: {} for name in TABLES[1:]}

    def number(layout: Layout) -> int:
        """The position of a layout's row, its inner records' rows before it."""
        key = table.add(layout)
        if key not in rows:
            head, *lines = table.rows[key].split("\n")
            numbered = [head]
            for line, field in zip(lines, layout.fields, strict=True):
                own = line.rpartition("\t")[0]
                numbered.append(f"{own}\t{'' if field.record is None else number(field.record)}")
            rows[key] = len(texts)
            texts.append("\n".join(numbered))
        return rows[key]

    for release, privileges, provenance in releases:
        index = len(versions)
        versions.append(release.version)
        counts.append(release.headers)
        known_as.append(provenance)
        found = privileges or Privileges()
        now: dict[str, Mapping[str, Any]] = {
            "structs": {name: number(release.structs[name]) for name in sorted(release.structs)},
            "constants": release.constants,
            "enums": release.enums,
            "params": release.params,
            "embedded": {name: " ".join(paths) for name, paths in release.embedded.items()},
            "exports": {f"{number:x}": _export(export) for number, export in found.exports.items()},
            "classes": {f"{number:x}": _class(entry) for number, entry in found.classes.items()},
            "texts": {} if privileges is None else _texts(found),
        }
        for kind, values in now.items():
            absent = ABSENT.get(kind)
            column = columns[kind]
            for name in values.keys() | column.keys():
                value = values.get(name, absent)
                runs = column.setdefault(name, [])
                if not runs and value == absent:
                    continue
                if not runs or runs[-1] != value:
                    runs += [index, value]
    places = {version: index for index, version in enumerate(versions)}
    head = {
        "schema": SCHEMA,
        "versions": versions,
        "parents": [places.get(parents.get(version) or "", -1) for version in versions],
        "above": [None if (parents.get(version) or "") in places else parents.get(version) for version in versions],
        "headers": counts,
        "kinds": [provenance.kind for provenance in known_as],
        "commits": [provenance.commit for provenance in known_as],
    }
    tables = (map(_json, texts), *map(_lines, columns.values()))
    packed = [zlib.compress("\n".join(lines).encode(), 9) for lines in tables]
    sizes = dict(zip(TABLES, map(len, packed), strict=True))
    return b"".join([_json(head | {"tables": sizes}).encode(), b"\n", *packed])


def _lines(table: Mapping[str, Runs]) -> Iterator[str]:
    """A table's lines. Sorted as bytes, which is how `Table` looks for them."""
    return iter(sorted(f"{_json(name)}:{_json(runs)}" for name, runs in table.items()))


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True)
