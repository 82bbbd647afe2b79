"""nvproxy-policy: which calls gVisor's nvproxy admits for a driver release, why, and what it translates."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from nvproxy_model.errors import NvproxyError
from nvproxy_model.tools.policy_cli import Parser, fail

__all__ = ["main"]

SUBCOMMANDS = ("explain", "table", "conform", "seccomp", "caps")
"""Each is a module ``policy_<name>`` beside this one, with ``add_parser(subparsers)`` that sets ``func``."""

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
    parser = Parser(prog="nvproxy-policy", description=__doc__, epilog=EPILOG)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    arguments = list(sys.argv[1:] if argv is None else argv)
    # A subcommand's module is loaded only when it is named: one question should not pay for the others' imports.
    named = [arguments[0]] if arguments and arguments[0] in SUBCOMMANDS else SUBCOMMANDS
    for name in named:
        importlib.import_module(f"nvproxy_model.tools.policy_{name}").add_parser(subparsers)
    args = parser.parse_args(arguments)
    try:
        status: int = args.func(args)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        fail("standard output: its reader closed it")
    except NvproxyError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename or 'input or output'}: {error.strerror or error}")
    except KeyboardInterrupt:
        return 128 + 2
    return status


if __name__ == "__main__":
    sys.exit(main())
