"""``nvproxy-policy conform``: nvproxy's recorded calls, replayed against this model."""

from __future__ import annotations

import argparse

from nvproxy_model.errors import NvproxyError
from nvproxy_model.testing.conform import load, replay
from nvproxy_model.tools.command import fail
from nvproxy_model.tools.output import print_json, progress, say
from nvproxy_model.tools.policy.shared import ADMITTED, REFUSED

__all__ = ["run"]

SCHEMA = "nvproxy-policy/conform/1"


def run(args: argparse.Namespace) -> int:
    """Replay and print; returns the exit status."""
    content = load(args.file)
    if not content["vectors"]:
        fail(f"{args.file}: no vectors: nothing was compared")
    try:
        vectors = content["vectors"]
        passed, failures = replay({**content, "vectors": progress(vectors, len(vectors), "calls")})
    except (NvproxyError, ValueError) as error:
        fail(f"{args.file}: {error}")
    report = {
        "schema": SCHEMA,
        "passed": passed,
        "failed": len(failures),
        "failures": [{"name": failure.name, "what": failure.what} for failure in failures],
    }
    if args.format == "json":
        print_json(report)
    else:
        say([f"{failure.name}: {failure.what}" for failure in failures] + [f"{passed} passed, {len(failures)} failed"])
    return REFUSED if failures else ADMITTED
