"""docs/adding-a-command.md and docs/adding-a-driver.md, done to the letter in a copy of the tree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT

COPIED = (
    "driver_versions.yaml",
    "nvproxy_model",
    "pyproject.toml",
    "structs",
    "tests/__init__.py",
    "tests/abi",
    "tests/conftest.py",
    "tests/data",
    "tests/structs",
    "tools",
)
BLOCK = re.compile(r"^```(diff|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def copy_tree(to: Path) -> None:
    for name in COPIED:
        source = ROOT / name
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, to / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy2(source, to / name)


def apply(patch: str, root: Path) -> None:
    """Each ``--- FILE`` part: its lines with a blank before them, in one piece in the file, get those with a plus between them."""
    for part in re.split(r"^--- ", patch, flags=re.MULTILINE)[1:]:
        name, *lines = part.splitlines()
        assert all(line[:1] in (" ", "+", "") for line in lines), name
        before = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("+"))
        after = "".join(f"{line[1:]}\n" for line in lines)
        path = root / name
        if not before:
            assert not path.exists(), name
            path.write_text(after)
            continue
        text = path.read_text()
        assert text.count(before) == 1, f"{name}: {text.count(before)} places for\n{before}"
        path.write_text(text.replace(before, after))


@pytest.mark.parametrize("page", ["adding-a-command.md", "adding-a-driver.md"])
def test_the_page_is_right(page: str, tmp_path: Path) -> None:
    copy_tree(tmp_path)
    blocks = BLOCK.findall((ROOT / "docs" / page).read_text())
    assert {kind for kind, _ in blocks} == {"diff", "sh"}
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(tmp_path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    for kind, block in blocks:
        if kind == "diff":
            apply(block, tmp_path)
            continue
        done = subprocess.run(
            ["sh", "-e", "-c", block],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
