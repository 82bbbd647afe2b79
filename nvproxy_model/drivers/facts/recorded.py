"""Recorded facts: what every public release says, shipped compressed and read lazily, and a user's own beside it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from nvproxy_model.drivers.facts import encoding
from nvproxy_model.drivers.facts.encoding import ABSENT, Encoded, Runs, at
from nvproxy_model.drivers.facts.files import FACTS, Stamp, kept_file, stamp
from nvproxy_model.drivers.facts.verify import verify
from nvproxy_model.drivers.privileges import ClassEntry, Export, Privileges
from nvproxy_model.drivers.release import LayoutTable, Provenance, Release, Wanted
from nvproxy_model.errors import UnknownDriverVersion
from nvproxy_model.layout import Layout
from nvproxy_model.naming import natural

__all__ = ["Facts", "load", "nearest_names"]

ORIGIN = "recorded facts"
MANY = 30
"""Releases from which on it pays to look names up in all of them at once."""
T = TypeVar("T")


def load(path: Path | None = None) -> Facts:
    """The facts in a file; by default the shipped ones with the user's own after them.

    Raises SourceError if a file cannot be read.
    """
    if path is not None:
        return _load(path, None, stamp(path))
    return _load(FACTS, *(kept_file() or (None, None)))


@lru_cache(maxsize=4)
def _load(path: Path, own: Path | None, _stamp: Stamp | None) -> Facts:
    encoded = _read(path)
    return Facts(encoded if own is None else encoding.joined(encoded, _read(own)))


def _read(path: Path) -> Encoded:
    encoded = encoding.read(path)
    return encoded if path == FACTS else verify(encoded, path)


class Facts:
    """Recorded releases. Tables are parsed when first asked for, layouts decoded one by one."""

    def __init__(self, encoded: Encoded) -> None:
        self._head = encoded.head
        self._table: Callable[[str], Any] = encoded.table
        self.versions: tuple[str, ...] = tuple(encoded.head["versions"])
        """Every recorded release: a parent before its children, a branch in one piece."""
        self._index = {version: index for index, version in enumerate(self.versions)}

    def __contains__(self, version: object) -> bool:
        return version in self._index

    def parent(self, version: str) -> str | None:
        """The nearest recorded release that this one descends from by git ancestry. Raises UnknownDriverVersion."""
        index = self._head["parents"][self._position(version)]
        return None if index < 0 else self.versions[index]

    def above(self, version: str) -> str | None:
        """The ancestor that a user's own file names and does not hold itself. Raises UnknownDriverVersion."""
        name: str | None = self._head["above"][self._position(version)]
        return name

    def release(self, version: str, wanted: Wanted | None = None) -> Release:
        """One release's facts. Raises UnknownDriverVersion, naming the nearest recorded ones.

        ``wanted`` is what a parsed source asks for; here everything is at hand.
        """
        index = self._position(version)
        constants, params = self._column("constants", index), self._column("params", index)
        return Release(
            version,
            self._head["headers"][index],
            self._column("structs", index, self.layout),
            constants,
            self._column("enums", index),
            params,
            self._column("embedded", index, lambda paths: tuple(paths.split(" "))),
            ORIGIN,
            lambda number: [
                name for name in self._commands.get(number, ()) if name in params and constants.get(name) == number
            ],
        )

    def provenance(self, version: str) -> Provenance:
        """Where a release was read from when it was recorded. Raises UnknownDriverVersion."""
        index = self._position(version)
        return Provenance(self._head["kinds"][index], self._head["commits"][index])

    def privileges(self, version: str) -> Privileges | None:
        """Who may call what in one release; None where a user recorded it from a tree without the tables.

        Raises UnknownDriverVersion.
        """
        index = self._position(version)
        texts = self._column("texts", index, encoding.decode_text)
        if "flags" not in texts:
            return None
        flags = (word.partition("=") for word in texts["flags"])
        return Privileges(
            {name: int(value) for name, _, value in flags},
            _ByNumber[Export](self._column("exports", index, encoding.decode_export)),
            frozenset(texts["deprecated"]),
            _ByNumber[ClassEntry](self._column("classes", index, encoding.decode_class)),
            texts.get("chips", ()),
            frozenset(texts["copying"]),
        )

    def classes(self) -> Mapping[int, Mapping[str, ClassEntry]]:
        """Class -> the releases whose list of resources has it, in the order of ``versions`` -> its entry there."""
        return {int(name, 16): self._with_class(runs) for name, runs in self._table("classes").items()}

    def with_class(self, number: int) -> Mapping[str, ClassEntry]:
        """One class of `classes`, read alone; empty if no release lists it."""
        runs = self._table("classes").get(f"{number:x}")
        return {} if runs is None else self._with_class(runs)

    def _with_class(self, runs: Runs) -> dict[str, ClassEntry]:
        having: dict[str, ClassEntry] = {}
        for begin, value, end in zip(runs[::2], runs[1::2], (*runs[2::2], len(self.versions)), strict=True):
            if value is not None:
                having |= dict.fromkeys(self.versions[begin:end], encoding.decode_class(value))
        return having

    def releases(self, versions: Iterable[str], wanted: Wanted | None = None) -> Iterator[Release]:
        """Several releases, in the order asked for. For many, what ``wanted`` names is looked up for all releases together."""
        versions = list(versions)
        known = self._looked_up(wanted) if wanted is not None and len(versions) > MANY else {}
        for version in versions:
            release = self.release(version)
            for table, values in known.items():
                getattr(release, table).expect(values)
            yield release

    def _looked_up(self, wanted: Wanted) -> dict[str, dict[str, list[Any]]]:
        """Table -> wanted name -> what it is at each position; None is absence."""
        found: dict[str, dict[str, list[Any]]] = {}
        count = len(self.versions)
        for table, names in (("structs", wanted.structs), ("constants", wanted.constants)):
            runs, absent = self._table(table), (None, ABSENT.get(table))
            decode = self.layout if table == "structs" else int
            found[table] = {}
            for name in names:
                parts = runs.get(name, ())
                values = found[table][name] = [None] * (parts[0] if parts else count)
                for start, value, end in zip(parts[::2], parts[1::2], (*parts[2::2], count), strict=False):
                    values += [None if value in absent else decode(value)] * (end - start)
        return found

    def names(self, table: str) -> Collection[str]:
        """Every name that any release has in ``structs`` or ``constants``, sorted."""
        column: Mapping[str, Runs] = self._table(table)
        return column.keys()

    def having(self, number: int) -> list[str]:
        """The constants that have this value in any release, sorted."""
        found: list[str] = self._table("constants").having(number)
        return found

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
    def _commands(self) -> Mapping[int, Sequence[str]]:
        """Number -> the controls that have it in any release, in the order of ``params``."""
        found: dict[int, dict[str, None]] = {}
        for name in self._table("params"):
            for number in self._table("constants").get(name, ())[1::2] if "_CTRL_" in name else ():
                if number is not None:
                    found.setdefault(number, {})[name] = None
        return {number: tuple(names) for number, names in found.items()}

    @cached_property
    def _rows(self) -> LayoutTable:
        return LayoutTable(_Numbered(self._table("rows")))

    def _column(self, name: str, index: int, decode: Callable[[Any], Any] = lambda value: value) -> _Column:
        return _Column(lambda: self._table(name), index, ABSENT.get(name), decode)


class _Numbered(dict[str, str]):
    """Rows by their positions as text, each taken when it is asked for."""

    def __init__(self, rows: Sequence[str]) -> None:
        super().__init__()
        self._all = rows

    def __missing__(self, key: str) -> str:
        row = self[key] = self._all[int(key)]
        return row


class _Column(Mapping[str, Any]):
    """One table at one release. A name is looked up alone; iteration reads the whole column once."""

    __slots__ = ("_absent", "_decode", "_expected", "_index", "_present", "_runs", "_table")

    def __init__(
        self, table: Callable[[], Mapping[str, Runs]], index: int, absent: Any, decode: Callable[[Any], Any]
    ) -> None:
        self._table = table
        self._index = index
        self._absent = absent
        self._decode = decode
        self._runs: Mapping[str, Runs] | None = None
        self._present: dict[str, Any] | None = None
        self._expected: Mapping[str, Sequence[Any]] = {}

    def expect(self, values: Mapping[str, Sequence[Any]]) -> None:
        """What some names are at each position, already looked up; None is absence."""
        self._expected = values

    def several(self, names: Iterable[str]) -> list[Any]:
        """What these names are here; None for one that is not."""
        expected, index = self._expected, self._index
        try:
            return [expected[name][index] for name in names]
        except KeyError:
            return [self.get(name) for name in names]

    def _raw(self, name: str) -> Any:
        if self._present is not None:
            return self._present.get(name, self._absent)
        if self._runs is None:
            self._runs = self._table()
        runs = self._runs.get(name)
        if runs is None or runs[0] > self._index:
            return self._absent
        value = runs[1] if len(runs) == 2 else at(runs, self._index)
        return self._absent if value is None else value

    def _all(self) -> dict[str, Any]:
        if self._present is None:
            here = self._index
            values = (
                (name, at(runs, here) if len(runs) != 2 else runs[1] if runs[0] <= here else None)
                for name, runs in self._table().items()
            )
            self._present = {name: value for name, value in values if value is not None and value != self._absent}
        return self._present

    def __getitem__(self, name: str) -> Any:
        value = self._raw(name)
        if value == self._absent:
            raise KeyError(name)
        return self._decode(value)

    def get(self, name: str, default: Any = None) -> Any:
        if name in self._expected:
            value = self._expected[name][self._index]
            return default if value is None else value
        value = self._raw(name)
        return default if value == self._absent else self._decode(value)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._raw(name) != self._absent

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


class _ByNumber(Mapping[int, T], Generic[T]):
    """A column whose names are numbers in hexadecimal."""

    __slots__ = ("_column",)

    def __init__(self, column: _Column) -> None:
        self._column = column

    def __getitem__(self, number: int) -> T:
        found: T | None = self._column.get(f"{number:x}")
        if found is None:
            raise KeyError(number)
        return found

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and f"{number:x}" in self._column

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(int(name, 16) for name in self._column))

    def __len__(self) -> int:
        return len(self._column)


def nearest_names(version: str, known: Iterable[str], count: int = 4) -> list[str]:
    """Names of releases that stand next to one: the same major version first, then by distance of the numbers."""
    wanted = natural(version)

    def distance(name: str) -> tuple[float, ...]:
        pairs = zip(natural(name), wanted, strict=False)
        return tuple(float(abs(a[0] - b[0])) for a, b in pairs)

    return sorted(sorted(known, key=natural), key=distance)[:count]
