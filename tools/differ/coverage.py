"""nvproxy-differ coverage: the classes of a chip, and which of them have no row."""

from __future__ import annotations

import argparse

from nvproxy_model.tools.command import fail
from nvproxy_model.tools.differ.shared import DIFFERENT, SAME, emit, privileges_of


def run(args: argparse.Namespace) -> int:
    """List and print; returns the exit status."""
    from nvproxy_model.drivers import authority
    from nvproxy_model.drivers.render.text import columns

    version, node, found = privileges_of(args)
    if not found.chips:
        fail(f"{version}: its lists of classes by chip hold only those with an engine; from 580.65.06 on they hold all")
    chips = [args.chip] if args.chip else list(found.chips)
    if args.chip and args.chip not in found.chips:
        fail(f"{args.chip}: {version} has no such chip; it has {', '.join(found.chips)}")
    covered = {chip: authority.classes_with_row(found, node, chip) for chip in chips}
    missing = {chip: authority.classes_without_row(found, node, chip) for chip in chips}
    lines = [f"{version}, with the rows of {node}"]
    if args.chip:
        (mine,) = covered.values()
        lines.append(f"{args.chip}: {len(mine)} classes with a row")
        lines.append(f"{len(missing[args.chip])} classes that any user may allocate and that no row has:")
        lines += columns([(f"  {m.number:#x}", m.name or "", m.struct or "no parameters") for m in missing[args.chip]])
    else:
        heads = ("chip", "with a row", "without")
        lines += columns((heads, *((chip, len(covered[chip]), len(missing[chip])) for chip in chips)), right=(1, 2))
    report = {
        "schema": "nvproxy-differ/coverage/1",
        "release": version,
        "listed": node.name,
        "chips": [
            {
                "chip": chip,
                "with_row": [{"number": rule.number, "name": rule.name} for rule in covered[chip]],
                "without_row": [authority.missing_as_json(m) for m in missing[chip]],
            }
            for chip in chips
        ],
    }
    emit(args, report, lines)
    return DIFFERENT if any(missing.values()) else SAME
