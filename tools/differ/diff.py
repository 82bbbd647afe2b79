"""nvproxy-differ diff: what changed between two releases of the driver."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from nvproxy_model.tools.command import fail
from nvproxy_model.tools.differ.shared import DIFFERENT, SAME, emit, opened

if TYPE_CHECKING:
    from nvproxy_model.drivers.compare.scope import Scoped
    from nvproxy_model.tools.differ.shared import Releases


def run(args: argparse.Namespace) -> int:
    """Compare and print; returns the exit status."""
    from nvproxy_model.drivers.compare.findings import different, verdict
    from nvproxy_model.drivers.render.text import diff_lines

    with opened(args) as releases:
        scoped = compared(releases, args.base, args.next, args.scope, args)
    findings = {
        "interpreted": scoped.deciding,
        "model": tuple(f for f in scoped.findings if scoped.scope.of(f) != "other"),
        "all": scoped.findings,
    }[args.scope]
    report = {
        "schema": "nvproxy-differ/diff/2",
        "base": args.base,
        "next": args.next,
        "verdict": "different" if different(findings) else "same",
        "change": verdict(findings),
        "scope": args.scope,
        "compared": scoped.counts(),
        "findings": [{**finding.as_json(), "scope": scoped.scope.of(finding)} for finding in findings],
    }
    emit(args, report, diff_lines(args.base, args.next, findings, f"{counted(scoped)}", args.scope))
    return DIFFERENT if different(findings) else SAME


def counted(scoped: Scoped) -> str:
    """How much was compared, by scope, as a line says it."""
    counts = scoped.counts()["by_scope"]
    read, passed, other = counts["interpreted"], counts["passed on"], counts["other"]
    text = f"{read['structs']} structs and {read['constants']} constants that nvproxy interprets"
    text += f", {passed['structs']} structs that it passes on"
    if other["structs"] or other["constants"]:
        text += f", {other['structs']} structs and {other['constants']} constants that it does not use"
    return f"{text} ({scoped.comparison.headers} headers)"


def compared(releases: Releases, base: str, following: str, scope: str, args: argparse.Namespace) -> Scoped:
    """Two releases compared, or the end of the program for a mistake.

    Over the model's names at ``base`` for the scope ``interpreted``, else over its names at any release, or ``all`` names.
    """
    from nvproxy_model.drivers.compare.check import model_release
    from nvproxy_model.drivers.compare.scope import compare_scoped, scope_at
    from nvproxy_model.tools.differ.shared import parent_of, read_releases

    for name in (base, following):
        if not name.strip():
            fail("VERSION: an empty name")
    if base == following:
        fail(f"{base}: BASE and NEXT are the same release; name two")
    wanted = None if scope == "all" else scope_at(None).wanted
    old, new = read_releases(releases, [base, following], wanted, args)
    listed = model_release(base, lambda name: parent_of(releases, name)) if scope == "interpreted" else None
    scoped = compare_scoped(old, new, listed, everything=scope == "all")
    if not scoped.comparison.structs and not scoped.comparison.constants:
        fail(f"{base} and {following}: nothing to compare: neither has a name that the model uses")
    return scoped
