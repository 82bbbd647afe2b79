"""nvproxy-differ: driver releases against this model, against each other, and against other people's structs."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from nvproxy_model.tools.command import run
from nvproxy_model.tools.differ.shared import EXIT

__all__ = ["main"]

SUBCOMMANDS = ("check", "diff", "history", "layout", "audit", "place", "compat", "gvisor", "pin", "report", "record")
"""Each is a module of `nvproxy_model.tools.differ` with ``add_parser(subparsers)`` that sets ``func``."""

EPILOG = f"""\
examples:
  nvproxy-differ check                                  the model against every recorded release
  nvproxy-differ check --source ~/open-gpu-kernel-modules
  nvproxy-differ compat 570.195.03 570.211.01           may one stand in for the other?
  nvproxy-differ diff 580.105.08 590.44.01 --all
  nvproxy-differ history NV_CHANNEL_ALLOC_PARAMS
  nvproxy-differ layout NVOS64_PARAMETERS --driver 580.126.20 --c

{EXIT}
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return run("nvproxy-differ", __doc__, EPILOG, {name: f"differ.{name}" for name in SUBCOMMANDS}, argv)


if __name__ == "__main__":
    sys.exit(main())
