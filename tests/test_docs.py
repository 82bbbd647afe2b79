"""Every command and every program that the documents show is run, and prints what they say it prints."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests import ROOT

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
INSTALL = re.compile(r"python3 -m venv .* && \.venv/bin/(.*)")
"""The two install commands are .ci/run's to run, in fresh clones; here only what they end in, unless that is pytest."""


def _blocks(kind: str) -> list[object]:
    found = []
    for path in DOCUMENTS:
        text = path.read_text()
        for match in re.finditer(rf"^```{kind}\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, match.start()) + 1
            marks = [pytest.mark.slow] if path.parent.name == "tutorials" else []
            found.append(pytest.param(match[1], id=f"{path.name}:{line}", marks=marks))
    return found


def _commands(block: str) -> list[tuple[str, str]]:
    """(command, output) pairs of a console block; a command may go on over lines that end in a backslash."""
    pairs: list[tuple[str, str]] = []
    continued = False
    for line in block.splitlines():
        if continued:
            pairs[-1] = (pairs[-1][0] + "\n" + line.removeprefix("> "), "")
        elif line.startswith("$ "):
            pairs.append((line[2:], ""))
        else:
            assert pairs, f"output before any command: {line}"
            pairs[-1] = (pairs[-1][0], pairs[-1][1] + line + "\n")
            continue
        continued = line.endswith("\\")
    return pairs


@pytest.mark.parametrize("block", _blocks("console"))
def test_console_block(block: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    pairs = _commands(block)
    assert pairs
    # A short name: the path of a socket below it has little room (sockaddr_un).
    out = tmp_path_factory.mktemp("out")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "COLUMNS": "120",
        "OUT": str(out),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    checker = doctest.OutputChecker()
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for command, wanted in pairs:
        command = INSTALL.sub(r"\1", command)
        if command == "pytest":
            continue
        done = subprocess.run(
            ["bash", "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        seen = done.stdout + done.stderr
        wanted = re.sub(r"\n\.\.\.\n\Z", "...\n", wanted)  # a last "..." stands for no line as well
        if "NVPROXY_NATIVE" in seen:
            pytest.skip(f"the native parts were left out: $ {command}")
        assert "Traceback" not in seen
        assert not wanted or checker.check_output(wanted, seen, flags), f"$ {command}\n{seen}"
        assert wanted or done.returncode == 0, f"$ {command}\n{seen}"


@pytest.mark.parametrize("block", _blocks("python"))
def test_python_block(block: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", block], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_links_lead_somewhere() -> None:
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text()):
            if not re.match(r"[a-z]+:", target):
                assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_every_page_is_in_the_navigation() -> None:
    """mkdocs build --strict says so too; here, whoever adds a page sees it at once."""
    named = re.findall(r"[\w/-]+\.md", yaml.safe_dump(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert sorted(named) == sorted(str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md"))


def test_each_role_has_a_tutorial_that_is_run() -> None:
    rows = re.findall(r"^\| an? .*\]\((docs/tutorials/.*\.md)\) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "tutorials").glob("*.md"))
    for row in rows:
        assert re.search(r"^```(console|python)$", (ROOT / row).read_text(), re.MULTILINE), row
