"""nvproxy-trace compare: two runs of one program, by kind, number and status."""

from __future__ import annotations

import argparse
import errno
import itertools

from nvproxy_model.printable import printable
from nvproxy_model.tools.command import UNKNOWN, fail
from nvproxy_model.tools.output import bold, print_json, progress
from nvproxy_model.tools.trace.shared import ADMITTED, DIFFERENT, problems
from nvproxy_model.trace.decode.catalog import Catalog
from nvproxy_model.trace.format import Record
from nvproxy_model.trace.source import open_source
from nvproxy_model.trace.study.compare import CLASSES, Difference, compare, outcomes
from nvproxy_model.trace.study.stats import Tally
from nvproxy_model.trace.study.values import ValueDifference, Values, compare_values

SCHEMA = "nvproxy-trace/compare/1"


class _Statuses:
    """The NV status of calls that carry it in their argument struct: UVM commands, frontend escapes."""

    def __init__(self, catalog: Catalog | None) -> None:
        self.catalog = catalog

    def __call__(self, rec: Record) -> int | None:
        data = rec.top
        if self.catalog is None or data is None or rec.kind not in ("fe", "uvm") or rec.ret is None:
            return None
        shape = self.catalog.outer(rec)
        at = shape.status if shape is not None else None
        return None if at is None or len(data) < at + 4 else int.from_bytes(data[at : at + 4], "little")


def _driver(*names: str) -> str | None:
    """The first release that either trace names near its begin: both are read by it, so that neither gains a status."""
    for name in names:
        reader = open_source(name)
        for _ in itertools.islice(reader, 20_000):
            if reader.driver is not None:
                return reader.driver
    return None


def run(args: argparse.Namespace) -> int:
    """Compare the traces."""
    if args.a == args.b:
        fail(f"{printable(args.a)} and itself: nothing to compare")
    if "-" in (args.a, args.b):
        fail("standard input: compare two files")
    driver = args.driver or _driver(args.a, args.b)
    catalog = Catalog(driver) if driver else None
    first, second = open_source(args.a), open_source(args.b)
    a, b = (outcomes(progress(reader), _Statuses(catalog)) for reader in (first, second))
    found = compare(a, b)
    if args.no_counts:
        found = [difference for difference in found if difference.change != "other-count"]
    values = []
    if args.values:
        if catalog is None:
            fail("--values: neither trace names its driver: say --driver V")
        values = compare_values(*(Values(catalog).feed(progress(open_source(name))) for name in (args.a, args.b)))
    overflow = a.overflow + b.overflow
    if args.format == "json":
        distinct = {key for key, _ in a} | {key for key, _ in b}
        print_json(
            {
                "schema": SCHEMA,
                "a": args.a,
                "b": args.b,
                "drivers": [list(first.drivers), list(second.drivers)],
                "compared": {"a": a.total(), "b": b.total(), "distinct": len(distinct)},
                "differences": [{**d.as_json(), "name": _name(catalog, d.kind, d.number)} for d in found],
                "values": [{**d.as_json(), "name": _name(catalog, d.kind, d.number)} for d in values],
                "complete": first.complete and second.complete and not overflow,
            }
        )
    else:
        _text(found, values, catalog, a, b)
    problems(args.a, first.problems)
    problems(args.b, second.problems)
    if overflow:
        fail(f"{overflow} calls of more distinct kinds than are counted")
    if not (first.complete and second.complete):
        return UNKNOWN
    return DIFFERENT if found or values else ADMITTED


def _name(catalog: Catalog | None, kind: str, number: int) -> str | None:
    return catalog.name(kind, number) if catalog else None


_TITLES = {
    "only-here": "only in A",
    "only-there": "only in B",
    "other-status": "another answer",
    "other-count": "another count",
}


def _side(counts: dict[tuple[int | None, int], int]) -> str:
    def one(status: int | None, error: int) -> str:
        return errno.errorcode.get(error, str(error)) if error else "ok" if status is None else f"{status:#x}"

    return (
        ", ".join(
            f"{one(*outcome)} x{n}" for outcome, n in sorted(counts.items(), key=lambda i: (i[0][0] or 0, i[0][1]))
        )
        or "-"
    )


def _text(found: list[Difference], values: list[ValueDifference], catalog: Catalog | None, a: Tally, b: Tally) -> None:
    for change in CLASSES:
        rows = [difference for difference in found if difference.change == change]
        if not rows:
            continue
        print(bold(_TITLES[change]))
        for row in rows:
            name = _name(catalog, row.kind, row.number) or ""
            what = (
                printable(row.device or "")
                if row.kind in ("open", "mmap", "close")
                else f"{row.number:#x} {name}".rstrip()
            )
            print(f"  {row.kind} {what}: {_side(row.a)} | {_side(row.b)}")
    if values:
        print(bold("other values, the same calls and statuses"))
    for value_row in values:
        a_values, b_values = (
            ", ".join(f"{value:#x}" if value > 9 else str(value) for value in side)
            for side in (value_row.a, value_row.b)
        )
        where = f"{value_row.kind} {value_row.number:#x} {value_row.struct}.{value_row.path}"
        print(f"  {where}: {a_values} | {b_values}")
    print(f"{len(found)} differences; {a.total()} and {b.total()} calls compared")
