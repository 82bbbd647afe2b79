"""``nvproxy-policy bundle``: the policy as data. It has one form, whatever ``--format`` says: JSON, an entry a line."""

from __future__ import annotations

import argparse
import sys

from nvproxy_model import versions
from nvproxy_model.policy.bundle import bundle, encode
from nvproxy_model.tools.output import versions as produced_by
from nvproxy_model.tools.policy.shared import ADMITTED, node_of

__all__ = ["run"]


def run(args: argparse.Namespace) -> int:
    """Print the document; returns the exit status."""
    nodes = list(versions.load().values()) if args.all else [node_of(args.driver, allow_unsupported=True)]
    document = bundle(nodes)
    sys.stdout.write(encode({"schema": document["schema"], "produced_by": dict(produced_by()), **document}))
    return ADMITTED
