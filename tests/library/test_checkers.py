"""What mypy and pyright say of programs that use the library: every mistake is an error, and what is right is none."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT

MISTAKES = (ROOT / "tests/library/mistakes.py").read_text()
WRONG = {number for number, line in enumerate(MISTAKES.splitlines(), 1) if "# type: ignore[" in line}
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

pytestmark = pytest.mark.slow


def _needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(name) is None, reason=f"SKIPPED, NOT TESTED: no {name} (pip install '.[lint]')")


@pytest.fixture
def mistakes(tmp_path: Path) -> Path:
    """The mistakes without the comments that expect them."""
    path = tmp_path / "mistakes.py"
    path.write_text(MISTAKES.replace("# type: ignore[", "# was ["))
    return path


def _mypy(cache: Path, *paths: Path) -> list[str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(cache), *map(str, paths)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    names = {path.name for path in paths}
    return [line for line in done.stdout.splitlines() if ": error:" in line and Path(line.split(":")[0]).name in names]


def _pyright(folder: Path, *paths: Path) -> list[dict[str, Any]]:
    """Its errors. It does not follow the hook by which an editable installation is imported, so it is told where we are."""
    rules = {"typeCheckingMode": "standard", "reportUnnecessaryComparison": "error"}
    config = {**rules, "extraPaths": [str(ROOT)], "include": [str(path) for path in paths]}
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(paths)
    found: list[dict[str, Any]] = report["generalDiagnostics"]
    return found


@_needs("mypy")
def test_mypy_finds_the_mistakes(tmp_path: Path, mistakes: Path) -> None:
    assert {int(line.split(":")[1]) for line in _mypy(tmp_path, mistakes)} == WRONG


@_needs("mypy")
def test_mypy_finds_nothing_in_the_examples(tmp_path: Path) -> None:
    assert _mypy(tmp_path, *EXAMPLES) == []


@_needs("basedpyright")
def test_pyright_finds_the_mistakes(tmp_path: Path, mistakes: Path) -> None:
    assert {each["range"]["start"]["line"] + 1 for each in _pyright(tmp_path, mistakes)} == WRONG


@_needs("basedpyright")
def test_pyright_finds_nothing_in_the_examples(tmp_path: Path) -> None:
    assert _pyright(tmp_path, *EXAMPLES) == []
