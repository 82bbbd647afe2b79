"""A command that has a parser and no declaration, as a `Program`: what its manual pages and completions are written from."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping

from nvproxy_model.tools.command import Argument, Command, Example, Program

__all__ = ["described"]


def described(parser: argparse.ArgumentParser, examples: Mapping[str, Iterable[tuple[str, str]]]) -> Program:
    """The program of a parser with subcommands. ``examples``: subcommand -> command lines, each with what it answers.

    The exit statuses are what a text says after its "exit status:", as in ``0 yes, 1 no``.
    """
    subcommands = _subcommands(parser)
    summaries = {choice.dest: choice.help or "" for choice in subcommands._choices_actions}
    shown = {name: tuple(Example(*pair) for pair in pairs) for name, pairs in examples.items()}
    _, exits = _exits(parser.epilog or "")
    commands = []
    for name, one in subcommands.choices.items():
        description, own = _exits(one.description or "")
        arguments = tuple(_argument(action) for action in one._actions if not isinstance(action, argparse._HelpAction))
        commands.append(Command(name, summaries[name], description, shown[name], own or exits, arguments))
    every = tuple(example for command in commands for example in command.examples)
    return Program(parser.prog, parser.description or "", "", tuple(commands), every, exits)


def _subcommands(parser: argparse.ArgumentParser) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    return next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))


def _exits(text: str) -> tuple[str, dict[int, str]]:
    """A text without its exit statuses, and those."""
    before, _, after = re.sub(r"(?i)exit status: ", "\0", text).partition("\0")
    found = re.findall(r"(\d) (.*?)(?=, \d |[.;]|$)", " ".join(after.split()))
    return before.strip(), {int(status): what for status, what in found}


def _argument(action: argparse.Action) -> Argument:
    if isinstance(action, argparse._SubParsersAction):
        lines = [f"{choice.dest}: {choice.help}" for choice in action._choices_actions]
        return Argument((str(action.metavar),), {"help": "; ".join(lines)})
    options = {"help": action.help, "metavar": action.metavar, "choices": action.choices, "default": action.default}
    if action.nargs == 0:
        options["action"] = "store_true"
    return Argument(tuple(action.option_strings) or (action.dest,), options)
