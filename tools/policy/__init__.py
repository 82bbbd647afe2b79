"""nvproxy-policy: which calls gVisor's nvproxy admits for a driver release, why, and what it translates."""

from __future__ import annotations

from collections.abc import Sequence

from nvproxy_model.tools.command import run

__all__ = ["main"]

SUBCOMMANDS = ("explain", "table", "conform", "seccomp", "caps")
"""Each is a module of `nvproxy_model.tools.policy` with ``add_parser(subparsers)`` that sets ``func``."""

EPILOG = """\
examples:
  nvproxy-policy explain 0xc020462a                      a request as strace prints it
  nvproxy-policy explain NV_EVENT_BUFFER --caps compute,utility,profiling
  nvproxy-policy explain '_IOC(_IOC_READ|_IOC_WRITE, 0x46, 0x4e, 0x38)' --driver 570.195.03
  nvproxy-policy table 580.126.20 --diff 590.48.01
  nvproxy-policy seccomp 580.126.20 --caps all --json
  nvproxy-policy conform vectors.json

exit status: 0 admitted, the same, passed; 1 refused, different, failed; 2 could not tell. docs/policy.md has more.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return run("nvproxy-policy", __doc__, EPILOG, {name: f"policy.{name}" for name in SUBCOMMANDS}, argv)
