"""What the subcommands of nvproxy-trace share: arguments, opening a trace, saying what was wrong with it."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

from nvproxy_model.tools.command import UNKNOWN, Parser, fail
from nvproxy_model.trace.format import Record, printable
from nvproxy_model.trace.reader import Problems, Reader
from nvproxy_model.trace.study.era import infer, sized

__all__ = [
    "ADMITTED",
    "DIFFERENT",
    "UNKNOWN",
    "Parser",
    "bold",
    "choose_driver",
    "dump",
    "fail",
    "number",
    "problems",
    "watched",
]

ADMITTED, DIFFERENT = 0, 1
_SAMPLE: Final = 20_000
T = TypeVar("T")


def number(text: str) -> int:
    """``0x20800301``, ``545260289`` or ``_IOC(...)``: the way a number is written elsewhere is the way it is taken here."""
    from nvproxy_model.ioctl import parse_request

    value = parse_request(text)
    if value is None:
        raise argparse.ArgumentTypeError(f"{printable(text)!r} is no number: want 0x20800301, 545260289 or _IOC(...)")
    return value


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


def bold(text: str) -> str:
    """Emphasis on a terminal only."""
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb":
        return f"\x1b[1m{text}\x1b[0m"
    return text


def dump(document: Any) -> None:
    """One JSON document on stdout."""
    json.dump(document, sys.stdout, indent=1)
    print()


def watched(items: Iterable[T], what: str = "records") -> Iterator[T]:
    """The items, with a count on a terminal's stderr once a second has passed."""
    if not sys.stderr.isatty():
        yield from items
        return
    start, shown = time.monotonic(), None
    for count, item in enumerate(items, 1):
        if shown is not None:
            if not count & 0x3FF:
                shown.update(f"{count} {what}")
        elif not count & 0x3FF and time.monotonic() - start > 1:
            from rich.console import Console

            shown = Console(stderr=True).status(f"{count} {what}")
            shown.start()
        try:
            yield item
        except GeneratorExit:
            if shown is not None:
                shown.stop()
            raise
    if shown is not None:
        shown.stop()


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
