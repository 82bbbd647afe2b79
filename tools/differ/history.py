"""nvproxy-differ history: a struct, field, constant or number over all releases."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from nvproxy_model.tools.command import UNKNOWN, fail
from nvproxy_model.tools.differ.shared import SAME, emit, opened

if TYPE_CHECKING:
    from nvproxy_model.drivers.authority import Change
    from nvproxy_model.drivers.compare.history import History, Query
    from nvproxy_model.tools.differ.shared import Releases


def run(args: argparse.Namespace) -> int:
    """Follow and print; returns the exit status."""
    from nvproxy_model.drivers.compare.history import follow, parse_query, select, wanted_names
    from nvproxy_model.drivers.facts import nearest_names
    from nvproxy_model.drivers.release import Wanted
    from nvproxy_model.tools.differ.shared import parent_of, read_releases, refuse_repeated

    refuse_repeated(args.names)
    queries = [parse_query(name) for name in args.names]
    names = wanted_names(queries)
    wanted = None if names is None else Wanted(names, names)
    with opened(args) as releases:
        if args.since is not None and args.since not in releases.versions:
            fail(
                f"--since {args.since}: no such release; nearest: {', '.join(nearest_names(args.since, releases.versions))}"
            )
        versions = select(releases.versions, lambda v: parent_of(releases, v), args.since, args.branch)
        if not versions:
            fail(f"--branch {args.branch}: no release of that name")
        parents = {version: parent_of(releases, version) for version in releases.versions}
        read = list(read_releases(releases, versions, wanted, args))
        histories = [follow(query, read, parents.get, _names_of(query, releases)) for query in queries]
        may = [_privileges(history, releases, set(versions)) for history in histories]
    unknown = [history.query for history in histories if history.kind == "unknown"]
    report = {
        "schema": "nvproxy-differ/history/1",
        "releases": versions,
        "histories": [
            {**_as_json(history), "privileges": [_change_as_json(change) for change in changes]}
            for history, changes in zip(histories, may, strict=True)
        ],
    }
    shown = zip(histories, may, strict=True)
    emit(args, report, (line for h, changes in shown if h.kind != "unknown" for line in _lines(h, changes)))
    if unknown:
        fail(
            f"{', '.join(q.text for q in unknown)}: in none of {len(versions)} releases{_meant(unknown[0].name, read)}"
        )
    return SAME if histories else UNKNOWN


def _names_of(query: Query, releases: Releases) -> Collection[str] | None:
    """The names among which a number is looked up; None means all."""
    from nvproxy_model.drivers.compare import model
    from nvproxy_model.drivers.facts import Facts

    if query.kind != "number":
        return None
    if query.number < 0x1000:
        return model.names().constants
    return releases.having(query.number) if isinstance(releases, Facts) else None


def _meant(name: str, releases: Any) -> str:
    from difflib import get_close_matches

    from nvproxy_model.naming import natural

    newest = max(releases, key=lambda release: natural(release.version))
    near = get_close_matches(name, [*newest.structs, *newest.constants], 2, 0.8)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _privileges(history: History, releases: Releases, chosen: set[str]) -> list[Change]:
    """Where the privilege for a control's or class's number changes among the chosen releases; only recorded facts know."""
    from nvproxy_model.drivers import authority
    from nvproxy_model.drivers.facts import Facts

    if not isinstance(releases, Facts) or history.kind not in ("number", "constant"):
        return []
    number = history.query.number if history.kind == "number" else history.states[-1]
    for table in ("control", "alloc"):
        changes = authority.changes(releases, table, number, history.query.name or None)
        if any(change.privilege not in (authority.NOT_EXPORTED, authority.DEPRECATED) for change in changes):
            return [change for change in changes if change.version in chosen]
    return []


def _change_as_json(change: Change) -> dict[str, Any]:
    return {
        "release": change.version,
        "parent": change.parent,
        "from": change.before,
        "to": change.privilege,
    }


def _lines(history: History, privileges: list[Change]) -> Iterator[str]:
    from nvproxy_model.drivers import authority
    from nvproxy_model.drivers.compare.history import label
    from nvproxy_model.drivers.render.text import columns

    query = history.query
    states = f"{len(history.states)} state{'s' * (len(history.states) != 1)}"
    yield f"{query.text}: {history.kind}, in {history.present} of {len(history.at)} releases, {states}"
    rows: list[tuple[str, ...]] = [("from", "parent", "state", "what changed")]
    for change in history.changes:
        rows.append((change.version, change.parent or "-", label(change.state), _what(history, change)))
    yield from columns(rows)
    if history.kind == "struct":
        yield from _side_by_side(history)
    else:
        for index, state in enumerate(history.states):
            yield f"{label(index)}: {_value(state)}"
    if privileges:
        yield "who may call it:"
        yield from columns(
            [
                ("from", "parent", "privilege"),
                *((change.version, change.parent or "-", authority.WORDS[change.privilege]) for change in privileges),
            ]
        )
    yield ""


def _what(history: History, change: Any) -> str:
    from nvproxy_model.drivers.compare.history import label

    if change.state < 0:
        return "gone"
    state = history.states[change.state]
    if change.before < 0:
        return f"is there: {_value(state)}"
    if not change.findings:
        return f"{label(change.before)} -> {label(change.state)}: {_value(state)}"
    words = {"field-added": "added", "field-removed": "removed"}
    steps = ((words.get(f.kind, f.class_), f.name.partition(".")[2] or "size", _step(f)) for f in change.findings)
    return "; ".join(" ".join(step).strip() for step in steps)


def _step(finding: Any) -> str:
    if finding.kind == "field-added":
        return f"({finding.next})"
    if finding.kind == "field-removed":
        return ""
    return f"{finding.base} -> {finding.next}"


def _value(state: Any) -> str:
    from nvproxy_model.drivers.compare.findings import Entry, typed
    from nvproxy_model.layout import Layout

    if isinstance(state, Layout):
        return f"{state.kind} of {state.size} bytes, {len(state.fields)} members"
    if isinstance(state, Entry):
        return f"{typed(state.field)} of {state.field.size} bytes at offset {state.offset}"
    if isinstance(state, tuple):
        return ", ".join(state)
    return f"{state:#x}" if state >= 10 else str(state)


def _side_by_side(history: History) -> Iterator[str]:
    from nvproxy_model.drivers.compare.findings import entries, typed
    from nvproxy_model.drivers.compare.history import label
    from nvproxy_model.drivers.render.text import columns

    tables = [{entry.key: entry for entry in entries(layout)} for layout in history.states]
    keys: list[str] = []
    for table in tables:
        position = 0
        for key in table:
            if key in keys:
                position = keys.index(key) + 1
            else:
                keys.insert(position, key)
                position += 1
    rows: list[tuple[str, ...]] = [("offset:size", *(label(i) for i in range(len(tables))), "type")]
    for key in keys:
        cells = [f"{t[key].offset}:{t[key].field.size}" if key in t else "-" for t in tables]
        spellings = list(dict.fromkeys(typed(t[key].field) for t in tables if key in t))
        rows.append((key, *cells, " / ".join(spellings)))
    rows.append(("size", *(str(layout.size) for layout in history.states), ""))
    yield from columns(rows, right=range(1, len(tables) + 1))


def _as_json(history: History) -> dict[str, Any]:
    from nvproxy_model.drivers.compare.history import label

    return {
        "name": history.query.text,
        "kind": history.kind,
        "present": history.present,
        "states": [{"state": label(index), **_state(state)} for index, state in enumerate(history.states)],
        "changes": [
            {
                "release": change.version,
                "parent": change.parent,
                "from": label(change.before),
                "to": label(change.state),
                "findings": [finding.as_json() for finding in change.findings],
            }
            for change in history.changes
        ],
        "releases": {version: label(state) for version, state in history.at.items()},
    }


def _state(state: Any) -> dict[str, Any]:
    from nvproxy_model.drivers.compare.findings import Entry
    from nvproxy_model.layout import Layout
    from nvproxy_model.tools.differ.layout import layout_json, member_json

    if isinstance(state, Layout):
        return layout_json(state)
    if isinstance(state, Entry):
        return member_json(state)
    return {"names": list(state)} if isinstance(state, tuple) else {"value": state}
