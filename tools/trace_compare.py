"""nvproxy-trace compare: two runs of one program, by kind, number and status."""

from __future__ import annotations

import argparse
from typing import Any

from nvproxy_model.tools.trace_cli import ADMITTED, DIFFERENT, UNKNOWN, bold, dump, fail, problems, watched
from nvproxy_model.trace.catalog import Catalog
from nvproxy_model.trace.compare import CLASSES, Difference, compare, outcomes
from nvproxy_model.trace.format import Record, printable
from nvproxy_model.trace.reader import Reader
from nvproxy_model.trace.stats import Tally

SCHEMA = "nvproxy-trace/compare/1"


def add_parser(subparsers: Any) -> None:
    """The arguments."""
    parser = subparsers.add_parser(
        "compare",
        help="two runs of one program: which calls differ",
        description="Compare two traces by kind, number and status. Handles, addresses and descriptors are "
        "other numbers in every run: they count for nothing.",
        epilog="""\
exit status: 0 the same, 1 different, 2 could not tell (a trace that could not be read whole, or nothing to compare).

examples:
  nvproxy-trace compare outside.jsonl.zst inside.jsonl.zst
  nvproxy-trace compare old.jsonl.zst new.jsonl.zst --no-counts --json
""",
    )
    parser.add_argument("a", metavar="A")
    parser.add_argument("b", metavar="B")
    parser.add_argument("--no-counts", action="store_true", help="the same outcomes in other numbers are no difference")
    parser.add_argument("--json", action="store_true", help=f"one document with schema {SCHEMA}")
    parser.set_defaults(func=run)


class _Statuses:
    """The NV status of calls that carry it in their argument struct: UVM commands, frontend escapes."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.catalogs: dict[str, Catalog] = {}

    def __call__(self, rec: Record) -> int | None:
        driver = self.reader.driver
        data = rec.top
        if driver is None or data is None or rec.kind not in ("fe", "uvm") or rec.ret is None:
            return None
        catalog = self.catalogs.get(driver) or self.catalogs.setdefault(driver, Catalog(driver))
        shape = catalog.outer(rec)
        at = shape.status if shape is not None else None
        return None if at is None or len(data) < at + 4 else int.from_bytes(data[at : at + 4], "little")


def _read(name: str) -> tuple[Reader, Tally]:
    reader = Reader(name)
    return reader, outcomes(watched(reader), _Statuses(reader))


def run(args: argparse.Namespace) -> int:
    """Compare the traces."""
    if args.a == args.b:
        fail(f"{printable(args.a)} and itself: nothing to compare")
    (first, a), (second, b) = _read(args.a), _read(args.b)
    found = compare(a, b)
    if args.no_counts:
        found = [difference for difference in found if difference.change != "other-count"]
    overflow = a.overflow + b.overflow
    driver = first.driver or second.driver
    catalog = Catalog(driver) if driver else None
    if args.json:
        dump(
            {
                "schema": SCHEMA,
                "a": args.a,
                "b": args.b,
                "drivers": [list(first.drivers), list(second.drivers)],
                "compared": {
                    "a": a.total(),
                    "b": b.total(),
                    "distinct": len({key for key, _ in a} | {key for key, _ in b}),
                },
                "differences": [
                    {**d.as_json(), "name": catalog.name(d.kind, d.number) if catalog else None} for d in found
                ],
                "complete": first.complete and second.complete and not overflow,
            }
        )
    else:
        _text(found, catalog, a, b)
    problems(args.a, first.problems)
    problems(args.b, second.problems)
    if overflow:
        fail(f"{overflow} calls of more distinct kinds than are counted")
    if not (first.complete and second.complete):
        return UNKNOWN
    return DIFFERENT if found else ADMITTED


_TITLES = {
    "only-here": "only in A",
    "only-there": "only in B",
    "other-status": "another answer",
    "other-count": "another count",
}


def _side(counts: dict[tuple[int | None, int], int]) -> str:
    def one(status: int | None, error: int) -> str:
        import errno

        return errno.errorcode.get(error, str(error)) if error else "ok" if status is None else f"{status:#x}"

    return (
        ", ".join(
            f"{one(*outcome)} x{n}" for outcome, n in sorted(counts.items(), key=lambda i: (i[0][0] or 0, i[0][1]))
        )
        or "-"
    )


def _text(found: list[Difference], catalog: Catalog | None, a: Tally, b: Tally) -> None:
    for change in CLASSES:
        rows = [difference for difference in found if difference.change == change]
        if not rows:
            continue
        print(bold(_TITLES[change]))
        for row in rows:
            name = (catalog.name(row.kind, row.number) if catalog else None) or ""
            what = (
                printable(row.device or "")
                if row.kind in ("open", "mmap", "close")
                else f"{row.number:#x} {name}".rstrip()
            )
            print(f"  {row.kind} {what}: {_side(row.a)} | {_side(row.b)}")
    print(f"{len(found)} differences; {a.total()} and {b.total()} calls compared")
