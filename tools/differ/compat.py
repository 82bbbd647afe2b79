"""nvproxy-differ compat: may one release stand in for another?"""

from __future__ import annotations

import argparse
from typing import Any

from nvproxy_model.tools.differ.shared import DIFFERENT, SAME, add_format, add_source, add_subparser, emit, opened

EXAMPLES = """\
  nvproxy-differ compat 570.195.03 570.211.01
  nvproxy-differ compat 535.161.07 535.161.08 --all"""


def add_parser(subparsers: Any) -> None:
    """Declare the subcommand."""
    parser = add_subparser(
        subparsers,
        "compat",
        "yes or no: is the ABI of two releases the same for the model?",
        "Answers whether a sandbox that knows release A may run release B as A: over the names that the model uses, only "
        "other spellings of types and new names differ.",
        EXAMPLES,
    )
    parser.add_argument("a", metavar="A")
    parser.add_argument("b", metavar="B")
    add_source(parser)
    parser.add_argument("--all", action="store_true", help="over every struct and constant of the headers")
    add_format(parser, "nvproxy-differ/compat/1")
    parser.set_defaults(func=run)


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
