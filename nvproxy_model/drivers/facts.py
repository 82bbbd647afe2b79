"""Recorded facts: what the ABI headers of every public release say, shipped compressed and read lazily.

The file is xz over lines of JSON: a head, then one table a line. A table maps a name to runs ``[start, value, start,
value, ...]`` over the releases in the head's order; null (or -1 for structs) is absence.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from nvproxy_model.drivers.parsing.headers import Wanted
from nvproxy_model.drivers.release import LayoutTable, Release, natural
from nvproxy_model.errors import SourceError, UnknownDriverVersion
from nvproxy_model.layout import Layout

__all__ = ["FACTS", "Facts", "load", "nearest_names", "record"]

FACTS = Path(__file__).with_name("facts.json.xz")
"""The shipped file: every public release tag of NVIDIA's open-gpu-kernel-modules."""

SCHEMA = "nvproxy-model/facts/1"
ORIGIN = "recorded facts"
_TABLES = ("rows", "structs", "constants", "enums", "params", "embedded")
_MAX_FACTS = 64 << 20

Runs = list[Any]


def load(path: Path | None = None) -> Facts:
    """The recorded facts, the shipped ones by default. Raises SourceError if the file cannot be read."""
    return _load(FACTS if path is None else path)


@lru_cache(maxsize=4)
def _load(path: Path) -> Facts:
    try:
        with lzma.open(path) as file:
            text = file.read(_MAX_FACTS + 1)
        head, *lines = text.split(b"\n")
        if len(text) > _MAX_FACTS or len(lines) < len(_TABLES) or json.loads(head)["schema"] != SCHEMA:
            raise ValueError("not of this version")
        return Facts(json.loads(head), dict(zip(_TABLES, lines, strict=False)))
    except (OSError, EOFError, lzma.LZMAError, ValueError, KeyError, TypeError) as error:
        raise SourceError(f"not a file of recorded facts: {error}", path) from None


def _at(runs: Runs, index: int) -> Any:
    """The value of a run list at a release."""
    value = None
    for position in range(0, len(runs), 2):
        if runs[position] > index:
            break
        value = runs[position + 1]
    return value


class Facts:
    """Recorded releases. Tables are parsed when first asked for, layouts decoded one by one."""

    def __init__(self, head: Mapping[str, Any], tables: Mapping[str, bytes]) -> None:
        self._head = head
        self._tables = tables
        self.versions: tuple[str, ...] = tuple(head["versions"])
        """Every recorded release: a parent before its children, a branch in one piece."""
        self._index = {version: index for index, version in enumerate(self.versions)}

    def __contains__(self, version: object) -> bool:
        return version in self._index

    def parent(self, version: str) -> str | None:
        """The nearest recorded release that this one descends from by git ancestry. Raises UnknownDriverVersion."""
        index = self._head["parents"][self._position(version)]
        return None if index < 0 else self.versions[index]

    def release(self, version: str, wanted: Wanted | None = None) -> Release:
        """One release's facts. Raises UnknownDriverVersion, naming the nearest recorded ones.

        ``wanted`` is what a parsed source asks for; here everything is at hand.
        """
        index = self._position(version)
        return Release(
            version,
            self._head["headers"][index],
            self._column("structs", index, self.layout),
            self._column("constants", index),
            self._column("enums", index),
            self._column("params", index),
            self._column("embedded", index, lambda paths: tuple(paths.split(" "))),
            ORIGIN,
        )

    def releases(self, versions: Iterable[str], wanted: Wanted | None = None) -> Iterator[Release]:
        """Several releases, in the order asked for."""
        return map(self.release, versions)

    def names(self, table: str) -> Iterable[str]:
        """Every name that any release has in ``structs`` or ``constants``, sorted."""
        return self._table(table).keys()

    def having(self, number: int) -> list[str]:
        """The constants that have this value in any release, sorted."""
        return [name for name, runs in self._table("constants").items() if number in runs[1::2]]

    def runs(self, table: str, name: str) -> tuple[tuple[int, Any], ...]:
        """(position in ``versions``, value) wherever a name's value changes along them; the value is opaque, None is absence."""
        runs = self._table(table).get(name, [])
        return tuple(zip(runs[::2], runs[1::2], strict=True))

    def layout(self, key: int) -> Layout:
        """The layout that a value of a ``structs`` run stands for."""
        return self._rows.get(str(key))

    def _position(self, version: str) -> int:
        index = self._index.get(version)
        if index is None:
            raise UnknownDriverVersion(
                f"{version}: not a recorded release; nearest: {', '.join(nearest_names(version, self.versions))}"
            )
        return index

    @cached_property
    def _parsed(self) -> dict[str, Any]:
        return {}

    def _table(self, name: str) -> dict[str, Runs]:
        if name not in self._parsed:
            self._parsed[name] = json.loads(self._tables[name])
        table: dict[str, Runs] = self._parsed[name]
        return table

    @cached_property
    def _rows(self) -> LayoutTable:
        return LayoutTable({str(index): row for index, row in enumerate(json.loads(self._tables["rows"]))})

    def _column(self, name: str, index: int, decode: Callable[[Any], Any] = lambda value: value) -> _Column:
        absent = -1 if name == "structs" else None
        return _Column(lambda: self._table(name), index, absent, decode)


class _Column(Mapping[str, Any]):
    """One table at one release. A few names are looked up one by one; whoever wants them all has the column read once."""

    __slots__ = ("_absent", "_decode", "_index", "_present", "_runs", "_table")

    def __init__(
        self, table: Callable[[], Mapping[str, Runs]], index: int, absent: Any, decode: Callable[[Any], Any]
    ) -> None:
        self._table = table
        self._index = index
        self._absent = absent
        self._decode = decode
        self._runs: Mapping[str, Runs] | None = None
        self._present: dict[str, Any] | None = None

    def _raw(self, name: str) -> Any:
        if self._present is not None:
            return self._present.get(name, self._absent)
        if self._runs is None:
            self._runs = self._table()
        runs = self._runs.get(name)
        if runs is None or runs[0] > self._index:
            return self._absent
        value = runs[1] if len(runs) == 2 else _at(runs, self._index)
        return self._absent if value is None else value

    def _all(self) -> dict[str, Any]:
        if self._present is None:
            values = ((name, _at(runs, self._index)) for name, runs in self._table().items())
            self._present = {name: value for name, value in values if value is not None and value != self._absent}
        return self._present

    def __getitem__(self, name: str) -> Any:
        value = self._raw(name)
        if value == self._absent:
            raise KeyError(name)
        return self._decode(value)

    def get(self, name: str, default: Any = None) -> Any:
        value = self._raw(name)
        return default if value == self._absent else self._decode(value)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._raw(name) != self._absent

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


def nearest_names(version: str, known: Iterable[str], count: int = 4) -> list[str]:
    """Names of releases that stand next to one: the same major version first, then by distance of the numbers."""
    wanted = natural(version)

    def distance(name: str) -> tuple[float, ...]:
        pairs = zip(natural(name), wanted, strict=False)
        return tuple(float(abs(a[0] - b[0])) for a, b in pairs)

    return sorted(sorted(known, key=natural), key=distance)[:count]


def record(releases: Iterable[Release], parents: Mapping[str, str | None]) -> bytes:
    """The facts file's bytes for these releases, in this order. The same releases give the same bytes."""
    versions: list[str] = []
    counts: list[int] = []
    table = LayoutTable()
    rows: dict[str, int] = {}
    texts: list[str] = []
    columns: dict[str, dict[str, Runs]] = {name: {} for name in _TABLES[1:]}

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

    for release in releases:
        index = len(versions)
        versions.append(release.version)
        counts.append(release.headers)
        now: dict[str, Mapping[str, Any]] = {
            "structs": {name: number(release.structs[name]) for name in sorted(release.structs)},
            "constants": release.constants,
            "enums": release.enums,
            "params": release.params,
            "embedded": {name: " ".join(paths) for name, paths in release.embedded.items()},
        }
        for kind, values in now.items():
            absent = -1 if kind == "structs" else None
            column = columns[kind]
            for name in values.keys() | column.keys():
                value = values.get(name, absent)
                runs = column.setdefault(name, [])
                if not runs and value == absent:
                    continue
                if not runs or runs[-1] != value:
                    runs += [index, value]
    known = {version: index for index, version in enumerate(versions)}
    head = {
        "schema": SCHEMA,
        "versions": versions,
        "parents": [known.get(parents.get(version) or "", -1) for version in versions],
        "headers": counts,
    }
    lines = [head, texts, *(dict(sorted(columns[kind].items())) for kind in _TABLES[1:])]
    text = "\n".join(json.dumps(line, separators=(",", ":"), ensure_ascii=True) for line in lines)
    return lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)
