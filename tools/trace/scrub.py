"""nvproxy-trace scrub: a trace to show to others."""

from __future__ import annotations

import argparse
from pathlib import Path

from nvproxy_model.printable import printable
from nvproxy_model.tools.command import UNKNOWN, fail
from nvproxy_model.tools.trace.shared import ADMITTED, Files, problems
from nvproxy_model.trace.decode.catalog import Catalog
from nvproxy_model.trace.study.scrub import scrub


def run(args: argparse.Namespace) -> int:
    """Scrub the trace."""
    if args.file == "-":
        fail("standard input cannot be read twice: scrub a file")
    catalog = Catalog(Files([args.file]).driver(args.driver))
    reader, scrubber = scrub(Path(args.file), Path(args.output), catalog)
    problems(args.file, reader.problems)
    print(
        f"{printable(args.output)}: {reader.records} records; {len(scrubber.uuids)} UUIDs, {len(scrubber.serials)} serial numbers, "
        f"{len(scrubber.pages)} pages of addresses replaced at {scrubber.replaced} places"
    )
    return ADMITTED if reader.complete else UNKNOWN
