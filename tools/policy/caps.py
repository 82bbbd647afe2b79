"""``nvproxy-policy caps``: what a list of capabilities means."""

from __future__ import annotations

import argparse
from typing import Any

from nvproxy_model import caps as capabilities
from nvproxy_model.caps import Caps
from nvproxy_model.tools.policy.shared import ADMITTED, REFUSED, add_subparser, fail, print_json, say

__all__ = ["add_parser"]

SCHEMA = "nvproxy-policy/caps/1"


def add_parser(subparsers: Any) -> None:
    """Declare the subcommand."""
    parser = add_subparser(
        subparsers,
        "caps",
        "what a list of driver capabilities means",
        "Reads a list as runsc does: its names, the flags for nvidia-container-cli, and what nvproxy supports.",
        "  nvproxy-policy caps compute,utility,profiling\n  nvproxy-policy caps all",
        "0 all of it can be granted, 1 nvproxy does not support some of it, 2 not a list of capabilities",
    )
    parser.add_argument(
        "list", metavar="LIST", help="comma-separated names; 'all' is what a container may have; may be empty"
    )
    parser.add_argument("--json", action="store_true", help=SCHEMA)
    parser.set_defaults(func=_run)


def _run(args: argparse.Namespace) -> int:
    try:
        named, everything = capabilities.from_string(args.list)
    except ValueError as error:
        fail(str(error))
    granted = named | (capabilities.ALL_CONTAINER if everything else Caps(0))
    unsupported = Caps(granted & ~capabilities.SUPPORTED)
    report = {
        "schema": SCHEMA,
        "caps": list(granted.names),
        "mask": int(granted),
        "all": everything,
        "unsupported": list(unsupported.names),
        "container_flags": list(capabilities.container_flags(granted)),
    }
    if args.json:
        print_json(report)
    else:
        say(_lines(granted, unsupported))
    return REFUSED if unsupported else ADMITTED


def _lines(granted: Caps, unsupported: Caps) -> list[str]:
    rows = []
    for cap in Caps:
        if cap & granted:
            (flag,) = capabilities.container_flags(cap) or ("only the sandbox knows it",)
            rows.append(
                f"{int(cap):4}  {cap!s:18}{flag:28}{'refused: nvproxy does not support it' if cap & unsupported else ''}".rstrip()
            )
    return rows or ["no capability: every call is refused"]
