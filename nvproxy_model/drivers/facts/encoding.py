"""The one form in which facts are written down: bytes to tables, releases to bytes, two files to one.

A file is xz over lines of JSON: a head, then one table a line. A table maps a name to runs ``[start, value, start,
value, ...]`` over the releases in the head's order; null (or -1 for structs) is absence.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from nvproxy_model.drivers.privileges import ClassEntry, Export, Privileges
from nvproxy_model.drivers.release import LayoutTable, Provenance, Release
from nvproxy_model.errors import SourceError
from nvproxy_model.layout import Layout

__all__ = [
    "ABSENT",
    "Encoded",
    "Runs",
    "at",
    "decode_class",
    "decode_export",
    "decode_text",
    "encode",
    "joined",
    "read",
    "versions",
]

SCHEMA = "nvproxy-model/facts/2"
TABLES = ("rows", "structs", "constants", "enums", "params", "embedded", "exports", "classes", "texts")
"""The lines after the head. All but ``rows`` hold runs; ``texts`` has one name for each of the small facts."""
MAX_FACTS = 64 << 20
ABSENT: Mapping[str, Any] = {"structs": -1}

Runs = list[Any]


class Encoded:
    """A file as it is: its head, and its tables parsed when first asked for."""

    def __init__(self, head: Mapping[str, Any], lines: Mapping[str, bytes]) -> None:
        self.head = head
        self._lines = lines
        self._parsed: dict[str, Any] = {}

    def table(self, name: str) -> Any:
        """A table: a list of rows for ``rows``, else name -> runs."""
        if name not in self._parsed:
            self._parsed[name] = json.loads(self._lines[name])
        return self._parsed[name]


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
        head = {name: [*first.head[name], *(second.head[name][index] for index in kept)] for name in _COLUMNS}
        head["parents"] = [*first.head["parents"], *(places.get(parent or "", -1) for parent in parents)]
        super().__init__(head | {"versions": versions}, {})
        self._first, self._second, self._kept, self._count = first, second, kept, count

    def table(self, name: str) -> Any:
        if name not in self._parsed:
            first, second = self._first.table(name), self._second.table(name)
            if name == "rows":
                shift = len(first)
                self._parsed[name] = [*first, *(_shifted(row, shift) for row in second)]
            else:
                self._parsed[name] = self._runs(name, first, second)
        return self._parsed[name]

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


_COLUMNS = ("versions", "parents", "above", "headers", "kinds", "commits")


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
        with lzma.open(path) as file:
            text = file.read(MAX_FACTS + 1)
        first, *lines = text.split(b"\n")
        head = _head(first)
        if len(text) > MAX_FACTS or len(lines) < len(TABLES):
            raise ValueError("not of this version")
        return Encoded(head, dict(zip(TABLES, lines, strict=False)))
    except _DAMAGED as error:
        raise SourceError(f"not a file of recorded facts: {error}", path) from None


_DAMAGED: Final = (OSError, EOFError, lzma.LZMAError, ValueError, KeyError, TypeError)


def _head(line: bytes) -> dict[str, Any]:
    head: dict[str, Any] = json.loads(line)
    if head["schema"] != SCHEMA:
        raise ValueError("not of this version")
    if len({len(head[name]) for name in _COLUMNS}) != 1:
        raise ValueError("its head is damaged")
    return head


def versions(path: Path) -> list[str]:
    """The releases of a file, from its head alone: no table is unpacked. Raises SourceError as `read` does."""
    try:
        with lzma.open(path) as file:
            found: list[str] = _head(file.readline(MAX_FACTS))["versions"]
    except _DAMAGED as error:
        raise SourceError(f"not a file of recorded facts: {error}", path) from None
    return found


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
    return Export(privilege, struct or None, handle)


def decode_class(text: str) -> ClassEntry:
    """The inverse of ``_class``."""
    name, privilege, struct, required, internal, parents, chips = text.split("\t")
    on = None if chips == "-" else decode_text(chips)
    return ClassEntry(name, privilege, struct or None, required == "!", internal, decode_text(parents), on)


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
    lines = [head, texts, *(dict(sorted(columns[kind].items())) for kind in TABLES[1:])]
    text = "\n".join(json.dumps(line, separators=(",", ":"), ensure_ascii=True) for line in lines)
    return lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)
