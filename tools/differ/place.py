"""nvproxy-differ place: where a release that the table lacks belongs, and what it needs."""

from __future__ import annotations

import argparse

from nvproxy_model.tools.command import fail
from nvproxy_model.tools.differ.shared import DIFFERENT, SAME, emit, opened


def run(args: argparse.Namespace) -> int:
    """Place and print; returns the exit status."""
    from nvproxy_model import versions
    from nvproxy_model.drivers.compare import model
    from nvproxy_model.drivers.compare.check import check_release, model_release
    from nvproxy_model.drivers.compare.placement import adopted, node_line, row_edits, struct_edits
    from nvproxy_model.drivers.render.text import finding_lines
    from nvproxy_model.tools.differ.shared import parent_of, release_of

    version = args.version
    with opened(args) as releases:
        release = release_of(releases, version, model.names(), args)

        def parent(name: str) -> str | None:
            return parent_of(releases, name)

        known = versions.load()
        above = parent(version)
        there = known.get(version)
        if there is not None:
            # What it needed: the tables of its parent, compared with it.
            listed = there.parent.name if there.parent is not None else version
        else:
            listed = model_release(above or "", parent) or ""
        if not listed:
            fail(f"{version}: no ancestor of it is in driver_versions.yaml; the table begins at {next(iter(known))}")
        checked = check_release(release, listed)
        children = [] if there else adopted(version, listed, parent)
    same = checked.status == "same"
    structs = [] if same else list(struct_edits(version, checked, release))
    rows = [] if same else list(row_edits(version, checked.findings, listed))
    counts = f"{checked.headers} headers, {checked.structs} structs, {checked.constants} constants compared"
    lines = []
    if there is not None:
        lines.append(
            f"{version} is in driver_versions.yaml already, {'at the root' if listed == version else 'below ' + listed}"
        )
        lines.append(
            "what it needed of the tables of its parent:" if listed != version else "the table begins with it:"
        )
    else:
        chain = "" if above == listed else f" (its own parent, {above}, is not listed)"
        lines.append(f"{version}: nearest listed ancestor {listed}{chain}")
        lines += ["driver_versions.yaml:", node_line(version, listed)]
        lines += [f'  "{child}": its parent becomes "{version}"' for child in children]
    lines.append(f"{'identical' if same else 'different'} in what nvproxy interprets ({counts})")
    lines += [f"  {line}" for line in finding_lines(checked.findings)]
    lines += ["members (new ones may carry an fd or a pointer: give them a role):", *structs] if structs else []
    lines += ["rows:", *rows] if rows else []
    report = {
        "schema": "nvproxy-differ/place/1",
        "version": version,
        "parent": above,
        "listed": listed,
        "children": children,
        "verdict": checked.status,
        "compared": {"headers": checked.headers, "structs": checked.structs, "constants": checked.constants},
        "findings": [finding.as_json() for finding in checked.findings],
        "yaml": None if there is not None else node_line(version, listed).strip(),
        "members": structs,
        "rows": rows,
    }
    emit(args, report, lines)
    return SAME if same else DIFFERENT
