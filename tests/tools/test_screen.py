"""Answers on a terminal: rows that fit, a pager for what is longer, colours on demand; and none of it in a pipe."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvproxy_model.tools.command import programs
from nvproxy_model.tools.screen import Screen, fold, pager
from tests import ROOT
from tests.tools.test_command import DOCUMENTS

STYLE = re.compile(r"\x1b\[[\d;]*m")
SHORT = ["caps", "all"]
LONG = ["table", "latest"]
COLOURED = ["explain", "NV_EVENT_BUFFER"]


@given(st.text("ab \x1b[31m", max_size=60), st.integers(8, 30))
def test_folding_loses_no_word_and_keeps_to_the_width(line: str, width: int) -> None:
    rows = fold(line, width)
    assert " ".join(rows).split() == line.split()
    for row in rows:
        assert len(STYLE.sub("", row)) <= width or len(row.split()) == 1
    assert len(STYLE.sub("", line)) > width or rows == [line]


def test_further_rows_are_indented_below_the_first() -> None:
    assert fold("  to do      run the sandbox with the capabilities", 30) == [
        "  to do      run the sandbox",
        "      with the capabilities",
    ]


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("name", sorted(set(DOCUMENTS) - {"policy-conform"}))  # one short line, after much work
def test_every_answer_fits_80_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    program = next(program for program in programs() if program.package == name.partition("-")[0])
    program.main([*DOCUMENTS[name], "--no-pager"])
    rows = STYLE.sub("", terminal.getvalue()).splitlines()
    assert rows
    assert [row for row in rows if len(row) > 80 and len(row.split()) > 1] == []


def on_a_terminal(*words: str, user: bool = True, shell: str = "", **environment: str) -> str:
    """What nvproxy-policy shows on a terminal of 80 by 24."""
    ours, theirs = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "PAGER", "LESS")}
    process = subprocess.Popen(
        ["sh", "-c", shell] if shell else [sys.executable, "-m", "nvproxy_model.tools.policy", *words],
        stdin=theirs if user else subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        cwd=ROOT,
        env={**kept, "TERM": "xterm", "COLUMNS": "80", "LINES": "24", **environment},
    )
    os.close(theirs)
    seen = b""
    try:
        while chunk := os.read(ours, 65536):
            seen += chunk
    except OSError:  # the last one that had it open has closed it
        pass
    os.close(ours)
    process.wait(60)
    return seen.decode().replace("\r\n", "\n")


def test_what_is_longer_than_the_terminal_is_paged() -> None:
    assert re.match(r"[\d.]+: \d+ FRONTEND, ", on_a_terminal(*LONG, PAGER="tr a-z A-Z | tail -n 1"))
    assert "PAGED" not in on_a_terminal(*SHORT, PAGER="echo PAGED")
    assert "PAGED" not in on_a_terminal(*LONG, "--no-pager", PAGER="echo PAGED")
    assert "PAGED" not in on_a_terminal(*LONG, user=False, PAGER="echo PAGED")


def test_closing_what_was_paged_is_no_error(tmp_path: Path) -> None:
    """Python 3.13 prints a warning on the terminal otherwise."""
    with (tmp_path / "out").open("w") as file:
        screen = Screen(file, folds=True, pager="cat >/dev/null")
        screen.write("line\n" * 100)
        assert screen.paged
        screen.finish()
        screen.close()


def test_a_pager_that_is_left_early_is_no_error() -> None:
    assert on_a_terminal(*LONG, PAGER="head -n 1").count("\n") == 1


@pytest.mark.parametrize("command", ["exec true", "exec 0<&-; sleep 0.3", "cat >&2"])
def test_the_exit_status_is_the_answers_whatever_the_pager_does(command: str) -> None:
    ran = f"{sys.executable} -m nvproxy_model.tools.policy explain NV_EVENT_BUFFER; echo status $?"
    shown = on_a_terminal(shell=ran, PAGER=command, LINES="2")
    assert "status 1\n" in shown


def test_a_closed_output_is_one_line() -> None:
    ran = f"{sys.executable} -m nvproxy_model.tools.policy caps all >&-"
    done = subprocess.run(["sh", "-c", ran], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (2, "nvproxy-policy: error: standard output is closed\n")


def test_colours_are_for_a_terminal_or_asked_for() -> None:
    assert "\x1b[31mrefused" in on_a_terminal(*COLOURED, PAGER="cat")
    assert "\x1b" not in on_a_terminal(*COLOURED, "--color", "never", PAGER="cat")
    for words, coloured in (([], False), (["--color", "always"], True)):
        command = [sys.executable, "-m", "nvproxy_model.tools.policy", *COLOURED, *words]
        environment = {**os.environ, "PAGER": "echo PAGED", "COLUMNS": "20"}
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=60, check=False
        )
        assert ("\x1b[31mrefused" in done.stdout) == coloured
        assert "PAGED" not in done.stdout
        assert max(map(len, done.stdout.splitlines())) > 80  # a pipe has no width


@pytest.mark.parametrize(
    ("term", "wanted", "found"),
    [
        ("xterm", "sort -u", "sort -u"),
        ("xterm", "exec sort", "exec sort"),
        ("dumb", "sort", ""),
        ("xterm", "cat", ""),
        ("xterm", "", ""),
        ("xterm", "/no/such/pager -R", ""),
        ("xterm", "no-such-pager", ""),
    ],
)
def test_the_pager_is_the_users(term: str, wanted: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("PAGER", wanted)
    assert pager() == found


def test_bytes_are_neither_folded_nor_held(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with path.open("w") as file:
        screen = Screen(file, folds=True, pager="false")
        screen.write("first\n")
        file.flush()
        screen.buffer.write(b"second " * 40)
        screen.finish()
    assert path.read_text().startswith("first")
    assert "\n" not in path.read_text()[6:]
