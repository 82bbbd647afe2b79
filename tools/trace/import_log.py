"""nvproxy-trace import: logs that people already have, as a trace."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from nvproxy_model.tools.command import UNKNOWN, fail
from nvproxy_model.tools.output import progress
from nvproxy_model.tools.trace.shared import ADMITTED, problems
from nvproxy_model.trace import format as fmt
from nvproxy_model.trace.format import Header, printable, writing
from nvproxy_model.trace.logs.kinds import Import
from nvproxy_model.trace.reader import Problems
from nvproxy_model.trace.record import mapped, spool
from nvproxy_model.trace.record.preload import Outcome, convert
from nvproxy_model.trace.study.era import infer, sized


def run(args: argparse.Namespace) -> int:
    """Import the log."""
    if args.kind == "spool" or (args.kind is None and args.file != "-" and _is_spool(Path(args.file))):
        return _spool(args)
    source = Import(args.file, kind=args.kind)
    records = iter(progress(source))
    first = next(records, None)
    if first is None and source.problems.count == 0:
        fail(f"{printable(args.file)}: no call on an NVIDIA device in it")
    requests: set[tuple[int, int]] = set()
    kinds: Counter[str] = Counter()
    head = Header(driver=args.driver or source.driver, recorder=source.kind, inside=source.inside)
    with writing(args.output, head) as writer:
        for line, obj in enumerate(_chain(first, records), 1):
            writer.put(obj)
            rec = fmt.record(obj, line)
            kinds[rec.kind or rec.k] += 1
            found = sized(rec)
            if found is not None and len(requests) < 4096:
                requests.add(found)
        writer.lose(source.problems)
    problems(args.file, source.problems)
    counted = ", ".join(f"{name} {count}" for name, count in sorted(kinds.items()))
    print(f"{printable(args.output)}: {writer.records} records of {source.lines} lines of {source.kind} ({counted})")
    print(f"{infer(requests)}")
    if kinds["fe"] and source.kind == "strace":
        print("commands and classes cannot be known: strace prints no argument bytes")
    return ADMITTED if not source.problems.count else UNKNOWN


def _chain(first: Any, rest: Any) -> Any:
    if first is not None:
        yield first
    yield from rest


def _is_spool(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(4) in (spool.MAGIC, mapped.MAGIC)


def _spool(args: argparse.Namespace) -> int:
    outcome = Outcome(0, problems=Problems())
    convert(Path(args.file), Path(args.output), Header(driver=args.driver, recorder="preload"), outcome)
    problems(args.file, outcome.problems)
    print(
        f"{printable(args.output)}: {outcome.records} records, {outcome.seen.ioctls} ioctls of "
        f"{len(outcome.seen.processes)} processes"
    )
    return ADMITTED if not outcome.problems.count else UNKNOWN
