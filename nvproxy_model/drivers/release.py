"""What one release of the driver says: layouts, constants and the facts beside them, and their packed form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar, cast

from nvproxy_model import naming
from nvproxy_model.layout import Field, Layout, RecordKind

T = TypeVar("T")

__all__ = [
    "LayoutTable",
    "Layouts",
    "Provenance",
    "Release",
    "Wanted",
    "control_struct",
    "pack_release",
    "reachable",
    "several",
    "unpack_release",
]


class Wanted(NamedTuple):
    """The names that somebody asks for; to read only these takes a fraction of the time of reading all."""

    structs: frozenset[str]
    constants: frozenset[str]

    @property
    def modeset(self) -> bool:
        """Whether a name belongs to NVKMS, whose headers are read only then."""
        return any(name[:5].lower() == "nvkms" for name in self.structs | self.constants)


class Provenance(NamedTuple):
    """Where a release was read from: a repository's tag or commit, or else a tree.

    A signed tag is one whose object carries a signature; no signature is ever verified. ``commit`` is its full id, or "".
    """

    kind: Literal["signed tag", "tag", "commit", "tree"]
    commit: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.commit[:12]}".rstrip()


class Release(NamedTuple):
    """The ABI headers of one driver release.

    Whoever asked for some names only (see ``Source.release``) finds only those in the mappings. ``embedded`` holds the
    driver's own list of controls whose parameters hold user pointers (``embedded_param_copy.c``, embeddedParamCopyIn()):
    control name -> dotted names of the pointer fields, read off its RMAPI_PARAM_COPY_INIT uses.
    """

    version: str
    headers: int
    """How many headers declare its ABI; all of them were read."""
    structs: Mapping[str, Layout]
    """By typedef name and by tag, as NVIDIA spells them."""
    constants: Mapping[str, int]
    """Macros with an integer value, and enumerators."""
    enums: Mapping[str, str] = MappingProxyType({})
    """Enumerator -> the name of its enum, or ``""`` for one without a name."""
    params: Mapping[str, str] = MappingProxyType({})
    """Control that the header annotates with how its number is made -> its parameter struct where that is made of
    ``..._PARAMS_MESSAGE_ID``, else ``""``."""
    embedded: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    origin: str = ""
    """Where this was read: ``recorded facts`` or the path of a source."""
    commands: Callable[[int], Sequence[str]] | None = None
    """Number -> the names in ``params`` that have it, if it was known without reading them all."""
    parsed: int | None = None
    """How many of the headers were parsed for the names that were asked for; None for recorded facts."""


def control_struct(release: Release, control: str) -> str | None:
    """The name of a control's parameter struct, or None: by its MESSAGE_ID define, else by NVIDIA's naming rule."""
    return naming.control_struct(control, release.params, release.structs)


def several(table: Mapping[str, T], names: Sequence[str]) -> list[T | None]:
    """What a release's mapping has under these names; one that looks many up faster than one by one does so."""
    faster: Callable[[Sequence[str]], list[T | None]] | None = getattr(table, "several", None)
    return faster(names) if faster is not None else [table.get(name) for name in names]


class LayoutTable:
    """Layouts as rows of text; equal layouts are one row, and one object once decoded.

    A row is the record's name, kind, size and align on the first line, then one line a field: name, offset, size, type,
    base, dimensions, key of the row of its own record. Keys are opaque: a digest where rows of many origins meet, a
    position in the shipped facts.
    """

    def __init__(self, rows: dict[str, str] | None = None) -> None:
        self.rows: dict[str, str] = {} if rows is None else rows
        self._decoded: dict[str, Layout] = {}
        self._keys: dict[Layout, str] = {}

    def add(self, layout: Layout) -> str:
        """The key of a layout, whose row and whose inner records' rows are added if they are new."""
        from hashlib import blake2b

        known = self._keys.get(layout)
        if known is not None:
            return known
        lines = ["\t".join((layout.name, layout.kind, str(layout.size), str(layout.align)))]
        lines += [
            "\t".join(
                (
                    f.name,
                    str(f.offset),
                    str(f.size),
                    f.type,
                    f.base,
                    ",".join(map(str, f.dims)),
                    "" if f.record is None else self.add(f.record),
                )
            )
            for f in layout.fields
        ]
        row = "\n".join(lines)
        key = blake2b(row.encode(), digest_size=12).hexdigest()
        self.rows[key] = row
        self._keys[layout] = key
        return key

    def get(self, key: str) -> Layout:
        """Decode a row, once."""
        layout = self._decoded.get(key)
        if layout is None:
            head, *lines = self.rows[key].split("\n")
            name, kind, size, align = head.split("\t")
            record = cast(RecordKind, kind)  # `add` wrote it
            layout = self._decoded[key] = Layout(name, record, int(size), int(align), tuple(map(self._field, lines)))
        return layout

    def _field(self, line: str) -> Field:
        name, offset, size, kind, base, dims, record = line.split("\t")
        shape = tuple(map(int, dims.split(","))) if dims else ()
        return Field(name, int(offset), int(size), kind, base, shape, self.get(record) if record else None)


class Layouts(Mapping[str, Layout]):
    """Struct -> layout, decoded when asked for."""

    __slots__ = ("_keys", "_table")

    def __init__(self, keys: Mapping[str, str], table: LayoutTable) -> None:
        self._keys = keys
        self._table = table

    def __getitem__(self, name: str) -> Layout:
        return self._table.get(self._keys[name])

    def __contains__(self, name: object) -> bool:
        return name in self._keys

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


def reachable(rows: Mapping[str, str], keys: Iterable[str]) -> dict[str, str]:
    """The rows of these keys and of the records in them."""
    found: dict[str, str] = {}
    pending = list(keys)
    while pending:
        key = pending.pop()
        if key not in found:
            found[key] = rows[key]
            inner = (line.rpartition("\t")[2] for line in rows[key].split("\n")[1:])
            pending += filter(None, inner)
    return found


def pack_release(release: Release) -> dict[str, Any]:
    """A release as JSON-able data (without its version and origin), for the cache and for a parsing process's answer."""
    table = LayoutTable()
    structs = {name: table.add(layout) for name, layout in release.structs.items()}
    return {
        "headers": release.headers,
        "parsed": release.parsed,
        "structs": structs,
        "rows": table.rows,
        "constants": dict(release.constants),
        "enums": dict(release.enums),
        "params": dict(release.params),
        "embedded": {name: list(paths) for name, paths in release.embedded.items()},
    }


def unpack_release(version: str, packed: Mapping[str, Any], origin: str, table: LayoutTable) -> Release:
    """The inverse of ``pack_release``. Rows go to ``table``, which releases share; layouts are decoded when asked for."""
    table.rows.update(packed["rows"])
    return Release(
        version,
        packed["headers"],
        Layouts(packed["structs"], table),
        packed["constants"],
        packed["enums"],
        packed["params"],
        {name: tuple(paths) for name, paths in packed["embedded"].items()},
        origin,
        parsed=packed["parsed"],
    )
