"""The pages that say how to add something, done to the letter in one copy of the tree; then all other tests run there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT

PAGES = ("adding-a-command.md", "adding-a-subcommand.md", "adding-a-driver.md")
BLOCK = re.compile(r"^```(diff|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def apply(patch: str, root: Path) -> None:
    """Each ``--- FILE`` part names one place: the lines without a plus, which then become those without a minus."""
    for part in re.split(r"^--- ", patch, flags=re.MULTILINE)[1:]:
        name, *lines = part.splitlines()
        assert all(line[:1] in (" ", "+", "-", "") for line in lines), name
        before = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("+"))
        after = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("-"))
        path = root / name
        if not before:
            assert not path.exists(), name
            path.write_text(after)
            continue
        text = path.read_text()
        assert text.count(before) == 1, f"{name}: {text.count(before)} places for\n{before}"
        path.write_text(text.replace(before, after))


def run(command: str, root: Path, limit: int) -> subprocess.CompletedProcess[str]:
    """A shell command in the copy, by this interpreter and with the copy's own packages; pytest as a developer runs it."""
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("PYTEST_ADDOPTS", "HYPOTHESIS_PROFILE")},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(root),
        "PYTHONDONTWRITEBYTECODE": "1",
        "XDG_CACHE_HOME": str(root / "cache"),
    }
    return subprocess.run(
        ["sh", "-e", "-c", command], cwd=root, env=environment, capture_output=True, text=True, timeout=limit, check=False
    )


def test_each_patch_names_one_place_of_one_file(source_tree: Path, tmp_path: Path) -> None:
    """Without the commands that the pages give in between, which need not change what a later patch names."""
    root = tmp_path / "tree"
    shutil.copytree(source_tree, root, symlinks=True)
    for page in PAGES:
        patches = [block for kind, block in BLOCK.findall((ROOT / "docs" / page).read_text()) if kind == "diff"]
        assert patches
        for patch in patches:
            apply(patch, root)
    assert (root / "tools" / "policy" / "count.py").is_file()


@pytest.fixture(scope="module")
def changed(source_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The copy, after the patches and commands of all pages; their test runs are part of the last test here."""
    root = tmp_path_factory.mktemp("howto") / "tree"
    shutil.copytree(source_tree, root, symlinks=True)
    for page in PAGES:
        blocks = BLOCK.findall((ROOT / "docs" / page).read_text())
        assert {kind for kind, _ in blocks} == {"diff", "sh"}
        for kind, block in blocks:
            if kind == "diff":
                apply(block, root)
                continue
            commands = "".join(line for line in block.splitlines(keepends=True) if "-m pytest" not in line)
            done = run(commands, root, 300)
            assert done.returncode == 0, f"{page}\n{block}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return root


@pytest.mark.slow
def test_the_pages_are_right(changed: Path) -> None:
    assert (changed / "tools" / "policy" / "count.py").is_file()


@pytest.mark.slow
def test_the_copy_answers_for_what_was_added(changed: Path) -> None:
    for question, answer in (
        ("0x2080017e", "admitted: NV2080_CTRL_CMD_GPU_GET_VMMU_SEGMENT_SIZE"),
        ("NV_MEMORY_FABRIC_IMPORT_V2", "needs fabric-imex-mgmt"),
        ("0x80028d", "admitted, subject to its fields"),
        ("0x41 --driver 570.158.01 --allow-unsupported", "can be 3 calls"),
    ):
        done = run(f"python -m nvproxy_model.tools.policy explain {question} | head -n 1", changed, 60)
        assert answer in done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_other_tests_pass_in_the_copy(changed: Path) -> None:
    done = run(f"python -m pytest -q -p no:cacheprovider --ignore={Path(__file__).relative_to(ROOT)}", changed, 3600)
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-4000:]
