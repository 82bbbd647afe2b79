"""``nvproxy-policy restorable``: what a checkpoint of the traced program could not bring back."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from nvproxy_model.caps import SUPPORTED
from nvproxy_model.drivers.names import ever
from nvproxy_model.policy.policy import Policy
from nvproxy_model.session.objects import Object
from nvproxy_model.tools.command import UNKNOWN, fail
from nvproxy_model.tools.output import emit, progress, warn
from nvproxy_model.tools.policy.shared import ADMITTED, REFUSED, node_of
from nvproxy_model.trace.format import Record
from nvproxy_model.trace.judge.replay import Replay
from nvproxy_model.trace.reader import Reader

__all__ = ["run"]

SCHEMA = "nvproxy-policy/restorable/1"
_LISTED = 200
_KEYS = ("pid", "client", "handle", "class", "name", "from", "until")
_COLUMNS = ("pid", "client", "handle", "class", "name", "from line", "until line")


@dataclass(slots=True)
class _Span:
    """How long an object lived that a checkpoint could not bring back, in lines of the trace; None: to its end."""

    pid: int
    of: Object
    first: int
    last: int | None = None

    def row(self) -> tuple[object, ...]:
        of = self.of
        name = ever().name("alloc", of.hclass)
        return self.pid, f"{of.client:#x}", f"{of.handle:#x}", f"{of.hclass:#x}", name, self.first, self.last


def run(args: argparse.Namespace) -> int:
    """Replay the trace and print; returns the exit status."""
    node = node_of(args.driver or _named(args.file), allow_unsupported=True)
    policy = Policy.for_driver(node.name, SUPPORTED, allow_unsupported=True)
    replay, reader = Replay(policy), Reader(args.file)
    spans: dict[Object, _Span] = {}
    seen = 0
    line = 0
    for rec in progress(reader):
        replay.one(rec)
        line = rec.line
        if _makes_objects(rec):
            seen += 1
            graph = replay.session(rec.pid).graph
            # A guest decides how many objects there are, so that looking at all of them after each call has no bound.
            if seen % (1 + len(graph) // 1000) == 0:
                _look(replay, rec.pid, line, spans)
    for pid in replay.pids():
        _look(replay, pid, line, spans)
    for text in reader.problems.texts(args.file):
        warn("nvproxy-policy", text)
    found = list(spans.values())
    living = sum(span.last is None for span in found)
    whole = reader.complete and not replay.skipped
    document = {
        "schema": SCHEMA,
        "file": args.file,
        "driver": node.name,
        "verdict": "not restorable" if found else "restorable" if whole else "unknown",
        "living_at_the_end": living,
        "objects": [dict(zip(_KEYS, span.row(), strict=True)) for span in found],
        "calls_without_bytes": replay.skipped,
        "complete": reader.complete,
    }
    emit(args, document, _lines(found, living, replay.skipped, whole), (_COLUMNS, (span.row() for span in found)))
    if found:
        return REFUSED
    return ADMITTED if whole else UNKNOWN


def _named(path: str) -> str:
    """The release that the trace names near its begin."""
    if path == "-":
        fail("standard input: name a release with --driver; it cannot be read twice to find out")
    reader = Reader(path)
    for _ in itertools.islice(reader, 20_000):
        if reader.driver is not None:
            return reader.driver
    return fail(f"{path}: names no driver; name one with --driver")


def _makes_objects(rec: Record) -> bool:
    return rec.k == "close" or (rec.k == "ioctl" and rec.kind in ("fe", "alloc"))


def _look(replay: Replay, pid: int, line: int, spans: dict[Object, _Span]) -> None:
    living = set(replay.session(pid).not_restorable())
    for span in spans.values():
        if span.pid == pid and span.last is None and span.of not in living:
            span.last = line
    for new in living - spans.keys():
        spans[new] = _Span(pid, new, line)


def _lines(found: list[_Span], living: int, skipped: int, whole: bool) -> Iterator[str]:
    from nvproxy_model.drivers.render.text import columns

    if found:
        yield f"no: a checkpoint could not bring back {len(found)} of the program's objects; {living} live when the trace ends"
        yield "  to do      nvproxy refuses to save while one lives: checkpoint before the first, or after the last is freed"
    elif whole:
        yield "yes: a checkpoint could bring back every object, at any time"
    else:
        yield "could not tell: nothing that was read stands in the way, but not all of the trace could be read"
    if skipped:
        yield f"  not judged {skipped} calls whose bytes the trace does not hold"
    if found:
        shown = [tuple("-" if cell is None else cell for cell in span.row()) for span in found[:_LISTED]]
        yield from columns([_COLUMNS, *shown])
    if len(found) > _LISTED:
        yield f"{len(found) - _LISTED} more; --json has them all"
