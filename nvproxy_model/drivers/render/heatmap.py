"""Layouts of many structs over all releases, as a grid: what the report's heat map, and the picture in the README, show.

Rows are structs. Columns are runs: releases that follow each other in the tree and agree on every shown struct. A cell
is the identity of the struct's layout there, so that a return to an older layout is seen as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from nvproxy_model.drivers.compare.findings import Entry, Finding, compare_constants, compare_layouts, keyed, verdict
from nvproxy_model.drivers.release import Release, several
from nvproxy_model.layout import Layout
from nvproxy_model.naming import natural

__all__ = ["ABSENT", "UNCHECKED", "Change", "HeatMap", "Numbers", "Row", "Run", "build"]

ABSENT = -1
"""The release has no such struct."""
UNCHECKED = -2
"""There is no public source of the release."""


@dataclass(frozen=True, slots=True)
class Run:
    """A column: ``releases`` agree on every row. ``parent`` is the index of the run that the first one descends from."""

    releases: tuple[str, ...]
    parent: int | None
    checked: bool

    @property
    def first(self) -> str:
        return self.releases[0]

    @property
    def branch(self) -> str:
        """The first number of the first release."""
        return self.first.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Row:
    """A struct: its distinct layouts in order of appearance, and one of their indices, ABSENT or UNCHECKED for each run."""

    name: str
    layouts: tuple[Layout, ...]
    cells: tuple[int, ...]

    @property
    def changes(self) -> bool:
        """Whether any two checked runs differ."""
        return len({cell for cell in self.cells if cell != UNCHECKED}) > 1


@dataclass(frozen=True, slots=True)
class Change:
    """What a release changed in one struct, or in the constants (``name`` empty), since the one that it descends from."""

    run: int
    version: str
    name: str
    before: int
    after: int
    findings: tuple[Finding, ...]

    @property
    def breaking(self) -> bool:
        return verdict(self.findings) == "breaking"


@dataclass(frozen=True, slots=True)
class Numbers:
    """The constants. ``values`` are those of ``names`` in each distinct state, None for absence; ``states``: release -> state."""

    names: tuple[str, ...]
    values: tuple[tuple[int | None, ...], ...]
    states: Mapping[str, int]


@dataclass
class HeatMap:
    """The grid. ``changes`` are in order of runs, then rows. ``fds``: struct -> paths that are file descriptors."""

    runs: tuple[Run, ...]
    rows: tuple[Row, ...]
    numbers: Numbers
    fds: Mapping[str, Iterable[str]]
    changes: list[Change] = field(default_factory=list)

    def above(self, run: int) -> int | None:
        """The nearest checked run that this one descends from."""
        parent = self.runs[run].parent
        while parent is not None and not self.runs[parent].checked:
            parent = self.runs[parent].parent
        return parent

    def origin(self, row: Row, run: int) -> int:
        """The layout that the run's own came from: the last other one above it, or ABSENT."""
        here: int | None = run
        while here is not None:
            if row.cells[here] not in (row.cells[run], UNCHECKED):
                return row.cells[here]
            here = self.runs[here].parent
        return ABSENT

    def between(self, row: Row, before: int, after: int) -> tuple[Finding, ...]:
        """What differs from one layout of a row to another; either may be ABSENT."""
        known = self._between.get((row.name, before, after))
        if known is None:
            known = self._between[row.name, before, after] = self._found(row, before, after)
        return known

    def _found(self, row: Row, before: int, after: int) -> tuple[Finding, ...]:
        if before == ABSENT:
            new = row.layouts[after]
            return (Finding("struct-added", row.name, f"{new.kind} of {new.size} bytes", None, new.size, "added"),)
        old = row.layouts[before]
        if after == ABSENT:
            return (Finding("struct-removed", row.name, f"{old.kind} of {old.size} bytes", old.size, None, "removed"),)
        fds = tuple(self.fds.get(row.name, ()))
        return tuple(compare_layouts(row.name, old, row.layouts[after], fds, spelling=False, members=self._members))

    def _members(self, layout: Layout) -> Mapping[str, Entry]:
        known = self._flat.get(id(layout))  # the rows hold every layout that comes here
        if known is None:
            known = self._flat[id(layout)] = keyed(layout)
        return known

    @cached_property
    def _flat(self) -> dict[int, Mapping[str, Entry]]:
        return {}

    @cached_property
    def _between(self) -> dict[tuple[str, int, int], tuple[Finding, ...]]:
        return {}

    @cached_property
    def breaks(self) -> Mapping[str, Change]:
        """Struct -> its first breaking change, in order of runs."""
        found: dict[str, Change] = {}
        for change in self.changes:
            if change.name and change.name not in found and change.breaking:
                found[change.name] = change
        return found


def build(
    read: Mapping[str, Release],
    parent: Callable[[str], str | None],
    structs: Iterable[str],
    constants: Iterable[str] = (),
    unchecked: Mapping[str, str | None] | None = None,
    fds: Mapping[str, Iterable[str]] | None = None,
) -> HeatMap:
    """The grid of ``structs`` over the releases that were read.

    ``parent`` gives a release's parent, whether that was read or not. ``unchecked``: releases without a source -> their
    parent. ``fds``: struct -> paths that are file descriptors. Structs that no release has are left out.
    """
    unchecked = unchecked or {}
    shown = [*read, *unchecked]
    above = {**{version: parent(version) for version in read}, **unchecked}
    parents = {version: _nearest(version, above, parent) for version in shown}
    order = _preorder(parents)
    identities = [_Identities(name) for name in sorted(set(structs))]
    there = [version for version in order if version in read]
    names = [row.name for row in identities]
    layouts = zip(*(several(read[version].structs, names) for version in there), strict=True)
    along = (row.along(found) for row, found in zip(identities, layouts, strict=True))
    columns = dict.fromkeys(order, (UNCHECKED,) * len(identities))
    columns |= zip(there, zip(*along, strict=True), strict=True)
    runs = _runs(order, parents, columns, read.keys())
    rows = tuple(
        Row(row.name, tuple(row.layouts), tuple(columns[run.first][index] for run in runs))
        for index, row in enumerate(identities)
        if row.layouts
    )
    numbers = _numbers(sorted(set(constants)), read)
    grid = HeatMap(runs, rows, numbers, fds or {})
    grid.changes += sorted([*_changes(grid), *_renumbered(grid, read, parents)], key=lambda change: change.run)
    return grid


def _numbers(names: Sequence[str], read: Mapping[str, Release]) -> Numbers:
    known: dict[tuple[int | None, ...], int] = {}
    states: dict[str, int] = {}
    for version, release in read.items():
        values = tuple(several(release.constants, names))
        states[version] = known.setdefault(values, len(known))
    return Numbers(tuple(names), tuple(known), states)


class _Identities:
    """The layouts that a struct has had; another spelling of a type is no other layout."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.layouts: list[Layout] = []
        self._seen: dict[int, tuple[Layout, int]] = {}

    def along(self, layouts: Iterable[Layout | None]) -> Iterator[int]:
        """The identities of layouts in order; the same one mostly follows itself."""
        last, identity = None, ABSENT
        for layout in layouts:
            if layout is not last:
                last, identity = layout, ABSENT if layout is None else self.identify(layout)
            yield identity

    def identify(self, layout: Layout) -> int:
        known = self._seen.get(id(layout))  # recorded facts hand out one object for equal layouts
        if known is None:
            same = (index for index, old in enumerate(self.layouts) if not _differs(self.name, old, layout))
            index = next(same, len(self.layouts))
            if index == len(self.layouts):
                self.layouts.append(layout)
            known = self._seen[id(layout)] = layout, index
        return known[1]


def _differs(name: str, old: Layout, new: Layout) -> bool:
    return old.size != new.size or bool(compare_layouts(name, old, new, spelling=False))


def _nearest(version: str, known: Mapping[str, str | None], parent: Callable[[str], str | None]) -> str | None:
    """The nearest shown release above one."""
    above = known[version]
    while above is not None and above not in known:
        above = parent(above)
    return above


def _preorder(parents: Mapping[str, str | None]) -> list[str]:
    """Parents first, a branch in one piece; of several branches the one that goes on to the newest release comes last."""
    children: dict[str | None, list[str]] = {}
    own = {version: natural(version) for version in parents}
    newest = dict(own)
    for version in parents:
        above: str | None = version
        while above is not None:
            newest[above] = max(newest[above], own[version])
            above = parents[above]
        children.setdefault(parents[version], []).append(version)
    order: list[str] = []
    stack = sorted(children.get(None, ()), key=newest.__getitem__, reverse=True)
    while stack:
        version = stack.pop()
        order.append(version)
        stack += sorted(children.get(version, ()), key=newest.__getitem__, reverse=True)
    return order


def _runs(
    order: Sequence[str],
    parents: Mapping[str, str | None],
    columns: Mapping[str, tuple[int, ...]],
    checked: Iterable[str],
) -> tuple[Run, ...]:
    """Neighbours in the order that agree and hang together: each but the first descends from one of its own run."""
    checked = set(checked)
    groups: list[list[str]] = []
    home: dict[str, int] = {}
    for version in order:
        parent = parents[version]
        head = groups[-1][0] if groups else ""
        agree = groups and columns[head] == columns[version] and (head in checked) == (version in checked)
        if agree and parent is not None and home[parent] == len(groups) - 1:
            groups[-1].append(version)
        else:
            groups.append([version])
        home[version] = len(groups) - 1
    return tuple(
        Run(tuple(group), home[above] if (above := parents[group[0]]) is not None else None, group[0] in checked)
        for group in groups
    )


def _changes(grid: HeatMap) -> Iterator[Change]:
    changing = [row for row in grid.rows if row.changes]
    for index, run in enumerate(grid.runs):
        above = grid.above(index)
        if run.checked and above is not None:
            for row in changing:
                before, after = row.cells[above], row.cells[index]
                if before != after:
                    yield Change(index, run.first, row.name, before, after, grid.between(row, before, after))


def _renumbered(grid: HeatMap, read: Mapping[str, Release], parents: Mapping[str, str | None]) -> Iterator[Change]:
    """Runs are made by layouts alone, so each release is compared with the nearest checked one above it."""
    numbers = grid.numbers
    for index, run in enumerate(grid.runs):
        for version in run.releases if run.checked else ():
            above = parents[version]
            while above is not None and above not in read:
                above = parents[above]
            if above is None or numbers.states[above] == numbers.states[version]:
                continue
            old, new = (numbers.values[numbers.states[which]] for which in (above, version))
            changed = [name for name, one, other in zip(numbers.names, old, new, strict=True) if one != other]
            found = compare_constants(read[above], read[version], changed)
            yield Change(index, version, "", ABSENT, ABSENT, tuple(found))
