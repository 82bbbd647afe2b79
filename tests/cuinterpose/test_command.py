"""What a reader of cuinterpose meets first: help at every width, documented names, and what the page says is left out."""

from __future__ import annotations

import ast
import inspect
import io
import re
from enum import Enum
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuinterpose import cli, surface
from cuinterpose.output import say
from tests import ROOT
from tests.cuinterpose.shim_world import Command

COMMANDS = [
    *("", "run", "doctor", "ticket", "ticket show", "conform", "peers"),
    *("inventory", "preflight", "checkpoint", "restore", "cycle"),
]
MODULES = sorted({path.stem for path in (ROOT / "cuinterpose").glob("*.py")} - {"__init__"})


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits(
    name: str, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit) as ended:
        cli.main([*name.split(), "--help"])
    text, errors = capsys.readouterr()
    assert (ended.value.code, errors) == (0, "")
    assert max(map(len, text.splitlines())) <= columns
    assert "examples:\n  cuinterpose " in text


@pytest.mark.parametrize("name", ["", "ticket"])
def test_no_command_shows_the_help(command: Command, name: str) -> None:
    done = command(*name.split())
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout == command(*name.split(), "--help").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("bogus", r"argument COMMAND: invalid choice: 'bogus' .*\(see cuinterpose --help\)"),
        ("doctor", r"the following arguments are required: PID \(see cuinterpose doctor --help\)"),
        ("peers --bogus 1", r"unrecognized arguments: --bogus 1? ?\(see cuinterpose peers --help\)"),
        ("--bogus", r"unrecognized arguments: --bogus \(see cuinterpose --help\)"),
        ("run", "run: no command; write it after --"),
    ],
)
def test_mistakes_are_one_line(command: Command, words: str, said: str) -> None:
    done = command(*words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(f"cuinterpose: error: {said}\n", done.stderr)


def test_version(command: Command) -> None:
    done = command("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"cuinterpose \d+\.\S+\n", done.stdout)


def _public(node: ast.AST, prefix: str = "") -> list[str]:
    found = []
    for child in getattr(node, "body", []):
        if isinstance(child, ast.FunctionDef | ast.ClassDef) and not child.name.startswith("_"):
            found.append(prefix + child.name)
            found += _public(child, f"{prefix}{child.name}.") if isinstance(child, ast.ClassDef) else []
    return found


@pytest.mark.parametrize("name", MODULES)
def test_public_names_are_documented(name: str) -> None:
    """Under help(): modules, classes, functions, methods and properties; the members of an enum in its class's docstring."""
    module = import_module(f"cuinterpose.{name}")
    assert inspect.getdoc(module)
    for dotted in _public(ast.parse(Path(str(module.__file__)).read_text())):
        thing = module
        for part in dotted.split("."):
            thing = inspect.getattr_static(thing, part)  # type: ignore[assignment]
        documented = inspect.getdoc(thing)
        assert documented, f"{name}.{dotted}"
        if isinstance(thing, type) and issubclass(thing, Enum):
            for member in thing:
                assert re.search(rf"\b{member.name}\b", documented), f"{name}.{dotted}.{member.name}"


def test_what_the_page_calls_left_out_is() -> None:
    """docs/cuinterpose.md names functions outside the surface, and those that are only watched: legacy IPC."""
    page = (ROOT / "docs" / "cuinterpose.md").read_text()
    watched, left_out = page.index("### Forwarded, and watched"), page.index("### Not in the surface")
    named = set(re.findall(r"`(cu[A-Z]\w+)", page[left_out : page.index("ai-dynamo/snapshot")]))
    assert {"cuInit", "cuMemPoolExportPointer", "cuLogicalEndpointCreate", "cuGetExportTable"} <= named
    assert not named & set(surface.DRIVER)
    named = set(re.findall(r"`(cu[A-Z]\w+)", page[watched:left_out]))
    assert {"cuIpcGetMemHandle", "cuIpcOpenMemHandle"} <= named
    assert named <= set(surface.WATCHED)


@given(st.text("ab  \u00e9", max_size=200), st.integers(20, 60))
def test_a_line_on_a_terminal_fits_it_and_in_a_pipe_stays_one(line: str, width: int) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        terminal, pipe = Terminal(), io.StringIO()
        say(line, terminal)
        say(line, pipe)
    assert pipe.getvalue() == f"{line}\n"
    assert terminal.getvalue().split() == line.split()
    assert all(len(row) <= width or len(row.split()) == 1 for row in terminal.getvalue().rstrip().split("\n"))
