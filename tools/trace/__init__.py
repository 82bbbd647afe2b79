"""nvproxy-trace: record what a program asks of the NVIDIA driver, decode it, check it against a policy, compare two runs."""

from __future__ import annotations

from collections.abc import Sequence

from nvproxy_model.tools.command import run

__all__ = ["main"]

SUBCOMMANDS = ("record", "decode", "check", "compare", "stats", "census", "import", "scrub", "replay")
"""Each is a module of `nvproxy_model.tools.trace` with ``add_parser(subparsers)`` that sets ``func``."""

EPILOG = """\
examples:
  nvproxy-trace record -o run.jsonl.zst -- python3 train.py
  nvproxy-trace check run.jsonl.zst --driver 580.126.20 --caps compute,utility
  nvproxy-trace decode run.jsonl.zst --kind control --status 0x56
  nvproxy-trace compare outside.jsonl.zst inside.jsonl.zst
  nvproxy-trace import -o log.jsonl strace.txt

exit status: 0 admitted, the same, done; 1 refused or different; 2 could not tell, or not all of the trace could be read.
docs/tracing.md goes through one case; docs/trace-format.md is the format.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    modules = {name: f"trace.{name}" for name in SUBCOMMANDS} | {"import": "trace.import_log"}
    return run("nvproxy-trace", __doc__, EPILOG, modules, argv)
