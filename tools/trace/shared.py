"""What nvproxy-trace's subcommands share: opening a trace or a log, its release, and saying what was wrong with it."""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

from nvproxy_model.printable import printable
from nvproxy_model.tools.command import fail
from nvproxy_model.trace.format import Record
from nvproxy_model.trace.lines import Problems
from nvproxy_model.trace.source import Source, open_source
from nvproxy_model.trace.study.era import infer, sized

__all__ = ["ADMITTED", "DIFFERENT", "Files", "many", "problems", "selected"]

ADMITTED, DIFFERENT = 0, 1
_SAMPLE: Final = 20_000
"""Records among which a trace's release is looked for."""


def problems(name: str, found: Problems) -> None:
    """Each on standard error, one line."""
    for text in found.texts(name):
        print(f"nvproxy-trace: {printable(text)}", file=sys.stderr)


def many(count: int, one: str, more: str = "") -> str:
    """``1 call``, ``2 calls``; ``more`` is the plural where it is not regular."""
    return f"{count} {one if count == 1 else more or one + 's'}"


class Files:
    """The files of a command line, which may be read more than once. Standard input is kept in a temporary file."""

    def __init__(self, names: Sequence[str], kind: str | None = None) -> None:
        self.names = tuple(names)
        self.shown = ", ".join(names)
        self._kind = kind
        self._paths = tuple(names)
        self._stack = ExitStack()

    def __enter__(self) -> Files:
        if "-" in self.names:
            kept = self._stack.enter_context(tempfile.NamedTemporaryFile())
            shutil.copyfileobj(sys.stdin.buffer, kept)
            kept.flush()
            self._paths = tuple(kept.name if name == "-" else name for name in self.names)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def open(self) -> Source:
        """A reader from the first record on."""
        return open_source(*self._paths, kind=self._kind)

    def driver(self, given: str | None) -> str:
        """The release to read by: what the user says, else what the files say. Ends with the era when neither does."""
        found = self.named(given)
        if found is None:
            fail(
                f"{printable(self.shown)}: names no driver ({self._era}): say --driver V, --driver latest or --driver host"
            )
        return found

    def named(self, given: str | None) -> str | None:
        """The release as `driver` finds it, or None."""
        if given:
            return given
        source = self.open()
        requests = set()
        for rec in itertools.islice(source, _SAMPLE):
            if source.driver is not None:
                break
            found = sized(rec)
            if found is not None:
                requests.add(found)
        self._era = str(infer(requests))
        return source.driver

    _era = ""


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
