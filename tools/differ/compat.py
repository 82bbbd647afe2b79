"""nvproxy-differ compat: may one release stand in for another?"""

from __future__ import annotations

import argparse

from nvproxy_model import versions
from nvproxy_model.tools.differ.diff import compared, counted
from nvproxy_model.tools.differ.shared import DIFFERENT, SAME, emit, opened

_SHOWN = 5
"""Findings that the text shows of each group; ``diff`` shows all."""


def run(args: argparse.Namespace) -> int:
    """Compare and print; returns the exit status."""
    from nvproxy_model.drivers.compare.findings import verdict
    from nvproxy_model.drivers.compare.scope import gravest_first

    with opened(args) as releases:
        absent = [version for version in (args.a, args.b) if version not in releases.versions]
        if absent and not args.source and not args.all and all(v in versions.load() for v in (args.a, args.b)):
            return _by_the_model(args, absent)
        scoped = compared(releases, args.a, args.b, "all" if args.all else "interpreted", args)
    everything = gravest_first([*scoped.deciding, *scoped.rest])
    deciding, rest = (everything, ()) if args.all else (scoped.deciding, scoped.rest)
    change = verdict(deciding)
    yes = change != "breaking"
    what = "no ABI change" if change == "none" else f"{change} changes"
    scope = "in all names" if args.all else "in what nvproxy interprets"
    lines = [f"{'yes' if yes else 'no'}: {args.a} and {args.b}: {what} {scope}"]
    if yes:
        lines.append(f"a sandbox that lists {args.a} and not {args.b} can treat the host as {args.a}")
    lines += [f"  {finding.class_}: {finding.name}: {finding.detail}" for finding in deciding[:_SHOWN]]
    if len(deciding) > _SHOWN:
        lines.append(f"  and {len(deciding) - _SHOWN} more")
    if rest:
        lines.append(f"passed on, and not decisive ({len(rest)}; none gains an fd, a pointer or a pid):")
        lines += [f"  {finding.class_}: {finding.name}: {finding.detail}" for finding in rest[:_SHOWN]]
        if len(rest) > _SHOWN:
            lines.append(f"  and {len(rest) - _SHOWN} more")
    lines.append(f"compared: {counted(scoped)}")
    if deciding or rest:
        lines.append(f"all of it: nvproxy-differ diff {args.a} {args.b} --scope {'all' if args.all else 'model'}")
    report = {
        "schema": "nvproxy-differ/compat/1",
        "a": args.a,
        "b": args.b,
        "compatible": yes,
        "change": change,
        "scope": "all" if args.all else "interpreted",
        "compared": scoped.counts(),
        "findings": len(deciding) + len(rest),
        "deciding": [finding.as_json() for finding in deciding],
        "rest": [finding.as_json() for finding in rest],
    }
    emit(args, report, lines)
    return SAME if yes else DIFFERENT


def _by_the_model(args: argparse.Namespace, absent: list[str]) -> int:
    """Two listed releases of which one is not in our facts: nvproxy's own equalities are all there is to go by."""
    from nvproxy_model.drivers import evidence
    from nvproxy_model.drivers.compare.check import CheckedRelease
    from nvproxy_model.drivers.compare.findings import verdict
    from nvproxy_model.drivers.compare.nodes import compare_nodes, compared_nodes
    from nvproxy_model.drivers.facts import AS_OF, load

    findings = compare_nodes(args.a, args.b)
    change = verdict(findings)
    yes = change != "breaking"
    what = "no change" if change == "none" else f"{change} changes"
    lines = [
        f"{'yes' if yes else 'no'}, as far as the model goes: {args.a} and {args.b}: {what} of its rows and structs"
    ]
    lines.append(f"not in our facts, which are of {AS_OF}: {', '.join(absent)}; no header was compared")
    lines += [f"  {finding.class_}: {finding.name}: {finding.detail}" for finding in findings]
    weaker: list[CheckedRelease] = []
    for version in absent:
        table = evidence.independent().get(version)
        if table is not None:
            facts = load()
            before = next((name for name in versions.load()[table.model].lineage if name in facts), None)
            checked = evidence.check_independent(table, None if before is None else facts.release(before))
            weaker.append(checked)
            lines.append(f"independent table of {version}: {checked.status}: {checked.reason}")
    lines.append(f"compared: {compared_nodes(args.b)}")
    report = {
        "schema": "nvproxy-differ/compat/1",
        "a": args.a,
        "b": args.b,
        "compatible": yes,
        "change": change,
        "scope": "model",
        "not_recorded": absent,
        "compared": compared_nodes(args.b),
        "findings": len(findings),
        "deciding": [finding.as_json() for finding in findings],
        "rest": [],
        "independent": [checked.as_json() for checked in weaker],
    }
    emit(args, report, lines)
    return SAME if yes and not any(checked.status == "different" for checked in weaker) else DIFFERENT
