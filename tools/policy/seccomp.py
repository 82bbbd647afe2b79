"""``nvproxy-policy seccomp``: the host-side requests that a sandbox's filter must allow."""

from __future__ import annotations

import argparse
import json
from typing import Any

from nvproxy_model.policy import seccomp
from nvproxy_model.policy.seccomp import Request
from nvproxy_model.tools.output import emit, say, versions
from nvproxy_model.tools.policy.shared import ADMITTED, caps_of, node_of

__all__ = ["run"]

SCHEMA = "nvproxy-policy/seccomp/1"


def run(args: argparse.Namespace) -> int:
    """List the requests; returns the exit status."""
    node, caps = node_of(args.version, allow_unsupported=True), caps_of(args.caps)
    rows = seccomp.allow_list(node, caps)
    if args.format == "oci":
        say(json.dumps({"syscalls": [_oci(row) for row in rows]}, indent=2).splitlines())
        return ADMITTED
    document = {
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
    emit(args, document, _lines(rows))
    return ADMITTED


def _oci(row: Request) -> dict[str, Any]:
    """A request as an entry of a profile's ``syscalls`` (OCI runtime-spec, config-linux.md; Docker takes the same).

    SCMP_CMP_MASKED_EQ has the mask in ``value`` and what must remain in ``valueTwo``.
    """
    condition = {"index": 1, "value": row.mask, "valueTwo": row.request & row.mask, "op": "SCMP_CMP_MASKED_EQ"}
    comment = f"{row.device} {row.name}: nvproxy_model {versions()['nvproxy_model']}, gVisor {versions()['gvisor_commit'][:12]}"
    return {"names": ["ioctl"], "action": "SCMP_ACT_ALLOW", "args": [condition], "comment": comment}


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
