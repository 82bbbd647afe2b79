"""nvproxy-trace stats: counts, rates, time by kind, the slowest calls; a picture of the time line."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from nvproxy_model.printable import printable
from nvproxy_model.tools.command import UNKNOWN, fail
from nvproxy_model.tools.output import bold, print_json, progress
from nvproxy_model.tools.trace.shared import ADMITTED, Files, problems
from nvproxy_model.trace.decode.catalog import Catalog
from nvproxy_model.trace.format import Record
from nvproxy_model.trace.source import Source
from nvproxy_model.trace.study.stats import Stats

SCHEMA = "nvproxy-trace/stats/1"
_POINTS = 200_000


def run(args: argparse.Namespace) -> int:
    """Count the trace."""
    if not 0 <= args.top <= 10_000:
        fail("--top: want 0 to 10000")
    if args.plot and not args.plot.endswith((".png", ".svg", ".pdf")):
        fail(f"--plot {printable(args.plot)}: want a name that ends in .png, .svg or .pdf")
    stats = Stats(args.top)
    points: list[tuple[int, int, str]] = []
    with Files(args.files, args.log) as files:
        reader = files.open()
        records: Iterable[Record] = progress(reader)
        stats.feed(_points(records, points) if args.plot else records)
    driver = args.driver or reader.driver
    catalog = Catalog(driver) if driver else None
    if args.plot:
        _plot(args.plot, points, Path(args.files[0]).name)
    if args.format == "json":
        print_json(document(args, stats, reader, catalog))
    else:
        _text(args, stats, reader, catalog)
    problems(files.shown, reader.problems)
    return ADMITTED if reader.complete else UNKNOWN


def _points(records: Iterable[Record], points: list[tuple[int, int, str]]) -> Iterator[Record]:
    """The first two hundred thousand, then every second, fourth ... of them: a picture has no room for more."""
    step = 1
    for count, rec in enumerate(records):
        if count % step == 0:
            points.append((rec.t, rec.d or 0, rec.kind if rec.k == "ioctl" else rec.k))
            if len(points) >= _POINTS:
                del points[::2]
                step *= 2
        yield rec


def _plot(path: str, points: list[tuple[int, int, str]], title: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    kinds = sorted({kind for _, _, kind in points})
    figure, (above, below) = pyplot.subplots(2, 1, sharex=True, figsize=(12, 6), height_ratios=(2, 1))
    for kind in kinds:
        of = [(t / 1e9, max(d, 1) / 1000) for t, d, k in points if k == kind]
        above.scatter([t for t, _ in of], [d for _, d in of], s=6, label=f"{kind} ({len(of)})")
    above.set_yscale("log")
    above.set_ylabel("us in the call")
    above.set_title(title.replace("$", r"\$"))
    if kinds:
        above.legend(loc="upper right", fontsize="small")
        below.hist([t / 1e9 for t, _, _ in points], bins=200)
    below.set_ylabel("records")
    below.set_xlabel("s since the first record")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def document(args: argparse.Namespace, stats: Stats, reader: Source, catalog: Catalog | None) -> dict[str, Any]:
    """The counts as JSON; times are nanoseconds."""
    return {
        "schema": SCHEMA,
        "file": ", ".join(args.files),
        "drivers": list(reader.drivers),
        "records": reader.records,
        "ioctls": stats.ioctls,
        "processes": len(stats.processes),
        "threads": len(stats.threads),
        "span_ns": stats.span,
        "bytes": stats.bytes,
        "truncated": stats.truncated,
        "unfinished": stats.unfinished,
        "kinds": {kind: durations.as_json() for kind, durations in sorted(stats.by_kind.items())},
        "devices": dict(sorted(stats.devices.items())),
        "numbers": [
            {"kind": kind, "number": number, "name": catalog.name(kind, number) if catalog else None, "count": count}
            for (kind, number), count in sorted(stats.calls.items(), key=lambda item: (-item[1], item[0]))
        ],
        "failures": [
            {"kind": kind, "number": number, "status": status, "errno": errno, "count": count}
            for (kind, number, status, errno), count in sorted(stats.statuses.items())
        ],
        "slowest": [
            {
                "ns": ns,
                "line": line,
                "kind": kind,
                "number": number,
                "name": catalog.name(kind, number) if catalog else None,
            }
            for ns, line, kind, number in stats.slowest()
        ],
        "complete": reader.complete,
        "problems": reader.problems.count,
    }


def _text(args: argparse.Namespace, stats: Stats, reader: Source, catalog: Catalog | None) -> None:
    def name(kind: str, number: int) -> str:
        return (catalog.name(kind, number) if catalog else None) or ""

    seconds = stats.span / 1e9
    rate = f", {stats.ioctls / seconds:.0f}/s" if seconds else ""
    print(
        f"{reader.records} records, {stats.ioctls} ioctls of {len(stats.processes)} processes and "
        f"{len(stats.threads)} threads in {seconds:.3f} s{rate}"
    )
    print(
        f"driver {', '.join(map(printable, reader.drivers)) or 'not named'}; {stats.bytes} bytes kept, "
        f"{stats.truncated} truncated, {stats.unfinished} unfinished"
    )
    print(bold(f"{'kind':<10} {'count':>8} {'total ms':>10} {'median us':>10} {'p99 us':>10} {'max us':>10}"))
    for kind, d in sorted(stats.by_kind.items()):
        cells = (d.quantile(0.5) / 1e3, d.quantile(0.99) / 1e3, d.max / 1e3)
        print(f"{kind:<10} {d.count:>8} {d.total / 1e6:>10.2f} " + " ".join(f"{cell:>10.1f}" for cell in cells))
    print(bold("most often"))
    for (kind, number), count in sorted(stats.calls.items(), key=lambda item: (-item[1], item[0]))[: args.top]:
        print(f"  {count:>8} {kind} {number:#x} {name(kind, number)}".rstrip())
    print(bold("slowest"))
    for ns, line, kind, number in stats.slowest():
        print(f"  {ns / 1e3:>10.1f} us line {line} {kind} {number:#x} {name(kind, number)}".rstrip())
