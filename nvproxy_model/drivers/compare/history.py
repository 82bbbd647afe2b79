"""One struct, field, constant or number over many releases, by ancestry: where each of its states begins."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nvproxy_model.drivers.compare.carriers import fd_paths
from nvproxy_model.drivers.compare.findings import Entry, Finding, compare_layouts, entries
from nvproxy_model.drivers.release import Release
from nvproxy_model.layout import Layout

__all__ = ["Change", "History", "Kind", "Query", "follow", "label", "parse_query", "select", "wanted_names"]


Kind = Literal["struct", "field", "constant", "number", "unknown"]
"""What was followed."""


@dataclass(frozen=True, slots=True)
class Query:
    """What to follow. A ``name`` is a struct's or a constant's."""

    text: str
    kind: Literal["name", "field", "number"]
    name: str = ""
    path: str = ""
    number: int = 0


def parse_query(text: str) -> Query:
    """A name, a struct and the dotted path of a field, or a number in C's notation."""
    if re.fullmatch(r"0[xX][0-9a-fA-F]+|[0-9]+", text):
        return Query(text, "number", number=int(text, 0) if text[:2].lower() == "0x" else int(text))
    name, _, path = text.partition(".")
    return Query(text, "field" if path else "name", name, path)


def wanted_names(queries: Iterable[Query]) -> frozenset[str] | None:
    """The names to ask a source for; None if a number is among the queries, which may have any name."""
    queries = list(queries)
    return None if any(q.kind == "number" for q in queries) else frozenset(q.name for q in queries)


@dataclass(frozen=True, slots=True)
class Change:
    """A release in which a state begins that its parent does not have. ``state`` indexes History.states, -1 is absence."""

    version: str
    parent: str | None
    before: int
    state: int
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class History:
    """``kind`` is ``unknown`` where no release has it.

    ``states`` are the distinct values: a Layout, a field's Entry, an integer, or the names that a number has.
    """

    query: Query
    kind: Kind
    states: tuple[Any, ...]
    at: Mapping[str, int]
    """Release -> its state, in the releases' order."""
    changes: tuple[Change, ...]

    @property
    def present(self) -> int:
        """How many releases have it."""
        return sum(state >= 0 for state in self.at.values())


def label(state: int) -> str:
    """A state's letter: A, B, ... Z, AA, ...; ``-`` for absence."""
    if state < 0:
        return "-"
    text = ""
    state += 1
    while state:
        state, digit = divmod(state - 1, 26)
        text = chr(65 + digit) + text
    return text


def select(
    versions: Sequence[str], parent: Callable[[str], str | None], since: str | None, branch: str | None
) -> list[str]:
    """The releases asked for: ``since`` and what descends from it; a ``branch`` is a release with its ancestors, or all
    releases whose name begins with it (570)."""
    chosen = list(versions)
    if branch is not None:
        if branch in versions:
            line = set(_line(branch, parent))
            chosen = [version for version in chosen if version in line]
        else:
            chosen = [
                version for version in chosen if version == branch or version.startswith(branch.rstrip(".") + ".")
            ]
    if since is not None:
        chosen = [version for version in chosen if since in set(_line(version, parent))]
    return chosen


def _line(version: str, parent: Callable[[str], str | None]) -> Iterator[str]:
    at: str | None = version
    seen: set[str] = set()
    while at is not None and at not in seen:
        seen.add(at)
        yield at
        at = parent(at)


def follow(
    query: Query, releases: Iterable[Release], parent: Callable[[str], str | None], known: Iterable[str] | None = None
) -> History:
    """Follow one query over releases, a parent before its children. ``known`` are the names that a number may have; all
    constants of a release if it is None."""
    numbered = None if known is None else frozenset(known)
    states: list[Any] = []
    at: dict[str, int] = {}
    changes: list[Change] = []
    kind: Kind = "unknown"
    for release in releases:
        found_kind, value, key = _value(query, release, numbered)
        state = -1
        if value is not None:
            kind = found_kind
            state = next((i for i, (_, other) in enumerate(states) if other == key), len(states))
            if state == len(states):
                states.append((value, key))
        at[release.version] = state
        above = next((v for v in _line(release.version, parent) if v in at and v != release.version), None)
        before = at[above] if above is not None else -1
        if state != before:
            findings = _findings(query, states, before, state)
            changes.append(Change(release.version, above, before, state, findings))
    return History(query, kind, tuple(value for value, _ in states), at, tuple(changes))


def _value(query: Query, release: Release, known: frozenset[str] | None) -> tuple[Kind, Any, Any]:
    if query.kind == "number":
        names = tuple(
            name
            for name in (release.constants if known is None else known)
            if release.constants.get(name) == query.number and not name.endswith("_MESSAGE_ID")
        )
        return "number", tuple(sorted(names)) or None, tuple(sorted(names))
    layout = release.structs.get(query.name)
    if query.kind == "field":
        entry = None if layout is None else find_entry(layout, query.path)
        return "field", entry, None if entry is None else entry.shape
    if layout is not None:
        return "struct", layout, layout
    value = release.constants.get(query.name)
    return "constant", value, value


def find_entry(layout: Layout, path: str) -> Entry | None:
    """The member at a dotted path, with or without its anonymous members."""
    plain = re.sub(r"\[\d*\]", "[]", path)
    for entry in entries(layout):
        if plain in (entry.path, entry.key, entry.key.replace("[]", "")):
            return entry
    return None


def _findings(query: Query, states: list[Any], before: int, state: int) -> tuple[Finding, ...]:
    if before < 0 or state < 0 or not isinstance(states[state][0], Layout):
        return ()
    return tuple(compare_layouts(query.name, states[before][0], states[state][0], fd_paths().get(query.name, ())))
