"""nvproxy-trace census: numbers per process over many traces."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from nvproxy_model.tools.trace.shared import ADMITTED, UNKNOWN, bold, dump, fail, problems, watched
from nvproxy_model.trace.format import printable
from nvproxy_model.trace.reader import Reader, TraceError
from nvproxy_model.trace.study.census import WINDOWS, Census

SCHEMA = "nvproxy-trace/census/1"
_ENDINGS = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".json", ".json.gz", ".json.zst")


def add_parser(subparsers: Any) -> None:
    """The arguments."""
    parser = subparsers.add_parser(
        "census",
        help="numbers per process over many traces, the bypass windows included",
        description="Count numbers per process over all traces of a folder. nvproxy passes two windows of "
        "control commands on unexamined: "
        "those with bit 15 (legacy GSS) and those of class 0x2081 (binapi). A command in both goes through the first.",
        epilog="examples:\n  nvproxy-trace census traces/ --windows\n  nvproxy-trace census traces/ --json\n",
    )
    parser.add_argument("dir", metavar="DIR", help="a folder of traces (*.jsonl, .gz, .zst), or one trace")
    parser.add_argument("--windows", action="store_true", help="only the bypass windows")
    parser.add_argument("--json", action="store_true", help=f"one document with schema {SCHEMA}")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Count the traces."""
    root = Path(args.dir)
    files = (
        sorted(path for path in root.iterdir() if path.name.endswith(_ENDINGS) and path.is_file())
        if root.is_dir()
        else [root]
    )
    if not files:
        fail(f"{printable(args.dir)}: no trace in it (*.jsonl, *.jsonl.gz, *.jsonl.zst)")
    census = Census()
    complete = True
    read = 0
    for path in files:
        reader = Reader(path)
        try:
            census.feed(path.name, watched(reader))
            read += 1
        except TraceError as error:
            reader.problems.add(0, str(error).rpartition(": ")[2])
        problems(str(path), reader.problems)
        complete &= reader.complete
    rows = [row for row in census.rows() if not args.windows or row["window"]]
    if args.json:
        dump(
            {
                "schema": SCHEMA,
                "traces": read,
                "rows": rows,
                "windows": census.windows(),
                "complete": complete,
                "overflow": census.calls.overflow,
            }
        )
    else:
        _text(census, rows, read)
    return ADMITTED if complete and not census.calls.overflow else UNKNOWN


def _text(census: Census, rows: list[dict[str, Any]], read: int) -> None:
    process = None
    for row in rows:
        if (row["trace"], row["pid"]) != process:
            process = (row["trace"], row["pid"])
            print(bold(f"{printable(row['trace'])} process {row['pid']}"))
        print(f"  {row['kind']:<8} {row['number']:#010x} {row['count']:>8}  {row['window'] or ''}".rstrip())
    print(bold("bypass windows, distinct commands/calls"))
    for entry in census.windows():
        cells = "  ".join(f"{name} {entry[name]['numbers']}/{entry[name]['calls']}" for name in WINDOWS)
        print(f"  {printable(entry['trace'])} process {entry['pid']}: {cells}")
    print(
        f"{read} traces, {len({(r['trace'], r['pid']) for r in rows})} processes, {sum(r['count'] for r in rows)} calls"
    )
