"""nvproxy-trace import: logs that people already have, as a trace."""

from __future__ import annotations

import argparse
import itertools
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from nvproxy_model.ioctl import foreign
from nvproxy_model.printable import printable
from nvproxy_model.tools.command import UNKNOWN, fail
from nvproxy_model.tools.output import progress
from nvproxy_model.tools.trace.shared import ADMITTED, many, problems
from nvproxy_model.trace import format as fmt
from nvproxy_model.trace.format import Header, Record, writing
from nvproxy_model.trace.lines import Problems
from nvproxy_model.trace.logs.kinds import Import
from nvproxy_model.trace.record import mapped, spool
from nvproxy_model.trace.record.preload import Outcome, convert
from nvproxy_model.trace.study.era import infer, sized


def run(args: argparse.Namespace) -> int:
    """Import the log."""
    if len(args.files) == 1 and (args.log == "spool" or (args.log is None and _is_spool(args.files[0]))):
        return _spool(args)
    source, summary = _convert(args, args.driver)
    if (
        args.driver is None
        and source.driver is not None
        and source.driver != summary.header.driver
        and "-" not in args.files
    ):
        # The log names its driver after the records began: the header is first, so write it again.
        source, summary = _convert(args, source.driver)
    problems(source.name, source.problems)
    for line in summary.text(args.output, source):
        print(line)
    return ADMITTED if not source.problems.count else UNKNOWN


class _Summary:
    """What was imported, counted."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.records = 0
        self.kinds: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.foreign: Counter[str] = Counter()
        self.silent = 0
        """Controls and allocations whose command or class the log does not hold."""
        self.requests: set[tuple[int, int]] = set()

    def add(self, rec: Record) -> None:
        self.records += 1
        self.kinds[rec.kind or rec.k] += 1
        if rec.by is not None:
            self.refused[rec.by] += 1
        elif rec.err or rec.status:
            self.refused["nvproxy or the host's driver" if self.header.inside else "driver"] += 1
        if rec.kind == "other":
            self.foreign[foreign(rec.req) or "another driver"] += 1
        self.silent += rec.kind == "fe" and rec.key in (0x2A, 0x2B)
        found = sized(rec)
        if found is not None and len(self.requests) < 4096:
            self.requests.add(found)

    def text(self, output: str, source: Import) -> Iterator[str]:
        counted = ", ".join(f"{name} {count}" for name, count in sorted(self.kinds.items()))
        read = f"{many(self.records, 'record')} of {many(source.lines, 'line')} of {source.kind}"
        yield f"{printable(output)}: {read} ({counted or 'no call'})"
        names = {"driver": "the host's driver", "permission": "rights on a device node"}
        if self.refused:
            said = ", ".join(f"{count} by {names.get(by, by)}" for by, count in sorted(self.refused.items()))
            yield f"{many(self.refused.total(), 'refusal')}: {said}"
        if self.foreign:
            said = ", ".join(f"{name} {count}" for name, count in sorted(self.foreign.items()))
            yield f"{many(self.foreign.total(), 'request')} to other drivers, which nvproxy does not judge: {said}"
        if self.header.driver:
            yield f"driver {printable(self.header.driver)}"
        yield f"{infer(self.requests)}"
        if self.silent:
            yield (
                f"{many(self.silent, 'call')} of RM_CONTROL or RM_ALLOC without a command or class: this log holds no argument "
                "bytes (strace prints them with -v, since 6.11)"
            )


def _convert(args: argparse.Namespace, driver: str | None) -> tuple[Import, _Summary]:
    source = Import(*args.files, kind=args.log)
    records = iter(progress(source))
    first = list(itertools.islice(records, 1))
    if not first and not source.problems.count:
        fail(f"{printable(source.name)}: no call on an NVIDIA device in it")
    header = Header(driver=driver or source.driver, recorder=source.kind, inside=source.inside)
    summary = _Summary(header)
    with writing(args.output, header, inputs=args.files) as writer:
        for line, obj in enumerate(itertools.chain(first, records), 1):
            writer.put(obj)
            summary.add(fmt.record(obj, line))
        writer.lose(source.problems)
    return source, summary


def _is_spool(name: str) -> bool:
    if name == "-" or not os.path.isfile(name):
        return False
    with open(name, "rb") as file:
        return file.read(4) in (spool.MAGIC, mapped.MAGIC)


def _spool(args: argparse.Namespace) -> int:
    outcome = Outcome(0, problems=Problems())
    convert(Path(args.files[0]), Path(args.output), Header(driver=args.driver, recorder="preload"), outcome)
    problems(args.files[0], outcome.problems)
    print(
        f"{printable(args.output)}: {outcome.records} records, {outcome.seen.ioctls} ioctls of "
        f"{len(outcome.seen.processes)} processes"
    )
    return ADMITTED if not outcome.problems.count else UNKNOWN
