"""What nvproxy-trace's subcommands share: opening a trace, and saying what was wrong with it."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable
from typing import Final

from nvproxy_model.tools.command import fail
from nvproxy_model.trace.format import Record, printable
from nvproxy_model.trace.reader import Problems, Reader
from nvproxy_model.trace.study.era import infer, sized

__all__ = ["ADMITTED", "DIFFERENT", "choose_driver", "problems", "selected"]

ADMITTED, DIFFERENT = 0, 1
_SAMPLE: Final = 20_000


def problems(name: str, found: Problems) -> None:
    """Each on stderr, one line."""
    for text in found.texts(name):
        print(f"nvproxy-trace: {text}", file=sys.stderr)


def choose_driver(path: str, given: str | None) -> str:
    """The release to read a trace by: what the user says, else what the trace says. Ends with the era when neither does."""
    if given:
        return given
    if path == "-":
        fail("standard input: say --driver V, it cannot be read twice to find out")
    reader = Reader(path)
    requests = set()
    for rec in itertools.islice(reader, _SAMPLE):
        if reader.driver is not None:
            break
        found = sized(rec)
        if found is not None:
            requests.add(found)
    if reader.driver is None:
        fail(f"{printable(path)}: names no driver ({infer(requests)}): say --driver V")
    return reader.driver


def selected(args: argparse.Namespace) -> Callable[[Record], bool]:
    """The filter of --kind, --name, --status and --tid, without the name."""
    kinds = set(args.kind or ())
    statuses = set(args.status or ())
    tids = set(args.tid or ())

    def keep(rec: Record) -> bool:
        if kinds and (rec.kind if rec.k == "ioctl" else rec.k) not in kinds:
            return False
        if statuses and rec.status not in statuses:
            return False
        return not tids or rec.tid in tids

    return keep
