"""nvproxy-trace replay: the recorded calls through this model's session."""

from __future__ import annotations

import argparse
from typing import Any

from nvproxy_model import caps as capabilities
from nvproxy_model.policy.policy import PROFILES, Policy
from nvproxy_model.tools.trace.shared import (
    ADMITTED,
    DIFFERENT,
    UNKNOWN,
    bold,
    choose_driver,
    dump,
    fail,
    problems,
    watched,
)
from nvproxy_model.trace.decode.catalog import Catalog
from nvproxy_model.trace.format import printable
from nvproxy_model.trace.judge.replay import Replay
from nvproxy_model.trace.reader import Reader

SCHEMA = "nvproxy-trace/replay/1"


def add_parser(subparsers: Any) -> None:
    """The arguments."""
    parser = subparsers.add_parser(
        "replay",
        help="the recorded calls through a session whose host answers what was recorded",
        description="Run a trace through a Session with a Host that answers from the recording. A divergence is "
        "a call that the policy admits and "
        "whose answer, returned bytes or objects differ from what the program saw.",
        epilog="exit status: 0 no divergence, 1 some, 2 could not tell.\n\nexamples:\n  nvproxy-trace replay "
        "run.jsonl.zst\n  nvproxy-trace replay run.jsonl.zst --caps compute,utility --json\n",
    )
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("--driver", metavar="V")
    parser.add_argument(
        "--caps", default="all", metavar="C", help="driver capabilities; all: every one that nvproxy supports (default)"
    )
    parser.add_argument("--profile", choices=PROFILES, default="gvisor")
    parser.add_argument("--json", action="store_true", help=f"one document with schema {SCHEMA}")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Replay the trace."""
    catalog = Catalog(choose_driver(args.file, args.driver))
    caps = capabilities.SUPPORTED if args.caps == "all" else args.caps
    try:
        policy = Policy.for_driver(catalog.node.name, caps, profile=args.profile, allow_unsupported=True)
    except ValueError as error:
        fail(f"--caps: {error}")
    reader = Reader(args.file)
    replay = Replay(policy)
    replay.feed(watched(reader))
    summary = replay.finish()
    if args.json:
        steps = {"refused": replay.refused, "expected": replay.expected, "divergences": replay.divergences}
        lists = {name: [step.as_json() for step in listed] for name, listed in steps.items()}
        dump(
            {
                "schema": SCHEMA,
                "file": args.file,
                "notes": catalog.notes,
                "summary": summary,
                **lists,
                "complete": reader.complete,
            }
        )
    else:
        for note in catalog.notes:
            print(f"# {note}")
        for title, listed in (
            ("refused, then treated as the program saw them", replay.refused),
            ("refused where the host refused too, with another answer (expected)", replay.expected),
            ("divergences", replay.divergences),
        ):
            if listed:
                print(bold(title))
            for step in listed:
                print(f"  line {step.line}: {step.kind} {step.number:#x}: {printable(step.text)}")
        print(
            f"{summary['calls']} calls, {summary['refused']} refused, {summary['expected']} expected, "
            f"{summary['skipped']} whose bytes the trace does not hold; supplied: {summary['supplied']['descriptors']} "
            f"descriptors, memory for {summary['supplied']['memory']} calls; left: {summary['objects']} objects, "
            f"{summary['descriptors']} descriptors; {summary['divergences']} divergences"
        )
    problems(args.file, reader.problems)
    if replay.divergences:
        return DIFFERENT
    return ADMITTED if reader.complete and not summary["skipped"] else UNKNOWN
