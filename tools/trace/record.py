"""nvproxy-trace record: run a program and write down what it asks of the driver."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from nvproxy_model.tools.command import fail
from nvproxy_model.tools.trace.shared import problems
from nvproxy_model.trace.format import printable, require_writer
from nvproxy_model.trace.record import CANNOT_SEE
from nvproxy_model.trace.record.preload import Outcome, hides, record


def run(args: argparse.Namespace) -> int:
    """Run the program; its exit status is ours."""
    output = Path(args.output)
    if output.is_dir():
        fail(f"{printable(args.output)}: is a directory")
    if not output.exists() and not os.access(output.parent, os.W_OK):
        fail(f"{printable(str(output.parent))}: cannot be written to")
    require_writer(output)
    if args.seccomp:
        from nvproxy_model.trace.record.seccomp import record as watch

        try:
            outcome = watch(args.cmd, output, values=args.values, inside=args.inside, driver=args.driver)
        except OSError as error:
            fail(f"{printable(error.filename or args.cmd[0])}: {error.strerror or error}")
    else:
        why = hides(args.cmd[0])
        if why in ("static", "setuid"):
            print(
                f"nvproxy-trace: {printable(args.cmd[0])} is {why}: a preloaded recorder does not see it, --seccomp does",
                file=sys.stderr,
            )
        outcome = record(args.cmd, output, values=args.values, inside=args.inside, driver=args.driver)
    problems(args.output, outcome.problems)
    for line in summary(outcome, args):
        print(f"nvproxy-trace: {line}", file=sys.stderr)
    return outcome.status


def summary(outcome: Outcome, args: argparse.Namespace) -> list[str]:
    """What was seen, and what could not be."""
    seen = outcome.seen
    lines = []
    if not args.quiet:
        count = len(seen.processes)
        lines.append(
            f"{seen.ioctls} ioctls and {seen.opens} opens of {count} process{'' if count == 1 else 'es'}: {printable(args.output)}"
        )
    for what, number in (
        ("calls have no answer in the trace: their process ended first, or it could not be written", seen.unfinished),
        ("calls had memory that could not be read", seen.faults),
        ("calls had parameters over 1 MiB, cut there", seen.truncated),
    ):
        if number:
            lines.append(f"{number} {what}")
    for pid, path in seen.unseen[:10]:
        lines.append(
            f"process {pid} became {printable(path)}, which did not load the recorder (it is static or setuid, or was "
            "started without our environment): its calls are not in the trace"
        )
    if len(seen.unseen) > 10:
        lines.append(f"{len(seen.unseen) - 10} more programs that did not load the recorder")
    if outcome.alive:
        lines.append(f"still running, and not recorded any more: {', '.join(map(str, outcome.alive[:10]))}")
    if not args.quiet:
        lines.append("not seen: 32-bit system calls; answers" if args.seccomp else f"cannot be seen: {CANNOT_SEE}")
    return lines
