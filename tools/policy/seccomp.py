"""``nvproxy-policy seccomp``: the host-side requests that a sandbox's filter must allow."""

from __future__ import annotations

import argparse
from typing import Any

from nvproxy_model.policy import seccomp
from nvproxy_model.policy.seccomp import Request
from nvproxy_model.tools.output import print_json, say
from nvproxy_model.tools.policy.shared import ADMITTED, caps_of, node_of

__all__ = ["run"]

SCHEMA = "nvproxy-policy/seccomp/1"


def run(args: argparse.Namespace) -> int:
    """List the requests; returns the exit status."""
    node, caps = node_of(args.version, allow_unsupported=True), caps_of(args.caps)
    rows = seccomp.allow_list(node, caps)
    if args.format == "json":
        print_json(
            {
                "schema": SCHEMA,
                "version": node.name,
                "supported": node.supported,
                "caps": list(caps.names),
                "frontend": [_json(row) for row in rows if row.device == "frontend"],
                "uvm": [_json(row) for row in rows if row.device == "uvm"],
                "fd": "non-negative",
                "mapping": {name: dict(rule) for name, rule in seccomp.MAPPING.items()},
                "exceptions": dict(seccomp.EXCEPTIONS),
            }
        )
        return ADMITTED
    say(_lines(rows))
    return ADMITTED


def _json(row: Request) -> dict[str, Any]:
    return {
        "number": row.number,
        "name": row.name,
        "request": row.request,
        "mask": row.mask,
        "size": row.size,
        "size_in_release": row.size_in_release,
        "in_release": row.in_release,
        "caps": list(row.caps.names),
    }


def _lines(rows: tuple[Request, ...]) -> list[str]:
    lines = []
    for row in rows:
        note = "" if row.in_release else "not in this release"
        if row.device == "frontend" and row.size is None:
            note = "any size" + (f", {row.size_in_release} here" if row.size_in_release else "")
        lines.append(f"{row.device:9}{row.request:#010x} & {row.mask:#010x}  {row.name:38}{note}".rstrip())
    counts = {device: sum(row.device == device for row in rows) for device in ("frontend", "uvm")}
    return [*lines, f"{counts['frontend']} frontend and {counts['uvm']} UVM requests"]
