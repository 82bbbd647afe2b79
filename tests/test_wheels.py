"""The wheels of a release, as .ci/wheels makes them: what they need of a machine, and that their native parts load there."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cuinterpose.shim_world import need

pytestmark = pytest.mark.slow
OLDEST = (2, 17)
"""glibc of manylinux2014."""
MACHINES = ("x86_64", "aarch64")
LOADER = """
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **names) {
    for (int i = 1; i < count; i++) {
        if (!dlopen(names[i], RTLD_NOW | RTLD_LOCAL)) {
            puts(dlerror());
            return 1;
        }
    }
    return 0;
}
"""


@pytest.fixture(scope="module")
def wheels(source_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """By machine, the wheel, unpacked."""
    for module in ("ziglang", "auditwheel", "build"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"no {module} here (the extra `release`)")
    tree, dist = tmp_path_factory.mktemp("wheels") / "tree", tmp_path_factory.mktemp("release")
    shutil.copytree(source_tree, tree, symlinks=True)
    done = subprocess.run(
        [tree / ".ci" / "wheels", dist],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        timeout=390,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert len(list(dist.iterdir())) == 1 + len(MACHINES)
    made = {}
    for machine in MACHINES:
        (made[machine],) = dist.glob(f"*-py3-none-manylinux_2_17_{machine}.whl")
        with zipfile.ZipFile(made[machine]) as archive:
            archive.extractall(made[machine].with_suffix(""))
    yield made
    shutil.rmtree(dist)


def native(wheel: Path) -> list[Path]:
    return sorted(wheel.with_suffix("").rglob("*.so"))


@pytest.mark.parametrize("machine", MACHINES)
def test_no_symbol_is_newer_than_the_oldest_machine(wheels: dict[str, Path], machine: str) -> None:
    from elftools.elf.elffile import ELFFile
    from elftools.elf.gnuversions import GNUVerNeedSection

    assert len(native(wheels[machine])) == 5
    for library in native(wheels[machine]):
        with open(library, "rb") as file:
            elf = ELFFile(file)
            assert elf.get_machine_arch() == {"x86_64": "x64", "aarch64": "AArch64"}[machine]
            needed = [
                version.name
                for section in elf.iter_sections()
                if isinstance(section, GNUVerNeedSection)
                for _, versions in section.iter_versions()
                for version in versions
            ]
        assert needed
        for name in needed:
            assert tuple(map(int, name.removeprefix("GLIBC_").split("."))) <= OLDEST, f"{library.name}: {name}"


@pytest.mark.parametrize("machine", MACHINES)
def test_auditwheel_finds_the_tag_true(wheels: dict[str, Path], machine: str) -> None:
    command = [sys.executable, "-m", "auditwheel", "show", wheels[machine]]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert f'platform tag: "manylinux_2_17_{machine}"' in " ".join(shown.split())


@pytest.mark.parametrize("machine", MACHINES)
def test_the_native_parts_load(wheels: dict[str, Path], machine: str, tmp_path: Path) -> None:
    (tmp_path / "loader.c").write_text(LOADER)
    compiler, emulator = "gcc", []
    if machine != platform.machine():
        root = Path(f"/usr/{machine}-linux-gnu")
        compiler, emulator = f"{machine}-linux-gnu-gcc", [f"qemu-{machine}", "-L", str(root)]
        need(emulator[0])
        if not list(root.glob("lib/ld-linux*")):
            pytest.skip(f"no C library of {machine} in {root}")
    need(compiler)
    subprocess.run([compiler, "loader.c", "-ldl", "-o", "loader"], cwd=tmp_path, check=True, timeout=60)
    loaded = subprocess.run(
        [*emulator, tmp_path / "loader", *native(wheels[machine])],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (loaded.returncode, loaded.stdout, loaded.stderr) == (0, "", "")


def test_machines_differ_in_native_parts_alone(wheels: dict[str, Path]) -> None:
    contents = []
    for wheel in wheels.values():
        with zipfile.ZipFile(wheel) as archive:
            contents.append(
                {
                    entry.filename: entry.CRC
                    for entry in archive.infolist()
                    if not entry.filename.endswith((".so", ".dist-info/WHEEL", ".dist-info/RECORD"))
                }
            )
    assert contents[0] == contents[1]
