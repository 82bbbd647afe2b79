"""The committed links, and what a wheel and a source distribution hold."""

from __future__ import annotations

import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from nvproxy_model.tools.pages import files
from tests import ROOT

LINKS = {"structs": "../structs", "tools": "../tools", "driver_versions.yaml": "../driver_versions.yaml"}


@pytest.mark.parametrize(("name", "target"), LINKS.items())
def test_links_are_relative_and_lead_to_the_root(name: str, target: str) -> None:
    link = ROOT / "nvproxy_model" / name
    assert link.is_symlink()
    assert os.readlink(link) == target
    assert link.resolve() == ROOT / name


@pytest.mark.slow
def test_the_wheel(distributions: Path) -> None:
    (wheel,) = distributions.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        scripts = next(archive.read(name).decode() for name in names if name.endswith("entry_points.txt"))
    top = {name.split("/")[0] for name in names if ".dist-info/" not in name and ".data/" not in name}
    assert top == {"nvproxy_model", "cuinterpose"}
    assert {name.partition(".data/data/")[2] for name in names if ".data/" in name} == {name for name, _ in files()}
    for wanted in (
        "nvproxy_model/structs/cl90cd.py",
        "nvproxy_model/tools/driver_differ.py",
        "nvproxy_model/driver_versions.yaml",
        "nvproxy_model/drivers/facts/facts.json.xz",
        "nvproxy_model/drivers/render/report.html.jinja",
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
