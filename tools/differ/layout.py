"""nvproxy-differ layout: a struct as offsets, sizes, holes and roles, or as C."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nvproxy_model.tools.command import fail
from nvproxy_model.tools.differ.shared import SAME, emit, opened

if TYPE_CHECKING:
    from nvproxy_model.drivers.compare.findings import Entry
    from nvproxy_model.layout import Layout


def run(args: argparse.Namespace) -> int:
    """Look up and print; returns the exit status."""
    from difflib import get_close_matches

    from nvproxy_model.drivers.release import Wanted
    from nvproxy_model.drivers.render.declaration import declaration
    from nvproxy_model.naming import natural
    from nvproxy_model.tools.differ.shared import parent_of, release_of

    with opened(args) as releases:
        version = args.driver or max(releases.versions, key=natural)
        names = frozenset({args.name})
        release = release_of(releases, version, Wanted(names, names), args)
        layout = release.structs.get(args.name)
        if layout is None:
            near = get_close_matches(args.name, list(release.structs), 3, 0.8)
            fail(f"{args.name}: no such struct in {version}" + (f"; did you mean {' or '.join(near)}?" if near else ""))
        roles = _roles(args.name, version, lambda name: parent_of(releases, name))
    if args.format == "c":
        print(declaration(layout), end="")
        return SAME
    report = {
        "schema": "nvproxy-differ/layout/1",
        "driver": version,
        "name": args.name,
        **layout_json(layout, roles),
    }
    emit(args, report, _lines(args.name, version, layout, roles))
    return SAME


def _roles(name: str, version: str, parent: Any) -> dict[str, str]:
    """Dotted path -> what the field means, where the model or the curated list says."""
    from nvproxy_model.drivers.compare import model
    from nvproxy_model.drivers.compare.carriers import CURATED
    from nvproxy_model.drivers.compare.check import model_release

    roles = {entry.path: f"{entry.what}: {entry.function}" for entry in CURATED if entry.struct == name}
    listed = model_release(version, parent)
    record = model.record_at(listed, name) if listed else None
    if record is not None:
        for path, member in model.roles(record):
            if member.role is not None:
                curated = roles.get(path)
                roles[path] = type(member.role).__name__ + (f" ({curated})" if curated else "")
    return roles


def member_json(entry: Entry, roles: dict[str, str] | None = None) -> dict[str, Any]:
    """A member as the schemas layout/1 and history/1 state it."""
    field = entry.field
    found: dict[str, Any] = {
        "path": entry.path,
        "offset": entry.offset,
        "size": field.size,
        "type": field.type,
        "base": field.base,
        "dims": list(field.dims),
    }
    if roles is not None:
        found["role"] = roles.get(entry.path) or roles.get(entry.key)
    return found


def layout_json(layout: Layout, roles: dict[str, str] | None = None) -> dict[str, Any]:
    """A layout as the schemas layout/1 and history/1 state it."""
    from nvproxy_model.drivers.compare.findings import entries
    from nvproxy_model.drivers.render.declaration import picture

    return {
        "kind": layout.kind,
        "size": layout.size,
        "align": layout.align,
        "members": [member_json(entry, roles) for entry in entries(layout)],
        "holes": [
            {"path": path, "offset": offset, "size": size}
            for path, offset, size, field in picture(layout)
            if field is None
        ],
    }


def _lines(name: str, version: str, layout: Layout, roles: dict[str, str]) -> Iterator[str]:
    from nvproxy_model.drivers.render.declaration import picture
    from nvproxy_model.drivers.render.text import columns

    yield f"{layout.kind} {name}, {version}: {layout.size} bytes, aligned to {layout.align}"
    rows: list[tuple[object, ...]] = [("offset", "size", "member", "type", "role")]
    for path, offset, size, field in picture(layout):
        spelled = "" if field is None else field.type + "".join(f"[{length}]" for length in field.dims)
        role = roles.get(path) or roles.get(re.sub(r"<\w+@\d+>\.", "", path)) or ""
        rows.append((offset, size, path, spelled, role))
    yield from columns(rows, right=(0, 1))
