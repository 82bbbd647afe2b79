"""What has to be parsed for the names that somebody asks for, in parts that releases share.

A part is the headers that declare some of the names, with all that those can include. Releases in which these are the
same share what was parsed of it, so that a release costs what is new in it. Headers that declare the same name are one
part, since the compiler has to see which of them counts.

A header is read with what it includes, after those that every unit begins with. One that does not parse like this, because
it relies on others before it, is read after all the others of its release: see `Unit.whole`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nvproxy_model.drivers.parsing import scan
from nvproxy_model.drivers.release import Wanted

__all__ = ["Part", "Unit", "parts", "unit"]


@dataclass(frozen=True, slots=True)
class Part:
    """Headers to start with, the names asked for that they may declare, and path -> blob of all that they can include.

    Equal parts have equal answers.
    """

    starts: frozenset[str]
    names: frozenset[str]
    files: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """What one parser is asked at once, for the first release that needs it."""

    version: str
    files: Mapping[str, str]
    """Path -> blob."""
    starts: tuple[str, ...] | None
    """The headers to start with; None: all that declare the ABI."""
    wanted: Wanted | None
    all_files: Mapping[str, str]
    """All headers of the release."""

    def whole(self) -> Unit:
        """The same question to all headers of the release."""
        return replace(self, files=self.all_files, starts=None)


def parts(
    headers: scan.Headers, asked: Mapping[str, frozenset[bytes]], said: Mapping[str, scan.Said], wanted: Wanted
) -> list[Part]:
    """The parts of a release. ``asked`` are the names asked for that a header may declare, by path."""
    files, includes = headers
    starts = _starts(scan.roots(files, wanted.modeset), asked, includes)
    found = []
    for group in _groups(starts):
        names = frozenset(name.decode() for path in group for name in starts[path])
        closed = _reach({*group, scan.TYPES} & files.keys(), includes)
        if any(said[path].uses_status for path in closed):
            closed |= _reach({scan.STATUS} & files.keys(), includes)
        found.append(Part(frozenset(group), names, frozenset((path, files[path]) for path in closed)))
    if scan.EMBEDDED in files:
        found.append(Part(frozenset(), frozenset(), frozenset([(scan.EMBEDDED, files[scan.EMBEDDED])])))
    return found


def unit(version: str, files: Mapping[str, str], some: Sequence[Part], wanted: Wanted) -> Unit:
    """One unit for some parts of a release."""
    own = dict(pair for part in some for pair in part.files)
    starts = {path for part in some for path in part.starts} | (scan.FIRST & own.keys())
    names = {name for part in some for name in part.names}
    asked = Wanted(wanted.structs & names, wanted.constants & names)
    ordered = (path for path in scan.roots(files, wanted.modeset) if path in starts)
    return Unit(version, own, tuple(ordered), asked, files)


def _starts(
    roots: Sequence[str], asked: Mapping[str, frozenset[bytes]], includes: Mapping[str, Sequence[str]]
) -> dict[str, frozenset[bytes]]:
    """Header that declares the ABI -> the names that it, or a header which is only included, may declare."""
    found = {path: asked[path] for path in roots if path in asked}
    for inner in asked.keys() - set(roots):
        above, fresh = {inner}, {inner}
        while fresh:
            fresh = {path for path, below in includes.items() if not fresh.isdisjoint(below)} - above
            above |= fresh
        including = above.intersection(roots)
        for path in (including & scan.FIRST) or including:
            found[path] = found.get(path, frozenset()) | asked[inner]
    return found


def _groups(starts: Mapping[str, frozenset[bytes]]) -> Iterable[set[str]]:
    """The headers, those together that have a name in common."""
    group_of: dict[bytes, set[str]] = {}
    for path, names in starts.items():
        group = {path}.union(*(group_of[name] for name in names if name in group_of))
        for name in {name for member in group for name in starts[member]}:
            group_of[name] = group
    return {id(group): group for group in group_of.values()}.values()


def _reach(starts: Iterable[str], includes: Mapping[str, Sequence[str]]) -> set[str]:
    found = set(starts)
    pending = list(found)
    while pending:
        for path in includes[pending.pop()]:
            if path not in found:
                found.add(path)
                pending.append(path)
    return found
