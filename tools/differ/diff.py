"""nvproxy-differ diff: what changed between two releases of the driver."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from nvproxy_model.tools.command import fail
from nvproxy_model.tools.differ.shared import DIFFERENT, SAME, emit, opened

if TYPE_CHECKING:
    from nvproxy_model.tools.differ.shared import Releases


def run(args: argparse.Namespace) -> int:
    """Compare and print; returns the exit status."""
    from nvproxy_model.drivers.render.text import diff_lines

    with opened(args) as releases:
        comparison = compare(releases, args.base, args.next, args.all, args)
    report = {
        "schema": "nvproxy-differ/diff/2",
        "base": comparison.base,
        "next": comparison.next,
        "verdict": "different" if comparison.different else "same",
        "change": comparison.verdict,
        "scope": "all" if args.all else "model",
        "compared": {"headers": comparison.headers, "structs": comparison.structs, "constants": comparison.constants},
        "findings": [finding.as_json() for finding in comparison.findings],
    }
    emit(args, report, diff_lines(comparison, "all names" if args.all else "names that the model uses"))
    return DIFFERENT if comparison.different else SAME


def compare(releases: Releases, base: str, following: str, everything: bool, args: argparse.Namespace) -> Any:
    """Two releases compared, or the end of the program for a mistake."""
    from nvproxy_model.drivers.compare.carriers import fd_paths
    from nvproxy_model.drivers.compare.findings import compare_releases
    from nvproxy_model.tools.differ.shared import read_releases

    for name in (base, following):
        if not name.strip():
            fail("VERSION: an empty name")
    if base == following:
        fail(f"{base}: BASE and NEXT are the same release; name two")
    wanted = None
    if not everything:
        from nvproxy_model.drivers.compare import model

        wanted = model.names()
    old, new = read_releases(releases, [base, following], wanted, args)
    structs, constants = (None, None) if wanted is None else (wanted.structs, wanted.constants)
    comparison = compare_releases(old, new, structs, constants, fd_paths())
    if not comparison.structs and not comparison.constants:
        fail(f"{base} and {following}: nothing to compare: neither has a name that the model uses")
    return comparison
