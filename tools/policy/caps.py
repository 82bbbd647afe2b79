"""``nvproxy-policy caps``: what a list of capabilities means."""

from __future__ import annotations

import argparse

from nvproxy_model import caps as capabilities
from nvproxy_model.caps import Caps
from nvproxy_model.tools.command import fail
from nvproxy_model.tools.output import print_json, say
from nvproxy_model.tools.policy.shared import ADMITTED, REFUSED

__all__ = ["run"]

SCHEMA = "nvproxy-policy/caps/1"


def run(args: argparse.Namespace) -> int:
    """Print what the list means; returns the exit status."""
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
    if args.format == "json":
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
