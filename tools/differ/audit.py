"""nvproxy-differ audit: fields that carry descriptors, pointers, pids and host addresses."""

from __future__ import annotations

import argparse

from nvproxy_model.tools.command import fail
from nvproxy_model.tools.differ.shared import DIFFERENT, SAME, emit, opened


def run(args: argparse.Namespace) -> int:
    """Audit and print; returns the exit status."""
    from nvproxy_model import versions
    from nvproxy_model.drivers.compare import model
    from nvproxy_model.drivers.compare.audit import Audited, audit_release
    from nvproxy_model.drivers.compare.check import model_release
    from nvproxy_model.drivers.compare.identity import KINDS, Named, named_fields
    from nvproxy_model.drivers.render.text import columns
    from nvproxy_model.tools.differ.shared import parent_of, read_releases

    if args.privilege:
        return _privileges(args)
    rows: dict[Audited, list[str]] = {}
    named: dict[Named, list[str]] = {}
    with opened(args) as releases:
        chosen = [args.driver] if args.driver else [v for v in versions.load() if v in releases.versions]
        if not chosen:
            fail("no release of driver_versions.yaml is in the source: nothing to audit")
        listed = {v: model_release(v, lambda name: parent_of(releases, name)) for v in chosen}
        wanted = None if args.all else model.names()
        for release in read_releases(releases, chosen, wanted, args):
            node = listed[release.version]
            if node is None:
                fail(
                    f"{release.version}: no ancestor of it is in driver_versions.yaml, so there are no tables to audit"
                )
            for audited in audit_release(release, node, args.all):
                rows.setdefault(audited, []).append(release.version)
            for field in named_fields(release, node, args.all):
                named.setdefault(field, []).append(release.version)
    if not rows:
        fail("no such field in any struct: nothing was audited")
    ordered = sorted(rows, key=lambda a: (a.struct, a.offset, a.path, a.type, a.handled))
    bad = [audited for audited in ordered if audited.problem]
    lines = list(
        columns(
            [
                ("struct.field", "offset", "type", "what", "handled", "releases", "known by"),
                *(
                    (
                        f"{a.struct}.{a.path}",
                        a.offset,
                        a.type,
                        a.what,
                        a.handled + (f" [{a.problem}]" if a.problem else ""),
                        len(rows[a]),
                        "; ".join(a.how),
                    )
                    for a in ordered
                ),
            ],
            right=(1, 5),
        )
    )
    structs = len({audited.struct for audited in ordered})
    lines.append(
        f"{len(ordered)} fields of {structs} structs in {len(chosen)} releases; {len(bad)} unclassified or unhandled"
    )
    names = sorted(named, key=lambda n: (KINDS.index(n.what), n.struct, n.offset, n.path))
    table = [("struct.field", "offset", "type", "names", "releases", "note")]
    lines += ["", "fields that name another client, or a GPU (what a restore on other GPUs must translate):"]
    lines += columns(
        [*table, *((f"{n.struct}.{n.path}", n.offset, n.type, n.what, len(named[n]), n.note) for n in names)],
        right=(1, 4),
    )
    lines.append(f"{len(names)} such fields")
    report = {
        "schema": "nvproxy-differ/audit/1",
        "releases": chosen,
        "verdict": "different" if bad else "same",
        "fields": [
            {
                "struct": a.struct,
                "path": a.path,
                "offset": a.offset,
                "type": a.type,
                "what": a.what,
                "how": list(a.how),
                "handled": a.handled,
                "admitted": a.admitted,
                "problem": a.problem,
                "releases": rows[a],
            }
            for a in ordered
        ],
        "named": [
            {
                "struct": n.struct,
                "path": n.path,
                "offset": n.offset,
                "size": n.size,
                "type": n.type,
                "what": n.what,
                "note": n.note,
                "admitted": n.admitted,
                "releases": named[n],
            }
            for n in names
        ],
        "summary": {"fields": len(ordered), "structs": structs, "problems": len(bad), "named": len(names)},
    }
    emit(args, report, lines)
    return DIFFERENT if bad else SAME


def _privileges(args: argparse.Namespace) -> int:
    """Rows that the driver keeps from plain users, and what it gives them that no row has, in one release."""
    from nvproxy_model.drivers import authority
    from nvproxy_model.drivers.names import ever
    from nvproxy_model.drivers.render.text import columns
    from nvproxy_model.tools.differ.shared import privileges_of

    version, node, found = privileges_of(args)
    rows = list(authority.administrator_rows(found, node))
    controls = authority.controls_without_row(found, node, lambda number: ever().name("control", number))
    classes = authority.classes_without_row(found, node, None)
    lines = [f"{version}, with the rows of {node}"]
    many = f"{len(rows)} row{'' if len(rows) == 1 else 's'}"
    lines.append(f"{many} that only more than a plain user of the host may call:")
    lines += (f"  {rule.table} {rule.number:#x} {rule.name}: {authority.WORDS[privilege]}" for rule, privilege in rows)
    lines.append(f"{len(controls)} controls that any user may ask of an admitted class and that no row has:")
    lines += columns(
        (("  number", "name", "handle"), *((f"  {m.number:#x}", m.name or "(no name)", m.handle) for m in controls))
    )
    lines.append(f"{len(classes)} classes that any user may allocate on some chip and that no row has:")
    lines += columns(
        (
            ("  number", "name", "chips"),
            *(
                (f"  {m.number:#x}", m.name or "", authority.chips_in_words(m.chips, found.chips) or "unknown")
                for m in classes
            ),
        )
    )
    report = {
        "schema": "nvproxy-differ/privilege/1",
        "release": version,
        "listed": node.name,
        "flags": dict(found.flags),
        "rows": [
            {"table": rule.table, "number": rule.number, "name": rule.name, "privilege": privilege}
            for rule, privilege in rows
        ],
        "controls_without_row": [authority.missing_as_json(m) for m in controls],
        "classes_without_row": [authority.missing_as_json(m) for m in classes],
    }
    emit(args, report, lines)
    return DIFFERENT if rows else SAME
