"""nvproxy-differ compat: may one release stand in for another?"""

from __future__ import annotations

import argparse

from nvproxy_model.tools.differ.shared import DIFFERENT, SAME, emit, opened


def run(args: argparse.Namespace) -> int:
    """Compare and print; returns the exit status."""
    from nvproxy_model.tools.differ.diff import compare

    with opened(args) as releases:
        comparison = compare(releases, args.a, args.b, args.all, args)
    yes = comparison.verdict != "breaking"
    counts = f"{comparison.headers} headers, {comparison.structs} structs, {comparison.constants} constants compared"
    change = "no ABI change" if comparison.verdict == "none" else f"{comparison.verdict} changes"
    lines = [f"{'yes' if yes else 'no'}: {args.a} and {args.b}: {change} ({counts})"]
    if yes:
        lines.append(f"a sandbox that lists {args.a} and not {args.b} can treat the host as {args.a}")
    else:
        gravest = comparison.findings[:5]
        lines += [f"  {finding.class_}: {finding.name}: {finding.detail}" for finding in gravest]
        lines.append(f"see: nvproxy-differ diff {args.a} {args.b}{' --all' if args.all else ''}")
    report = {
        "schema": "nvproxy-differ/compat/1",
        "a": args.a,
        "b": args.b,
        "compatible": yes,
        "change": comparison.verdict,
        "compared": {"headers": comparison.headers, "structs": comparison.structs, "constants": comparison.constants},
        "findings": len(comparison.findings),
    }
    emit(args, report, lines)
    return SAME if yes else DIFFERENT
