"""``nvproxy-policy conform``: recorded calls of nvproxy's, replayed against this model."""

from __future__ import annotations

import argparse
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from nvproxy_model.errors import NvproxyError
from nvproxy_model.testing.conform import load, replay
from nvproxy_model.tools.policy.shared import ADMITTED, REFUSED, add_subparser, fail, print_json, say

__all__ = ["add_parser"]

SCHEMA = "nvproxy-policy/conform/1"


def add_parser(subparsers: Any) -> None:
    """Declare the subcommand."""
    parser = add_subparser(
        subparsers,
        "conform",
        "replay recorded vectors against the model",
        "Replays a vectors file in order against sessions whose host answers as the recording's did, and compares the result, "
        "guest memory, what the host saw, and the objects. Nothing of the host's may stand in guest memory afterwards.",
        "  nvproxy-policy conform tests/data/nvproxy_vectors.json.xz\n  nvproxy-policy conform vectors.json --json",
        "0 all passed, 1 some failed, 2 not a vectors file",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="JSON, or JSON in .xz")
    parser.add_argument("--json", action="store_true", help=SCHEMA)
    parser.set_defaults(func=_run)


def _busy(count: int) -> AbstractContextManager[object]:
    """Something that moves, on a terminal, while more than a second's worth of vectors is replayed."""
    if count < 500 or not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(f"replaying {count} vectors")


def _run(args: argparse.Namespace) -> int:
    content = load(args.file)
    if not content["vectors"]:
        fail(f"{args.file}: no vectors: nothing was compared")
    try:
        with _busy(len(content["vectors"])):
            passed, failures = replay(content)
    except (NvproxyError, ValueError) as error:
        fail(f"{args.file}: {error}")
    report = {
        "schema": SCHEMA,
        "passed": passed,
        "failed": len(failures),
        "failures": [{"name": failure.name, "what": failure.what} for failure in failures],
    }
    if args.json:
        print_json(report)
    else:
        say([f"{failure.name}: {failure.what}" for failure in failures] + [f"{passed} passed, {len(failures)} failed"])
    return REFUSED if failures else ADMITTED
