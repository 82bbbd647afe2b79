"""What more than one area needs and costs enough to be made once a run: byte code, and the built distributions."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT, effort

effort.choose(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_xdist_auto_num_workers() -> int | None:
    """One worker and a half a processor: a fifth of the suite's time is spent waiting for programs, limits and sockets."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    processors = len(os.sched_getaffinity(0))
    return processors + (processors + 1) // 2


@pytest.fixture(scope="session")
def run_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that all processes of this run share: pytest-xdist gives each of them one below it."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if hasattr(request.config, "workerinput") else own


@pytest.fixture(scope="session", autouse=True)
def _byte_code(run_folder: Path) -> None:
    """Where byte code is not to be kept beside the sources, the programs that the tests start share it in a folder of this run.

    Else each of them would compile the package again.
    """
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        os.environ["PYTHONPYCACHEPREFIX"] = str(run_folder / "bytecode")


@pytest.fixture(scope="session")
def source_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what git knows and does not ignore, links as links: building leaves files behind."""
    if not shutil.which("git"):
        pytest.skip("no git here")
    try:
        import setuptools
    except ImportError:
        pytest.skip("no setuptools here")
    if int(setuptools.__version__.split(".")[0]) < 77:
        pytest.skip(f"setuptools {setuptools.__version__} is older than the build needs (77)")
    listing = ["git", "ls-files", "-zco", "--exclude-standard"]
    listed = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    copy = tmp_path_factory.mktemp("tree")
    for name in filter(None, listed.stdout.split("\0")):
        source, target = ROOT / name, copy / name
        if source.is_symlink() or source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    return copy


@pytest.fixture(scope="session")
def distributions(source_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, and the wheel built from it, by the build backend that is installed here; native where it can."""
    where = tmp_path_factory.mktemp("dist")
    kept = {name: value for name, value in os.environ.items() if name not in ("NVPROXY_NATIVE", "CC", "CFLAGS")}
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", where, source_tree],
        env=kept,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return where
