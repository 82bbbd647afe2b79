"""nvproxy-trace census: numbers per process over many traces."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from nvproxy_model.tools.command import UNKNOWN, fail
from nvproxy_model.tools.output import bold, print_json, progress
from nvproxy_model.tools.trace.shared import ADMITTED, problems
from nvproxy_model.trace.format import printable
from nvproxy_model.trace.reader import Reader, TraceError
from nvproxy_model.trace.study.census import WINDOWS, Census

SCHEMA = "nvproxy-trace/census/1"
_ENDINGS = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".json", ".json.gz", ".json.zst")


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
            census.feed(path.name, progress(reader))
            read += 1
        except TraceError as error:
            reader.problems.add(0, str(error).rpartition(": ")[2])
        problems(str(path), reader.problems)
        complete &= reader.complete
    rows = [row for row in census.rows() if not args.windows or row["window"]]
    if args.format == "json":
        print_json(
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
