"""What the three commands have in common: a command line with subcommands, and how a mistake is told."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from nvproxy_model.errors import NvproxyError

__all__ = ["UNKNOWN", "Failure", "Parser", "fail", "run"]

UNKNOWN = 2
"""The exit status of a question that could not be answered, a user's mistake included."""


class Failure(SystemExit):
    """What `fail` raises: `run` prints it in one line."""

    def __init__(self, message: str) -> None:
        super().__init__(UNKNOWN)
        self.message = message


def fail(message: str) -> NoReturn:
    """End the command with one line on standard error and UNKNOWN."""
    raise Failure(message)


class Parser(argparse.ArgumentParser):
    """argparse whose complaints are one line, and whose help keeps its examples as they are."""

    def __init__(self, **more: Any) -> None:
        more.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        more.setdefault("allow_abbrev", False)
        super().__init__(**more)

    def error(self, message: str) -> NoReturn:
        fail(f"{message} (see {self.prog} --help)")


def run(
    name: str, description: str | None, epilog: str, subcommands: dict[str, str], argv: Sequence[str] | None = None
) -> int:
    """Run a command; returns its exit status, or raises SystemExit as argparse does.

    ``subcommands`` are the names and their modules, each with ``add_parser(subparsers)`` that sets ``func``. A module is
    loaded only when it is named: one question should not pay for the others' imports.
    """
    try:
        return _run(name, description, epilog, subcommands, list(sys.argv[1:] if argv is None else argv))
    except Failure as failure:
        # A hostile name may hold control characters.
        line = re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]", lambda c: ascii(c[0])[1:-1], failure.message)
        print(f"{name}: error: {line}", file=sys.stderr)
        raise


def _run(name: str, description: str | None, epilog: str, subcommands: dict[str, str], arguments: list[str]) -> int:
    parser = Parser(prog=name, description=description, epilog=epilog)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    named = arguments[:1] if arguments and arguments[0] in subcommands else list(subcommands)
    for subcommand in named:
        importlib.import_module(f"nvproxy_model.tools.{subcommands[subcommand]}").add_parser(subparsers)
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
