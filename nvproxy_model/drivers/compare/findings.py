"""Findings: what differs between two releases, or between this model and a release.

A finding has one of the kinds below and a class that says what it means for whoever filters or translates the calls.
Fields are matched by name, an anonymous member's fields by their own names wherever it lies; what is left over and has
the same offset, size and type is a rename.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from nvproxy_model.abi.windows import window
from nvproxy_model.drivers.release import Release, control_struct
from nvproxy_model.layout import Field, Layout

__all__ = [
    "ADDITIVE",
    "CLASSES",
    "COSMETIC",
    "KINDS",
    "Class",
    "Comparison",
    "Entry",
    "Finding",
    "Gravity",
    "Kind",
    "compare_constants",
    "compare_layouts",
    "compare_releases",
    "different",
    "entries",
    "keyed",
    "typed",
    "verdict",
]

Kind = Literal[
    "struct-added",
    "struct-removed",
    "size-changed",
    "field-added",
    "field-removed",
    "field-moved",
    "field-resized",
    "field-retyped",
    "field-renamed",
    "constant-added",
    "constant-removed",
    "constant-changed",
]
"""What a finding says that happened."""
KINDS: tuple[Kind, ...] = get_args(Kind)
"""Every one."""

Class = Literal[
    "pointer-gained",
    "pointer-lost",
    "fd-gained",
    "pid-gained",
    "fd-lost",
    "number-reused",
    "window-entered",
    "window-left",
    "renumbered",
    "enum-moved",
    "moved-same-size",
    "moved",
    "resized-in-place",
    "resized-and-moved",
    "union-grown",
    "type-changed",
    "grew",
    "shrank",
    "replaced",
    "removed",
    "renamed",
    "added",
    "added-in-padding",
    "cosmetic",
]
"""What a finding means for a program that filters or translates the calls. `CLASSES` explains each word."""

CLASSES: Mapping[Class, str] = {
    "pointer-gained": "a member is a pointer now",
    "pointer-lost": "a pointer is gone",
    "fd-gained": "a member is a file descriptor now",
    "pid-gained": "a member is a process id now",
    "fd-lost": "a file descriptor is gone",
    "number-reused": "a number means something else",
    "window-entered": "a number entered a window that nvproxy passes through unseen",
    "window-left": "a number left a window that nvproxy passes through unseen",
    "renumbered": "a command, class or other constant has another number",
    "enum-moved": "an enumerator has another value",
    "moved-same-size": "a member moved in a struct of the same size",
    "moved": "a member moved, and the struct's size changed",
    "resized-in-place": "a member has another size at the same offset",
    "resized-and-moved": "a member has another size and another offset",
    "union-grown": "a union, or a member of one, has another size",
    "type-changed": "sign, kind or shape of a member changed",
    "grew": "a record is larger",
    "shrank": "a record is smaller",
    "replaced": "a member is new where others were",
    "removed": "a name is gone",
    "renamed": "the same thing under another name",
    "added": "a name is new",
    "added-in-padding": "a member is new where padding was, or beside a union's others; no size and no offset changed",
    "cosmetic": "another spelling of the same type",
}
"""Class -> what it means, the gravest first. Findings are listed in this order within a name."""

Gravity = Literal["none", "cosmetic", "additive", "breaking"]
"""What the findings of a comparison amount to."""

COSMETIC: frozenset[Class] = frozenset({"cosmetic"})
"""The classes that count as no difference."""
ADDITIVE: frozenset[Class] = frozenset({"added", "added-in-padding"})
"""The classes that break nobody who knows only the base; all others do."""


class Finding(NamedTuple):
    """One difference. ``name`` is a constant, a struct, or a struct and the dotted path of a field.

    ``base`` and ``next`` are the old and the new value: an integer for a size, an offset or a number, text for a type or
    a name, None for absence.
    """

    kind: Kind
    name: str
    detail: str
    base: Any
    next: Any
    class_: Class

    @property
    def struct(self) -> str | None:
        """The struct that this is about, or None for a constant."""
        return None if self.kind.startswith("constant-") else self.name.partition(".")[0]

    @property
    def field(self) -> str | None:
        """The dotted path of the field that this is about, or None."""
        return self.name.partition(".")[2] or None if self.kind.startswith("field-") else None

    def as_json(self) -> dict[str, Any]:
        """The finding as the schemas check/1 and diff/2 state it."""
        return {
            "kind": self.kind,
            "name": self.name,
            "detail": self.detail,
            "base": self.base,
            "next": self.next,
            "class": self.class_,
        }


class Comparison(NamedTuple):
    """Two releases compared: how much was compared, and the findings, in a stable order."""

    base: str
    next: str
    headers: int
    structs: int
    constants: int
    findings: tuple[Finding, ...]
    compared_structs: frozenset[str] = frozenset()
    compared_constants: frozenset[str] = frozenset()
    """The names that either release has, of those asked for."""

    @property
    def verdict(self) -> Gravity:
        """``none``, ``cosmetic``, ``additive`` or ``breaking``."""
        return verdict(self.findings)

    @property
    def different(self) -> bool:
        """Whether there is more than another spelling."""
        return different(self.findings)


def different(findings: Iterable[Finding]) -> bool:
    """Whether findings amount to more than another spelling of types."""
    return verdict(findings) not in ("none", "cosmetic")


def verdict(findings: Iterable[Finding]) -> Gravity:
    """The gravest of ``none``, ``cosmetic``, ``additive`` and ``breaking`` that the findings amount to.

    Additive: names are new, and members are new in former padding, and none of them is a pointer or fd; a program built
    against the base works unchanged, and so does a proxy that knows only the base.
    """
    classes = {finding.class_ for finding in findings}
    if not classes:
        return "none"
    if classes <= COSMETIC:
        return "cosmetic"
    return "additive" if classes <= COSMETIC | ADDITIVE else "breaking"


class Entry(NamedTuple):
    """A member of a record, flattened: scalars and arrays at any depth, and unions and their members for their size."""

    path: str
    key: str
    """The path without anonymous members, by which C itself addresses the field."""
    offset: int
    field: Field
    in_union: bool

    @property
    def shape(self) -> tuple[int, int, str, tuple[int, ...]]:
        """Offset, size, type and dimensions: what makes two members the same whatever their names."""
        return self.offset, self.field.size, self.field.type, self.field.dims


def entries(layout: Layout, prefix: str = "", key: str = "", base: int = 0, in_union: bool = False) -> Iterator[Entry]:
    """The members of a record, in order; an array of records counts as a member and is walked once, as ``name[]``."""
    in_union = in_union or layout.kind == "union"
    for field in layout.fields:
        anonymous = field.name.startswith("<")
        path, offset = prefix + field.name, base + field.offset
        own_key = key if anonymous else key + field.name
        record = field.record
        if record is None:
            yield Entry(path, own_key, offset, field, in_union)
            continue
        if field.dims or not record.fields:
            yield Entry(path, own_key, offset, field, in_union)
        elif not anonymous and (in_union or record.kind == "union"):
            yield Entry(path, own_key, offset, field, True)
        below = "[]" * len(field.dims) + "."
        yield from entries(record, path + below, own_key + ("" if anonymous else below), offset, in_union)


def keyed(layout: Layout) -> dict[str, Entry]:
    """The members of a record by their keys."""
    return {entry.key: entry for entry in entries(layout)}


def compare_layouts(
    name: str,
    ours: Layout,
    theirs: Layout,
    fds: Collection[str] = (),
    *,
    spelling: bool = True,
    members: Callable[[Layout], Mapping[str, Entry]] = keyed,
) -> list[Finding]:
    """Differences of two layouts of one struct. ``fds`` are paths known to be file descriptors; ``spelling`` also tells of
    types that are spelled otherwise. Whoever compares a layout many times gives a ``keyed`` that remembers."""
    if ours is theirs or ours == theirs:
        return []
    found: list[Finding] = []
    same_size = ours.size == theirs.size
    if not same_size or ours.kind != theirs.kind:
        grew: Class = "grew" if theirs.size > ours.size else "shrank"
        class_: Class = "type-changed" if ours.kind != theirs.kind else "union-grown" if ours.kind == "union" else grew
        detail = f"{ours.kind} of {ours.size} bytes, then {theirs.kind} of {theirs.size}"
        found.append(Finding("size-changed", name, detail, ours.size, theirs.size, class_))
    before, after = members(ours), members(theirs)
    lost = {key: entry for key, entry in before.items() if key not in after}
    new = {key: entry for key, entry in after.items() if key not in before}
    for key, old in before.items():
        if key in after:
            found += _compare_field(name, old, after[key], same_size, fds, spelling)
    by_shape: dict[Any, list[str]] = {}
    for key, entry in new.items():
        by_shape.setdefault(entry.shape, []).append(key)
    for key, old in list(lost.items()):
        candidates = by_shape.get(old.shape)
        if candidates:
            entry = new.pop(candidates.pop(0))
            del lost[key]
            detail = f"{old.path} is {entry.path}, {old.field.type} at offset {old.offset}"
            found.append(Finding("field-renamed", f"{name}.{entry.path}", detail, old.path, entry.path, "renamed"))
    for old in lost.values():
        carried = _carries(old, fds)
        class_ = "removed" if carried is None else "pointer-lost" if carried == "pointer" else "fd-lost"
        found.append(Finding("field-removed", f"{name}.{old.path}", _describe(old), old.field.type, None, class_))
    disturbing = ("field-moved", "field-resized", "field-removed")
    undisturbed = same_size and not any(f.kind in disturbing and f.class_ != "union-grown" for f in found)
    for entry in new.values():
        fits = undisturbed and (entry.in_union or _in_padding(entry, before.values()))
        carried = _carries(entry, fds)
        if carried is not None:
            class_ = "pointer-gained" if carried == "pointer" else "fd-gained"
        else:
            class_ = "added-in-padding" if fits else "grew" if not same_size else "replaced"
        found.append(Finding("field-added", f"{name}.{entry.path}", _describe(entry), None, entry.field.type, class_))
    if not found and ours.align != theirs.align:
        detail = f"aligned to {ours.align} bytes, then to {theirs.align}"
        found.append(Finding("field-retyped", name, detail, ours.align, theirs.align, "type-changed"))
    return found


def _compare_field(
    name: str, old: Entry, new: Entry, same_size: bool, fds: Collection[str], spelling: bool
) -> Iterator[Finding]:
    full = f"{name}.{new.path}"
    a, b = old.field, new.field
    moved, resized = old.offset != new.offset, a.size != b.size
    if not moved and not resized and (a.type, a.base, a.dims) == (b.type, b.base, b.dims):
        return
    if resized:
        class_: Class = "resized-and-moved" if moved else "resized-in-place"
        if new.in_union and old.in_union:
            class_ = "union-grown"
        detail = f"{typed(a)} of {a.size} bytes at {old.offset}, then {typed(b)} of {b.size} at {new.offset}"
        yield Finding("field-resized", full, detail, a.size, b.size, class_)
    if moved:
        class_ = "resized-and-moved" if resized else "moved-same-size" if same_size else "moved"
        yield Finding(
            "field-moved", full, f"{typed(b)}: offset {old.offset}, then {new.offset}", old.offset, new.offset, class_
        )
    detail = f"{typed(a)}, then {typed(b)}, at offset {new.offset}"
    if (a.base == "ptr") != (b.base == "ptr"):
        yield Finding(
            "field-retyped", full, detail, a.type, b.type, "pointer-gained" if b.base == "ptr" else "pointer-lost"
        )
    elif a.base[0] != b.base[0] or (not resized and (a.base != b.base or a.dims != b.dims)):
        yield Finding("field-retyped", full, detail, typed(a), typed(b), "type-changed")
    elif a.type != b.type and not resized and spelling and not (a.type.startswith("<") and b.type.startswith("<")):
        yield Finding("field-retyped", full, detail, a.type, b.type, "cosmetic")


def typed(field: Field) -> str:
    """A member's type as C declares it, array dimensions included: ``NvU8[16]``."""
    return field.type + "".join(f"[{length}]" for length in field.dims)


def _describe(entry: Entry) -> str:
    return f"{typed(entry.field)} of {entry.field.size} bytes at offset {entry.offset}"


def _carries(entry: Entry, fds: Collection[str]) -> Literal["pointer", "fd"] | None:
    if entry.field.base == "ptr":
        return "pointer"
    return "fd" if entry.path in fds or entry.key in fds else None


def _in_padding(entry: Entry, others: Iterable[Entry]) -> bool:
    end = entry.offset + entry.field.size
    return all(end <= other.offset or other.offset + other.field.size <= entry.offset for other in others)


_COMMAND = re.compile(r"NV[0-9A-F]{4}_CTRL_(?:CMD_)?\w+")


def _is_command(name: str, release: Release) -> bool:
    return name in release.params or ("_CTRL_CMD_" in name and _COMMAND.fullmatch(name) is not None)


def compare_constants(base: Release, following: Release, names: Collection[str]) -> list[Finding]:
    """Differences of named numbers. A command's number that named another command before is a reused number.

    Commands are the names that the headers derive from a parameter struct's MESSAGE_ID, and others with _CTRL_CMD_.
    """
    found: list[Finding] = []
    before, after = _commands(base), _commands(following)
    for name in sorted(names):
        old, new = base.constants.get(name), following.constants.get(name)
        if old == new:
            continue
        command = _is_command(name, following if new is not None else base)
        class_: Class
        if old is None:
            class_, detail = "added", f"{name} = {_number(new)}"
            others = before(new) if command and new is not None else []
            if others and new is not None:
                class_, detail = _reuse(name, others, new, base, following)
            elif command and new is not None and window(new):
                class_, detail = "window-entered", f"{detail}: nvproxy passes it through unseen"
            found.append(Finding("constant-added", name, detail, None, new, class_))
        elif new is None:
            class_, detail = "removed", f"{name} was {_number(old)}"
            others = after(old) if command else []
            if others:
                class_, detail = _reuse(name, others, old, following, base, gone=True)
            found.append(Finding("constant-removed", name, detail, old, None, class_))
        else:
            class_ = "enum-moved" if name in following.enums else "renumbered"
            detail = f"{_number(old)}, then {_number(new)}"
            if command:
                taken = [other for other in before(new) if following.constants.get(other) != new]
                if bool(window(old)) != bool(window(new)):
                    class_ = "window-entered" if window(new) else "window-left"
                elif taken:
                    class_, detail = "number-reused", f"{detail}, which was {', '.join(taken)}"
            found.append(Finding("constant-changed", name, detail, old, new, class_))
    return found


def _commands(release: Release) -> Callable[[int], Sequence[str]]:
    """Number -> the commands that have it."""
    if release.commands is not None:
        return release.commands
    numbers: dict[int, list[str]] = {}
    for name in release.params:
        value = release.constants.get(name) if "_CTRL_" in name else None
        if value is not None:
            numbers.setdefault(value, []).append(name)
    return lambda number: numbers.get(number, ())


def _reuse(
    name: str, others: Sequence[str], number: int, there: Release, here: Release, *, gone: bool = False
) -> tuple[Class, str]:
    """Class and detail for a command whose number has other names ``there``: a new name for the same thing, or another thing."""
    when = "is now" if gone else "was"
    if name not in there.constants and all(other not in here.constants for other in others):
        mine = here.structs.get(control_struct(here, name) or "")
        same = [other for other in others if _same(mine, there.structs.get(control_struct(there, other) or ""))]
        if same:
            return "renamed", f"{_number(number)} {when} {', '.join(same)}, with the same parameters"
    return "number-reused", f"{_number(number)} {when} {', '.join(others)}"


def _same(one: Layout | None, other: Layout | None) -> bool:
    return one is not None and other is not None and one._replace(name="") == other._replace(name="")


def _number(value: Any) -> str:
    return f"{value:#x}" if isinstance(value, int) and value >= 10 else str(value)


def compare_releases(
    base: Release,
    following: Release,
    structs: Collection[str] | None = None,
    constants: Collection[str] | None = None,
    fds: Mapping[str, Collection[str]] | None = None,
) -> Comparison:
    """Two releases, restricted to some names, or over all of them. ``fds``: struct -> paths that are file descriptors."""
    names = base.structs.keys() | following.structs.keys()
    if structs is not None:
        names &= set(structs)
    numbers = base.constants.keys() | following.constants.keys()
    if constants is not None:
        numbers &= set(constants)
    found: list[Finding] = []
    lost = sorted(name for name in names if name not in following.structs)
    new = sorted(name for name in names if name not in base.structs)
    twins = _twins(lost, new, base, following)
    for name in sorted(names):
        old, now = base.structs.get(name), following.structs.get(name)
        if old is not None and now is not None:
            found += compare_layouts(name, old, now, (fds or {}).get(name, ()))
        elif old is not None:
            twin = twins.get(name)
            detail = f"{old.kind} of {old.size} bytes" + (f", now {twin}" if twin else "")
            found.append(Finding("struct-removed", name, detail, old.size, None, "renamed" if twin else "removed"))
        elif now is not None:
            twin = twins.get(name)
            detail = f"{now.kind} of {now.size} bytes" + (f", before {twin}" if twin else "")
            found.append(Finding("struct-added", name, detail, None, now.size, "renamed" if twin else "added"))
    found += compare_constants(base, following, numbers)
    return Comparison(
        base.version,
        following.version,
        following.headers,
        len(names),
        len(numbers),
        tuple(found),
        frozenset(names),
        frozenset(numbers),
    )


def _twins(lost: list[str], new: list[str], base: Release, following: Release) -> dict[str, str]:
    """Names that came and went with one layout, and stand for each other: a removed struct and the one added for it."""
    shapes: dict[Layout, list[str]] = {}
    for name in new:
        shapes.setdefault(following.structs[name]._replace(name=""), []).append(name)
    twins: dict[str, str] = {}
    for name in lost:
        layout = base.structs[name]
        candidates = shapes.get(layout._replace(name=""), [])
        if len(candidates) == 1 and len(layout.fields) > 1 and candidates[0] not in twins:
            twins[name], twins[candidates[0]] = candidates[0], name
    return twins
