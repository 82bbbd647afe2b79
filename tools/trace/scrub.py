"""nvproxy-trace scrub: a trace to show to others."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from nvproxy_model.tools.trace.shared import ADMITTED, UNKNOWN, choose_driver, fail, problems
from nvproxy_model.trace.decode.catalog import Catalog
from nvproxy_model.trace.format import printable
from nvproxy_model.trace.study.scrub import scrub


def add_parser(subparsers: Any) -> None:
    """The arguments."""
    parser = subparsers.add_parser(
        "scrub",
        help="replace GPU UUIDs, serial numbers and addresses",
        description="Write a trace whose GPU and MIG UUIDs, serial numbers, addresses and command lines are "
        "replaced, each distinct value by one of "
        "its own, so that it still decodes, compares and replays. Found by the fields of public structs and by "
        "the text form of a UUID: what "
        "a struct without a public layout holds in another form is not found.",
        epilog="examples:\n  nvproxy-trace scrub run.jsonl.zst -o clean.jsonl.zst\n",
    )
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("-o", "--output", metavar="OUT", required=True)
    parser.add_argument("--driver", metavar="V")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Scrub the trace."""
    if Path(args.output).exists() and Path(args.file).exists() and Path(args.output).samefile(args.file):
        fail(f"{printable(args.output)}: is the file that is read")
    catalog = Catalog(choose_driver(args.file, args.driver))
    reader, scrubber = scrub(Path(args.file), Path(args.output), catalog)
    problems(args.file, reader.problems)
    print(
        f"{printable(args.output)}: {reader.records} records; {len(scrubber.uuids)} UUIDs, {len(scrubber.serials)} serial numbers, "
        f"{len(scrubber.pages)} pages of addresses replaced at {scrubber.replaced} places"
    )
    return ADMITTED if reader.complete else UNKNOWN
