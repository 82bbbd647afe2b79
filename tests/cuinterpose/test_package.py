"""What the build makes: source distribution and wheel, editable, pure, and its errors; all in a copy of the tree."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests import ROOT
from tests.cuinterpose.shim_world import need

pytestmark = pytest.mark.slow
NATIVE = {
    *(f"cuinterpose/lib{name}.so" for name in ("cuinterpose", "cutrack", "cucheckpoint", "cuprobe")),
    "nvproxy_model/trace/record/librecorder.so",
}
HEADER = "cuinterpose/cucheckpoint.h"


def build(tree: Path, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("NVPROXY_NATIVE", "CC", "CFLAGS")}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=tree,
        env={**kept, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def check_wheel(wheel: Path, *, native: bool) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name for name in names if name.endswith(".so")} >= (NATIVE if native else set())
    assert native or not any(name.endswith(".so") for name in names)
    assert {"nvproxy_model/structs/__init__.py", "nvproxy_model/driver_versions.yaml", "cuinterpose/cli.py"} <= names
    assert HEADER in names
    assert not any(name.endswith((".c", ".h", ".S", ".map", ".o")) for name in names - {HEADER})
    tag = wheel.stem.split("-")[-3:]
    assert tag == (["py3", "none", f"linux_{platform.machine()}"] if native else ["py3", "none", "any"])


def test_source_distribution_to_wheel(distributions: Path) -> None:
    """The wheel is built from the source distribution, which therefore holds what the native parts are made of."""
    need("gcc")
    (archive,) = distributions.glob("*.tar.gz")
    with tarfile.open(archive) as source:
        names = {name.split("/", 1)[-1] for name in source.getnames()}
    assert {f"cuinterpose/src/{path.name}" for path in (ROOT / "cuinterpose" / "src").iterdir()} <= names
    assert "setup.py" in names
    (wheel,) = distributions.glob("*.whl")
    check_wheel(wheel, native=True)


def test_wheel_runs_from_where_it_is_unpacked(distributions: Path, tmp_path: Path) -> None:
    need("gcc")
    (wheel,) = distributions.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    done = subprocess.run(
        [sys.executable, "-m", "cuinterpose.cli", "run", "--check", "--", "sh", "-c", "echo $LD_PRELOAD"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"{tmp_path}/site/cuinterpose/libcuinterpose.so\n", done.stderr


def test_editable(source_tree: Path, tmp_path: Path) -> None:
    need("gcc")
    done = build(
        source_tree,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--no-build-isolation",
        "--ignore-installed",
        "--prefix",
        tmp_path,
        "-e",
        source_tree,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    try:
        assert all((source_tree / name).is_file() for name in NATIVE)
        assert list(tmp_path.rglob("bin/cuinterpose"))
    finally:
        for name in NATIVE:
            (source_tree / name).unlink(missing_ok=True)


def test_pure(source_tree: Path, tmp_path: Path) -> None:
    done = build(
        source_tree,
        *("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, source_tree),
        NVPROXY_NATIVE="0",
        CC="/nowhere/cc",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    check_wheel(wheel, native=False)


@pytest.mark.parametrize("cc", ["/nowhere/cc", "false"])
def test_failing_compiler(source_tree: Path, tmp_path: Path, cc: str) -> None:
    done = build(source_tree, "setup.py", "-q", "build_ext", "--build-lib", tmp_path, CC=cc)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"error: libcuinterpose.so: {cc} failed")
    assert "NVPROXY_NATIVE=0" in done.stderr
    assert "Traceback" not in done.stderr
