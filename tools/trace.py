"""nvproxy-trace: record what a program asks of the NVIDIA driver, decode it, check it against a policy, compare two runs."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from nvproxy_model.errors import NvproxyError
from nvproxy_model.tools.trace_cli import Parser, fail

__all__ = ["main"]

SUBCOMMANDS = ("record", "decode", "check", "compare", "stats", "census", "import", "scrub", "replay")
"""Each is a module ``trace_<name>`` beside this one, with ``add_parser(subparsers)`` that sets ``func``."""

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
    parser = Parser(prog="nvproxy-trace", description=__doc__, epilog=EPILOG)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    arguments = list(sys.argv[1:] if argv is None else argv)
    # A subcommand's module is loaded only when it is named: one question should not pay for the others' imports.
    named = [arguments[0]] if arguments and arguments[0] in SUBCOMMANDS else SUBCOMMANDS
    for name in named:
        importlib.import_module(f"nvproxy_model.tools.trace_{name}").add_parser(subparsers)
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
    except MemoryError:
        fail("out of memory")
    return status


if __name__ == "__main__":
    sys.exit(main())
