"""What the build makes: wheel, sdist to wheel, editable, pure, and its errors. In a copy of the tree: it leaves files behind."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests import ROOT
from tests.cuinterpose.shim_world import need

NATIVE = {"cuinterpose/libcuinterpose.so", "cuinterpose/libcuprobe.so", "nvproxy_model/trace/record/librecorder.so"}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tracked files, links as links; and not those of the build."""
    need("gcc", "git")
    try:
        import setuptools
    except ImportError:
        pytest.skip("no setuptools here")
    if int(setuptools.__version__.split(".")[0]) < 77:
        pytest.skip(f"setuptools {setuptools.__version__} is older than the build needs (77)")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    copy = tmp_path_factory.mktemp("tree")
    for name in filter(None, listed.stdout.split("\0")):
        source, target = ROOT / name, copy / name
        if source.is_symlink() or source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    return copy


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


def make_wheel(tree: Path, where: Path, **environment: str) -> Path:
    done = build(tree, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", where, tree, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = where.glob("*.whl")
    return wheel


def check_wheel(wheel: Path, *, native: bool) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name for name in names if name.endswith(".so")} >= (NATIVE if native else set())
    assert native or not any(name.endswith(".so") for name in names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"nvproxy_model", "cuinterpose"}
    assert {"nvproxy_model/structs/__init__.py", "nvproxy_model/driver_versions.yaml", "cuinterpose/cli.py"} <= names
    assert not any(name.endswith((".c", ".h", ".S", ".map", ".o")) for name in names)
    tag = wheel.stem.split("-")[-3:]
    assert tag == (["py3", "none", f"linux_{platform.machine()}"] if native else ["py3", "none", "any"])


def test_wheel(tree: Path, tmp_path: Path) -> None:
    wheel = make_wheel(tree, tmp_path)
    check_wheel(wheel, native=True)
    # and it runs, from where a wheel is unpacked
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


def test_source_distribution_to_wheel(tree: Path, tmp_path: Path) -> None:
    done = build(tree, "-c", "import setuptools.build_meta as b, sys; b.build_sdist(sys.argv[1])", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as source:
        names = {name.split("/", 1)[-1] for name in source.getnames()}
        # the parameter came with 3.12, 3.11.4 and 3.10.12; the archive is our own
        source.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    assert {f"cuinterpose/src/{path.name}" for path in (ROOT / "cuinterpose" / "src").iterdir()} <= names
    assert "setup.py" in names
    check_wheel(make_wheel(archive.with_name(archive.name.removesuffix(".tar.gz")), tmp_path / "wheel"), native=True)


def test_editable(tree: Path, tmp_path: Path) -> None:
    done = build(
        tree,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--no-build-isolation",
        "--ignore-installed",
        "--prefix",
        tmp_path,
        "-e",
        tree,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    try:
        assert all((tree / name).is_file() for name in NATIVE)
        assert list(tmp_path.rglob("bin/cuinterpose"))
    finally:
        for name in NATIVE:
            (tree / name).unlink(missing_ok=True)


def test_pure(tree: Path, tmp_path: Path) -> None:
    check_wheel(make_wheel(tree, tmp_path, NVPROXY_NATIVE="0", CC="/nowhere/cc"), native=False)


@pytest.mark.parametrize("cc", ["/nowhere/cc", "false"])
def test_failing_compiler(tree: Path, tmp_path: Path, cc: str) -> None:
    done = build(tree, "setup.py", "-q", "build_ext", "--build-lib", tmp_path, CC=cc)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"error: libcuinterpose.so: {cc} failed")
    assert "NVPROXY_NATIVE=0" in done.stderr
    assert "Traceback" not in done.stderr
