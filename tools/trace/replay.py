"""nvproxy-trace replay: the recorded calls through this model's session."""

from __future__ import annotations

import argparse

from nvproxy_model import caps as capabilities
from nvproxy_model.policy.policy import Policy
from nvproxy_model.printable import printable
from nvproxy_model.tools.command import UNKNOWN, fail
from nvproxy_model.tools.output import bold, print_json, progress
from nvproxy_model.tools.trace.shared import ADMITTED, DIFFERENT, Files, problems
from nvproxy_model.trace.decode.catalog import Catalog
from nvproxy_model.trace.judge.replay import Replay

SCHEMA = "nvproxy-trace/replay/1"


def run(args: argparse.Namespace) -> int:
    """Replay the trace."""
    with Files(args.files, args.log) as files:
        return _replay(args, files)


def _replay(args: argparse.Namespace, files: Files) -> int:
    catalog = Catalog(files.driver(args.driver))
    caps = capabilities.SUPPORTED if args.caps == "all" else args.caps
    try:
        policy = Policy.for_driver(catalog.node.name, caps, profile=args.profile, allow_unsupported=True)
    except ValueError as error:
        fail(f"--caps: {error}")
    reader = files.open()
    replay = Replay(policy)
    replay.feed(progress(reader))
    summary = replay.finish()
    if args.format == "json":
        steps = {"refused": replay.refused, "expected": replay.expected, "divergences": replay.divergences}
        lists = {name: [step.as_json() for step in listed] for name, listed in steps.items()}
        print_json(
            {
                "schema": SCHEMA,
                "file": files.shown,
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
    problems(files.shown, reader.problems)
    if replay.divergences:
        return DIFFERENT
    return ADMITTED if reader.complete and not summary["skipped"] else UNKNOWN
