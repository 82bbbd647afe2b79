"""A command as one declaration, and how it is run: arguments, help, exit statuses, mistakes.

A `Program` is what a user types first (``nvproxy-policy``), a `Command` its subcommand. Declarations import nothing heavy, so
``--help``, ``--version``, the manual pages, the completions and the tables in docs/ cost nothing and cannot disagree. The work
is done by ``run(args) -> int`` of the module that has the subcommand's name.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import gc
import importlib
import os
import re
import sys
import textwrap
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

from nvproxy_model.errors import NvproxyError
from nvproxy_model.printable import printable
from nvproxy_model.tools import extras, output, screen

__all__ = [
    "EVERYWHERE",
    "UNKNOWN",
    "Argument",
    "Command",
    "Example",
    "Failure",
    "OneOf",
    "Parser",
    "Program",
    "argument",
    "fail",
    "programs",
]

UNKNOWN = 2
"""The exit status of a question that could not be answered, a user's mistake included."""

_GARBAGE = 20_000
"""Objects more than freed ones before the collector looks; Python's own is 700."""

VERSION = ("--version", "show the package's version, the gVisor revision it follows and the newest recorded release")


class Argument(NamedTuple):
    """One argument as argparse takes it: ``names`` are its flags, or the name of a positional one."""

    names: tuple[str, ...]
    options: Mapping[str, Any]

    @property
    def positional(self) -> bool:
        return not self.names[0].startswith("-")


class OneOf(NamedTuple):
    """Arguments that exclude each other."""

    arguments: tuple[Argument, ...]


class Example(NamedTuple):
    """A command line, and what it is for where that is not plain."""

    line: str
    what: str = ""


class Command(NamedTuple):
    """A subcommand. ``description`` is paragraphs separated by a blank line; it is re-flowed to the terminal's width.

    ``exits`` maps each exit status to its meaning. ``schemas`` are those of its JSON documents. ``notes`` are further sections
    of the help: a title, and terms with their explanations. ``module`` is where ``run`` is, if not under the command's name.
    ``failure`` is the exit status of a mistake and of a failure of our own.
    """

    name: str
    summary: str
    description: str
    examples: tuple[Example, ...]
    exits: Mapping[int, str]
    arguments: tuple[Argument | OneOf, ...] = ()
    schemas: tuple[str, ...] = ()
    notes: Mapping[str, Mapping[str, str]] = MappingProxyType({})
    module: str = ""
    failure: int = UNKNOWN

    def each(self) -> Iterator[Argument]:
        """All arguments, those of a `OneOf` one by one."""
        for item in self.arguments:
            yield from item.arguments if isinstance(item, OneOf) else (item,)


class Program(NamedTuple):
    """A command with subcommands, whose modules are those of ``nvproxy_model.tools.<package>``."""

    name: str
    summary: str
    package: str
    commands: tuple[Command, ...]
    examples: tuple[Example, ...]
    exits: Mapping[int, str]

    def command(self, name: str) -> Command:
        """The subcommand of that name."""
        return next(command for command in self.commands if command.name == name)

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run the command; returns its exit status, or raises SystemExit as argparse does."""
        arguments = list(sys.argv[1:] if argv is None else argv)
        if argv is None:
            _look_for_little_garbage()
        try:
            if sys.stdout is None:
                fail("standard output is closed")
            with _closed_pipe_is_silent():
                return self._run(arguments)
        except Failure as failure:
            failure.code = next((c.failure for c in self.commands if arguments[:1] == [c.name]), UNKNOWN)
            print(f"{self.name}: error: {printable(failure.message)}", file=sys.stderr)
            raise

    def parser(self, words: Container[str] | None = None) -> Parser:
        """The parser of the whole command line, or of the command lines that have no other ``words``."""
        parser = Parser(prog=self.name, description=self.summary)
        parser.add_argument(VERSION[0], action=_Version, help=VERSION[1])
        parser.sections = _sections(self.exits, self.examples)
        subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=Parser)
        for command in self.commands:
            subparser = subparsers.add_parser(command.name, help=command.summary, description=command.description)
            if words is not None and command.name not in words:
                continue
            for item in command.arguments:
                if isinstance(item, OneOf):
                    group = subparser.add_mutually_exclusive_group()
                    for one in item.arguments:
                        group.add_argument(*one.names, **one.options)
                else:
                    subparser.add_argument(*item.names, **item.options)
            for one in EVERYWHERE:
                subparser.add_argument(*one.names, **one.options)
            subparser.add_argument(VERSION[0], action=_Version, help=argparse.SUPPRESS)
            subparser.sections = [*_notes(command), *_sections(command.exits, command.examples)]
        return parser

    def _run(self, arguments: list[str]) -> int:
        names = {command.name for command in self.commands}
        if arguments[:1] == ["help"] and set(arguments[1:]) <= names:
            arguments = [*arguments[1:2], "--help"]
        parser = self.parser(arguments)
        args, unknown = parser.parse_known_args(arguments)
        if unknown:
            fail(
                f"unrecognized arguments: {' '.join(unknown)} (see {' '.join(filter(None, (self.name, args.command)))} --help)"
            )
        if args.command is None:
            parser.print_help()
            return UNKNOWN
        module = self.command(args.command).module or args.command
        output.color(args.color)
        folds = getattr(args, "format", "text") == "text"
        try:
            with screen.shown(folds=folds, pages=not args.no_pager):
                status: int = importlib.import_module(f"nvproxy_model.tools.{self.package}.{module}").run(args)
        except BrokenPipeError:
            raise
        except NvproxyError as error:
            fail(str(error))
        except ModuleNotFoundError as error:
            what = extras.missing(error)
            if what is None:
                raise
            output.warn(self.name, what)
            return self.command(args.command).failure
        except OSError as error:
            fail(f"{error.filename or 'input or output'}: {error.strerror or error}")
        except KeyboardInterrupt:
            return 128 + 2
        except MemoryError:
            fail("out of memory")
        return status


def programs() -> tuple[Program, ...]:
    """The three commands, in alphabetical order."""
    packages = ("differ", "policy", "trace")
    return tuple(importlib.import_module(f"nvproxy_model.tools.{package}").PROGRAM for package in packages)


class Failure(SystemExit):
    """What `fail` raises: `Program.main` prints it in one line."""

    def __init__(self, message: str) -> None:
        super().__init__(UNKNOWN)
        self.message = message


def fail(message: str) -> NoReturn:
    """End the command with one line on standard error and UNKNOWN."""
    raise Failure(message)


def argument(*names: str, **options: Any) -> Argument:
    """An argument of a declaration. Choices are listed after its help, where they can wrap, not in the usage line."""
    choices = options.get("choices")
    if choices is not None:
        options.setdefault(
            "metavar", names[-1].lstrip("-").upper() if options.get("nargs") is None else names[0].upper()
        )
        options["help"] = f"{options['help']}: {', '.join(choices)}"
    return Argument(names, options)


EVERYWHERE = (
    argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="whether text is coloured; auto means on a terminal",
    ),
    argument("--no-pager", action="store_true", help="do not show what is longer than the terminal in $PAGER"),
)
"""The options of every subcommand."""


def _wrap(text: str, width: int, first: str = "", further: str = "") -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()), width, initial_indent=first, subsequent_indent=further, break_on_hyphens=False
    )


class _Help(argparse.HelpFormatter):
    """argparse's, but that a name with a hyphen is not broken."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return _wrap(text, width)


class Parser(argparse.ArgumentParser):
    """argparse whose mistakes are one line, and whose help has sections after the options, all of it wrapped."""

    def __init__(self, **more: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_Help, **more)
        self.sections: list[tuple[str, list[tuple[str, str] | Example]]] = []

    def error(self, message: str) -> NoReturn:
        fail(f"{message} (see {self.prog} --help)")

    def format_help(self) -> str:
        paragraphs, self.description = (self.description or "").split("\n\n"), None
        try:
            usage, _, rest = super().format_help().partition("\n\n")
        finally:
            self.description = "\n\n".join(paragraphs)
        width = self._get_formatter()._width
        described = ["\n".join(_wrap(paragraph, width)) for paragraph in paragraphs if paragraph]
        ending = [_section(title, rows, width) for title, rows in self.sections]
        return "\n\n".join([usage, *described, rest.strip("\n"), *ending]) + "\n"


def _notes(command: Command) -> list[tuple[str, list[tuple[str, str] | Example]]]:
    notes: list[tuple[str, list[tuple[str, str] | Example]]] = [
        (title, list(terms.items())) for title, terms in command.notes.items()
    ]
    if command.schemas:
        notes.append(("JSON schema", [(schema, "") for schema in command.schemas]))
    return notes


def _sections(
    exits: Mapping[int, str], examples: Iterable[Example]
) -> list[tuple[str, list[tuple[str, str] | Example]]]:
    return [("exit status", [(str(status), what) for status, what in exits.items()]), ("examples", list(examples))]


def _section(title: str, rows: Sequence[tuple[str, str] | Example], width: int) -> str:
    lines = [f"{title}:"]
    column = max((len(row[0]) for row in rows if not isinstance(row, Example)), default=0) + 4
    for row in rows:
        if isinstance(row, Example):
            if row.what:
                lines += _wrap(row.what, width, "  # ", "  # ")
            lines += _shell(row.line, width)
        else:
            term = f"  {row[0]:{column - 4}}  "
            lines += _wrap(row[1], width, term, " " * column) or [term.rstrip()]
    return "\n".join(lines)


def _shell(line: str, width: int) -> list[str]:
    """A command line in two columns' indent; one that is too long goes on after a backslash, as a shell reads it."""
    lines = ["  "]
    # An option and its value stay together where they fit.
    for unit in re.findall(r"(?:-\S+ (?!-)(?:'[^']*'|\S)+)|(?:'[^']*'|\S)+", line):
        for word in [unit] if len(unit) + 8 <= width else re.findall(r"(?:'[^']*'|\S)+", unit):
            if not lines[-1].isspace() and len(lines[-1]) + len(word) + 3 > width:
                lines[-1] += " \\"
                lines.append("      ")
            lines[-1] += ("" if lines[-1].isspace() else " ") + word
    return lines


class _Version(argparse.Action):
    """``--version``."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from nvproxy_model import followed

        try:
            versions = output.versions()
        except NvproxyError as error:
            parser.exit(2, f"{parser.prog.split()[0]}: {printable(str(error))}\n")
        print(f"{parser.prog.split()[0]} {versions['nvproxy_model']}")
        print(f"follows gVisor {versions['gvisor_commit']} and the change: {versions['gvisor_change']}")
        for name, later in followed.LATER.items():
            print(f"  later, {followed.described(name)}: {later.what}")
        print(f"newest recorded release: {versions['newest_release']}")
        parser.exit()


def _look_for_little_garbage() -> None:
    """What a command imports and builds stays until it ends: looking through it for garbage costs up to a fifth of a short one."""
    gc.set_threshold(_GARBAGE)
    atexit.register(gc.freeze)


@contextlib.contextmanager
def _closed_pipe_is_silent() -> Iterator[None]:
    """A reader that leaves early (``| head``) is not a mistake: nothing is printed, and the exit status is UNKNOWN."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(UNKNOWN) from None
