"""The committed links, the version, and what a wheel and a source distribution hold."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.metadata import Metadata

from nvproxy_model._version import UNTAGGED
from nvproxy_model.tools.pages import files
from tests import ROOT
from tests.drivers.driver_world import git
from tests.schemas import FILES
from tests.tools.test_pages import PROGRAMS

CORE = {"construct", "pyyaml"}
PACKAGE = ("__init__", "_version", "lazy")
LINKS = {"structs": "../structs", "tools": "../tools", "driver_versions.yaml": "../driver_versions.yaml"}


@pytest.mark.parametrize(("name", "target"), LINKS.items())
def test_links_are_relative_and_lead_to_the_root(name: str, target: str) -> None:
    link = ROOT / "nvproxy_model" / name
    assert link.is_symlink()
    assert os.readlink(link) == target
    assert link.resolve() == ROOT / name


def test_the_version_is_the_installed_one_wherever_that_is(tmp_path: Path) -> None:
    program = (
        "import importlib.metadata, sys, nvproxy_model\n"
        "assert nvproxy_model.__version__ == importlib.metadata.version('nvproxy-model')\n"
        "print(nvproxy_model.__version__)"
    )
    for version in ("9.8.7.dev1+g0a1b2c3", "10.0"):
        metadata = tmp_path / version / f"nvproxy_model-{version}.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: nvproxy-model\nVersion: {version}\n")
        path = os.pathsep.join(map(str, (tmp_path / "none", tmp_path / version, ROOT)))
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": path},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (done.stdout, done.stderr) == (f"{version}\n", "")


@pytest.mark.slow
def test_the_wheel(distributions: Path) -> None:
    (wheel,) = distributions.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        scripts = next(archive.read(name).decode() for name in names if name.endswith("entry_points.txt"))
    top = {name.split("/")[0] for name in names if ".dist-info/" not in name and ".data/" not in name}
    assert top == {"nvproxy_model", "cuinterpose"}
    assert {name.partition(".data/data/")[2] for name in names if ".data/" in name} == {name for name, _ in files(of=PROGRAMS)}
    for wanted in (
        *(str(path.relative_to(path.parents[2])) for path in FILES.values()),
        "nvproxy_model/structs/cl90cd.py",
        "nvproxy_model/tools/driver_differ.py",
        "nvproxy_model/driver_versions.yaml",
        "nvproxy_model/driver_versions.json",
        "nvproxy_model/drivers/facts/facts.zlib",
        "nvproxy_model/drivers/render/report.html",
        "nvproxy_model/py.typed",
    ):
        assert wanted in names
    assert not [name for name in names if name.startswith("nvproxy_model/tests") or "__pycache__" in name]
    for command in ("nvproxy-differ", "nvproxy-policy", "nvproxy-trace", "cuinterpose"):
        assert f"{command} = " in scripts


@pytest.mark.slow
def test_the_source_distribution_holds_what_the_native_parts_need(distributions: Path) -> None:
    (sdist,) = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    native = {
        str(path.relative_to(ROOT))
        for folder in ("cuinterpose", "nvproxy_model")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".c", ".h", ".S", ".map", ".def")
    }
    assert native
    assert native <= names
    assert {str(path.relative_to(ROOT)) for path in ROOT.glob("*/schemas/*.json")} <= names


def test_the_version_is_the_tags(tmp_path: Path) -> None:
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", *(f"nvproxy_model/{n}.py" for n in PACKAGE)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)

    def version() -> str:
        command = [sys.executable, "-W", "ignore", "setup.py", "-q", "--version"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
        return done.stdout.strip() or done.stderr.splitlines()[-1]

    assert version() == UNTAGGED
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "one")
    git(tmp_path, "tag", "v1.2.9")
    assert version() == "1.2.9"
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "two")
    assert version() == f"1.2.10.dev1+g{git(tmp_path, 'rev-parse', '--short', 'HEAD').strip()}"
    git(tmp_path, "tag", "v2")
    assert (
        version()
        == "error: a release's tag is vX.Y.Z, and git describes this tree as "
        + git(tmp_path, "describe", "--tags", "--long").strip()
    )
    (tmp_path / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: nvproxy-model\nVersion: 3.4.5\n")
    assert version() == "3.4.5"


@pytest.mark.slow
def test_the_same_files_give_the_same_bytes(source_tree: Path, distributions: Path, tmp_path: Path) -> None:
    """Another day, other rights, another place."""
    copy = tmp_path / "elsewhere"
    shutil.copytree(source_tree, copy, symlinks=True, copy_function=shutil.copy)
    (copy / "README.md").chmod(0o600)
    command = [sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", tmp_path, copy]
    subprocess.run(command, check=True, capture_output=True, umask=0o077, timeout=120)
    (first,), (second,) = distributions.glob("*.tar.gz"), tmp_path.glob("*.tar.gz")
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(first) as archive:
        assert {(entry.mtime, entry.uid, entry.uname) for entry in archive} == {
            (int(os.environ.get("SOURCE_DATE_EPOCH", "315532800")), 0, "")
        }


@pytest.mark.slow
def test_an_index_would_take_it(distributions: Path) -> None:
    (wheel,) = distributions.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = Metadata.from_email(archive.read(name), validate=True)
    assert {requirement.name for requirement in metadata.requires_dist or () if requirement.marker is None} == CORE
    assert metadata.description_content_type == "text/markdown"
    checks = {"check_wheel_contents": [wheel], "twine": ["check", "--strict", *distributions.iterdir()]}
    for tool, arguments in checks.items():
        if importlib.util.find_spec(tool):
            command = [sys.executable, "-m", tool, *arguments]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
            assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_core_alone_in_a_clean_environment(distributions: Path, tmp_path: Path) -> None:
    """The README's first command, with the wheel and nothing else but what it requires."""
    (wheel,) = distributions.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True, timeout=60)
    python = tmp_path / "venv" / "bin" / "python"
    site = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    for name in CORE:
        here = distribution(name)
        for file in here.files or ():
            if not file.parts[0].startswith(("..", "__pycache__")):
                (site / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(here.locate_file(file), site / file)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    subprocess.run([*pip, "install", "-q", "--no-index", "--no-compile", wheel], check=True, timeout=120)
    subprocess.run([*pip, "check"], check=True, timeout=60)
    if importlib.util.find_spec("cyclonedx_py"):
        bill = [sys.executable, "-m", "cyclonedx_py", "environment", "--of", "JSON", python]
        components = json.loads(subprocess.run(bill, capture_output=True, check=True, timeout=60).stdout)["components"]
        assert {component["name"].lower() for component in components} == {*CORE, "nvproxy-model"}
    check = [python.parent / "nvproxy-differ", "check"]
    checked = subprocess.run(check, capture_output=True, text=True, check=False, timeout=120)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert " same, 0 different; " in checked.stdout.splitlines()[-1]
    lacks = subprocess.run([*check, "--source", tmp_path], capture_output=True, text=True, check=False, timeout=60)
    assert (lacks.returncode, lacks.stderr.count("\n")) == (2, 1)
    command = [python, "-c", "import nvproxy_model as model; print(model.__version__)"]
    version = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60).stdout
    assert f"-{version.strip()}-" in wheel.name
