"""nvproxy-differ: driver releases against this model, against each other, and against other people's structs."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from nvproxy_model.errors import NvproxyError
from nvproxy_model.tools.differ_cli import EXIT, UNKNOWN, Parser, fail

__all__ = ["main"]

SUBCOMMANDS = ("check", "diff", "history", "layout", "audit", "place", "compat", "gvisor", "pin", "report", "record")
"""Each is a module ``differ_<name>`` beside this one, with ``add_parser(subparsers)`` that sets ``func``."""

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
    parser = Parser(
        prog="nvproxy-differ",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    arguments = list(sys.argv[1:] if argv is None else argv)
    # A subcommand's module is loaded only when it is named: one question should not pay for the others' imports.
    named = [arguments[0]] if arguments and arguments[0] in SUBCOMMANDS else SUBCOMMANDS
    for name in named:
        importlib.import_module(f"nvproxy_model.tools.differ_{name}").add_parser(subparsers)
    args = parser.parse_args(arguments)
    try:
        status: int = args.func(args)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        fail("standard output: its reader closed it")
    except NvproxyError as error:
        fail(str(error))
    except KeyboardInterrupt:
        return 128 + 2
    except MemoryError:
        fail("out of memory")
    return status if status in (0, 1) else UNKNOWN


if __name__ == "__main__":
    sys.exit(main())
