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
    from nvproxy_model.drivers.render.text import columns
    from nvproxy_model.tools.differ.shared import parent_of, read_releases

    rows: dict[Audited, list[str]] = {}
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
        "summary": {"fields": len(ordered), "structs": structs, "problems": len(bad)},
    }
    emit(args, report, lines)
    return DIFFERENT if bad else SAME
