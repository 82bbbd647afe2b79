"""Manual pages, shell completions and the documents' tables, from the commands' declarations.

``python3 -m nvproxy_model.tools.pages DIR`` writes the pages and completions below DIR, where a wheel installs them below its
prefix: share/man/man1, share/bash-completion, share/zsh, share/fish. ``--docs`` brings the tables in docs/,
the figures of the README's first command and the derived form of driver_versions.yaml up to date.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from nvproxy_model import __version__, versions
from nvproxy_model.tools.command import EVERYWHERE, VERSION, Argument, Command, Example, Program, argument, programs

__all__ = ["PROGRAMS", "TABLES", "files", "refreshed", "table", "updated", "write"]

PROGRAMS = programs()
TABLES: Mapping[str, Program] = dict(
    zip(("docs/differ.md", "docs/policy.md", "docs/tracing.md"), PROGRAMS, strict=True)
)
"""The documents that have a table of subcommands, between two comments."""

_HELP = argument("-h", "--help", action="help", help="show this help message and exit")
_VERSION = argument(VERSION[0], action="version", help=VERSION[1])
_PLAIN_VERSION = argument(VERSION[0], action="version", help="show the version and exit")


def files(version: str = __version__, of: Iterable[Program] = PROGRAMS) -> Iterator[tuple[str, str]]:
    """The path below a prefix, and the text, of each page and completion."""
    for program in of:
        yield f"share/man/man1/{program.name}.1", _manual(version, program)
        for command in program.commands:
            yield f"share/man/man1/{program.name}-{command.name}.1", _manual(version, program, command)
        yield f"share/bash-completion/completions/{program.name}", _bash(program)
        yield f"share/zsh/site-functions/_{program.name}", _zsh(program)
        yield f"share/fish/vendor_completions.d/{program.name}.fish", _fish(program)


def write(prefix: Path, version: str = __version__, of: Iterable[Program] = PROGRAMS) -> list[Path]:
    """Write `files` below a folder; returns their paths. Raises OSError."""
    written = []
    for name, text in files(version, of):
        path = prefix / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        written.append(path)
    return written


def table(program: Program) -> str:
    """A program's subcommands in Markdown: what each is for, its exit statuses, the schemas of its JSON."""
    lines = ["| subcommand | what it does | exit status | JSON |", "| --- | --- | --- | --- |"]
    for command in program.commands:
        exits = "; ".join(f"{status}: {what}" for status, what in command.exits.items())
        schemas = ", ".join(f"[`{name}`](../{schema_file(name)})" for name in command.schemas) or "-"
        lines.append(f"| `{command.name}` | {command.summary} | {exits} | {schemas} |")
    return "\n".join(lines) + "\n"


def schema_file(name: str) -> str:
    """Where in the source tree, and in a wheel, the schema of that name is."""
    return f"nvproxy_model/schemas/{name.replace('/', '.')}.json"


def updated(document: str, program: Program) -> str:
    """A document with its table brought up to date. Raises ValueError if it has no place for one."""
    begin, end = "<!-- subcommands -->\n", "<!-- end of subcommands -->\n"
    head, found, rest = document.partition(begin)
    _, closed, tail = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"want {begin.strip()} and {end.strip()} around the table")
    return head + begin + table(program) + end + tail


def refreshed(readme: str) -> str:
    """The README with the figures of its first command as they are now: the lines of ``nvproxy-differ check`` that it shows.

    A line stands for the release that it begins with, the last one for the summary; the choice of releases stays.
    """
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        PROGRAMS[0].main(["check"])
    lines = printed.getvalue().splitlines()
    by_word = {line.split()[0]: line for line in reversed(lines[:-1])}
    head, mark, rest = readme.partition("nvproxy-differ check\n")
    block, end, tail = rest.partition("\n$ ")
    shown = [by_word.get(line.split()[0], line) if line.strip() else line for line in block.split("\n")]
    shown[-1] = lines[-1]
    return head + mark + "\n".join(shown) + end + tail


def _help(one: Argument) -> str:
    return str(one.options["help"]) % {"default": one.options.get("default")}


def _metavar(one: Argument) -> str | None:
    """What stands for the argument's value; None for a flag."""
    if one.options.get("action") in ("store_true", "store_false", "store_const", "help", "version"):
        return None
    named = one.options.get("metavar")
    return str(named) if named else one.names[-1].lstrip("-").upper()


def _options(program: Program, command: Command | None) -> list[Argument]:
    own = [one for one in command.each() if not one.positional] if command else []
    if program not in PROGRAMS:
        return [*own, _HELP, *(() if command else (_PLAIN_VERSION,))]
    return [*own, *(EVERYWHERE if command else ()), _HELP, _VERSION]


def _roff(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^(?=[.'])", r"\\&", text, flags=re.MULTILINE)


def _manual(version: str, program: Program, command: Command | None = None) -> str:
    name = f"{program.name}-{command.name}" if command else program.name
    what = command or program
    lines = [
        f'.TH {name.upper()} 1 "" "nvproxy\\-model {version}"',
        ".SH NAME",
        f"{_roff(name)} \\- {_roff(what.summary.rstrip('.'))}",
        ".SH SYNOPSIS",
    ]
    if command is None:
        lines += [f".B {_roff(program.name)}", ".I COMMAND", "[option ...]"]
    else:
        lines += [f".B {_roff(f'{program.name} {command.name}')}", "[option ...]"]
        lines += [f".I {_roff(_metavar(one) or '')}" for one in command.each() if one.positional]
        lines.append(".SH DESCRIPTION")
        for paragraph in command.description.split("\n\n"):
            lines += [".PP", _roff(paragraph)]
    if command is None:
        lines.append(".SH COMMANDS")
        for each in program.commands:
            lines += [".TP", f".BR {_roff(f'{program.name}-{each.name}')} (1)", _roff(each.summary)]
    elif any(one.positional for one in command.each()):
        lines.append(".SH ARGUMENTS")
        for one in command.each():
            if one.positional:
                lines += [".TP", f".I {_roff(_metavar(one) or '')}", _roff(_help(one))]
    lines.append(".SH OPTIONS")
    for one in _options(program, command):
        value = _metavar(one)
        flags = ", ".join(
            f"\\fB{_roff(flag)}\\fR" + (f" \\fI{_roff(value)}\\fR" if value else "") for flag in one.names
        )
        lines += [".TP", flags, _roff(_help(one))]
    for title, terms in command.notes.items() if command else ():
        lines += [f".SH {title.upper()}"]
        for term, text in terms.items():
            lines += [".TP", f"\\fB{_roff(term)}\\fR", _roff(text)]
    if command and command.schemas:
        lines += [".SH JSON SCHEMA", _roff(", ".join(command.schemas))]
    lines.append(".SH EXIT STATUS")
    for status, text in what.exits.items():
        lines += [".TP", f"\\fB{status}\\fR", _roff(text)]
    lines += [".SH EXAMPLES", *_examples(what.examples)]
    others = [program.name] if command else []
    others += [other.name for other in PROGRAMS if other is not program]
    lines += [".SH SEE ALSO", " ".join(f"\\fB{_roff(other)}\\fR(1)," for other in others).rstrip(",")]
    return "\n".join(lines) + "\n"


def _examples(examples: tuple[Example, ...]) -> Iterator[str]:
    for example in examples:
        yield ".PP"
        if example.what:
            yield _roff(example.what[0].upper() + example.what[1:]) + ":"
        yield from (".nf", ".RS", _roff(example.line), ".RE", ".fi")


def _function(program: Program) -> str:
    return "_" + program.name.replace("-", "_")


def _bash(program: Program) -> str:
    names = " ".join(command.name for command in program.commands)
    cases, values = [], []
    for command in program.commands:
        flags = " ".join(flag for one in _options(program, command) for flag in one.names)
        cases.append(f"        {command.name}) words='{flags}' ;;")
        for one in _options(program, command):
            if one.options.get("choices"):
                wanted = "|".join(f"{command.name}:{flag}" for flag in one.names)
                values.append(f"        {wanted}) words='{' '.join(one.options['choices'])}' ;;")
            elif _metavar(one) is not None:
                values += [f"        {command.name}:{flag}) return ;;" for flag in one.names]
    return "\n".join(
        [
            f"# Completion of {program.name} for bash.",
            f"{_function(program)}() {{",
            "    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words=",
            "    if ((COMP_CWORD == 1)); then",
            f"        words='{names} --help --version'",
            "    else",
            "        case ${COMP_WORDS[1]}:$before in",
            *("    " + line for line in values),
            "            *) if [[ $current == -* ]]; then case ${COMP_WORDS[1]} in",
            *("        " + line for line in cases),
            "            esac; fi ;;",
            "        esac",
            "    fi",
            "    local IFS=$' \\n'",
            '    COMPREPLY=($(compgen -W "$words" -- "$current"))',
            "}",
            f"complete -o default -F {_function(program)} {program.name}",
            "",
        ]
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _zsh(program: Program) -> str:
    def plain(text: str) -> str:
        return re.sub(r"([\[\]:\\])", r"\\\1", text)

    lines = [f"#compdef {program.name}", f"{_function(program)}() {{", "    local -a commands", "    commands=("]
    lines += [f"        {_quoted(f'{command.name}:{plain(command.summary)}')}" for command in program.commands]
    lines += [
        "    )",
        "    if ((CURRENT == 2)); then",
        "        _describe command commands",
        "        return",
        "    fi",
    ]
    lines += ["    local subcommand=$words[2]", "    shift words", "    ((CURRENT--))", "    case $subcommand in"]
    for command in program.commands:
        lines.append(f"        {command.name})")
        lines.append("            _arguments \\")
        for one in _options(program, command):
            value, choices = _metavar(one), one.options.get("choices")
            action = f"({' '.join(choices)})" if choices else "_files"
            takes = "" if value is None else f":{plain(value)}:{action}"
            many = "*" if one.options.get("action") == "append" else ""
            lines += [
                f"                {_quoted(f'{many}{flag}[{plain(_help(one))}]{takes}')} \\" for flag in one.names
            ]
        lines += ["                '*:file:_files'", "            ;;"]
    lines += ["    esac", "}", f'{_function(program)} "$@"', ""]
    return "\n".join(lines)


def _fish(program: Program) -> str:
    lines = [f"# Completion of {program.name} for fish."]
    for command in program.commands:
        lines.append(
            f"complete -c {program.name} -f -n __fish_use_subcommand -a {command.name} -d {_fish_quoted(command.summary)}"
        )
        for one in _options(program, command):
            words = [f"complete -c {program.name} -n '__fish_seen_subcommand_from {command.name}'"]
            words += [f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in one.names]
            if one.options.get("choices"):
                words.append(f"-x -a {_fish_quoted(' '.join(one.options['choices']))}")
            elif _metavar(one) is not None:
                words.append("-r")
            lines.append(" ".join([*words, f"-d {_fish_quoted(_help(one))}"]))
    return "\n".join(lines) + "\n"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def main() -> int:
    """Write what the command line asks for; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python3 -m nvproxy_model.tools.pages", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("dir", metavar="DIR", nargs="?", type=Path, help="where share/ is made, such as ~/.local")
    parser.add_argument("--docs", action="store_true", help="update docs/, README.md and driver_versions.json here")
    args = parser.parse_args()
    if args.dir is None and not args.docs:
        parser.error("want DIR, --docs or both")
    if args.dir is not None:
        print(f"{args.dir}: {len(write(args.dir))} files")
    for name, program in TABLES.items() if args.docs else ():
        path = Path(name)
        path.write_text(updated(path.read_text("utf-8"), program), "utf-8")
    if args.docs:
        path = Path("README.md")
        path.write_text(refreshed(path.read_text("utf-8")), "utf-8")
        versions.DERIVED.write_text(versions.derived(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
