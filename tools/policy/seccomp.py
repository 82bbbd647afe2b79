"""``nvproxy-policy seccomp``: the host-side requests that a sandbox's filter must allow."""

from __future__ import annotations

import argparse
from typing import Any

from nvproxy_model.policy import seccomp
from nvproxy_model.policy.seccomp import Request
from nvproxy_model.tools.policy.shared import ADMITTED, add_policy, add_subparser, caps_of, node_of, print_json, say

__all__ = ["add_parser"]

SCHEMA = "nvproxy-policy/seccomp/1"


def add_parser(subparsers: Any) -> None:
    """Declare the subcommand."""
    parser = add_subparser(
        subparsers,
        "seccomp",
        "the host-side allow list of ioctl requests",
        "Every request that a session can make of the host's driver under these capabilities. One list serves every release, as "
        "nvproxy's filter does: where a struct changed size any size is allowed, and the release's own size is given beside it.",
        "  nvproxy-policy seccomp 580.126.20\n  nvproxy-policy seccomp latest --caps all,profiling,rdma --json",
        "0 done, 2 an unknown release or capability",
    )
    parser.add_argument("version", metavar="VERSION", help="a release, or 'latest'")
    add_policy(parser, driver=False)
    parser.add_argument("--json", action="store_true", help=SCHEMA)
    parser.set_defaults(func=_run)


def _run(args: argparse.Namespace) -> int:
    node, caps = node_of(args.version, allow_unsupported=True), caps_of(args.caps)
    rows = seccomp.allow_list(node, caps)
    if args.json:
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
