"""The builds that the tests share: plain and sanitized, each once a session."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests import ROOT
from tests.builds import made_once
from tests.cuinterpose.checkpoint_world import Stage, build_parts, parts, stage
from tests.cuinterpose.share_library import Library, build
from tests.cuinterpose.shim_world import SANITIZE, Command, Toolchain, World, build_shim, build_world, need


@pytest.fixture(scope="session")
def plain(run_folder: Path) -> World:
    need("gcc")
    return world_of(run_folder, "plain", Toolchain())


def world_of(folder: Path, name: str, tools: Toolchain) -> World:
    def built(root: Path, tools: Toolchain) -> None:
        shutil.copytree(shim_of(folder, name, tools), root, dirs_exist_ok=True)

    root = made_once(folder / name, lambda root: build_world(root, tools, built))
    return World(tools, root)


def shim_of(folder: Path, name: str, tools: Toolchain) -> Path:
    """What a user's install builds, once for all the worlds that it is a part of."""
    return made_once(folder / f"shim-{name}", lambda root: build_shim(root, tools))


@pytest.fixture(scope="session")
def sanitized(run_folder: Path) -> World:
    """Sanitizers in every object; their runtimes are preloaded, as an uninstrumented program would need."""
    need("gcc")
    tools = Toolchain(flags=tuple(SANITIZE))
    probe = subprocess.run(
        ["gcc", *SANITIZE, "-x", "c", "-", "-o", os.devnull],
        input="int main(void){return 0;}",
        text=True,
        capture_output=True,
        check=False,
    )
    if probe.returncode:
        pytest.skip(f"gcc has no AddressSanitizer here: {probe.stderr.splitlines()[-1:]}")
    world = world_of(run_folder, "sanitized", tools)
    runtimes = [
        subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    return World(tools, world.root, tuple(runtimes))


@pytest.fixture(scope="session")
def aarch64(run_folder: Path) -> World:
    """Cross-built, and run under qemu's user mode."""
    need("aarch64-linux-gnu-gcc", "qemu-aarch64")
    root = Path("/usr/aarch64-linux-gnu")
    if not (root / "lib" / "ld-linux-aarch64.so.1").exists():
        pytest.skip(f"no C library of aarch64 in {root} (libc6-arm64-cross)")
    tools = Toolchain("aarch64-linux-gnu-gcc", machine="aarch64", runner=("qemu-aarch64", "-L", str(root)))
    return world_of(run_folder, "aarch64", tools)


@pytest.fixture(params=["plain", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sanitized", "aarch64"))])
def world(request: pytest.FixtureRequest) -> World:
    chosen: World = request.getfixturevalue(request.param)
    return chosen


@pytest.fixture(scope="session")
def library(run_folder: Path) -> Library:
    """The C side of tickets and frames. The sanitized run of the same tests names its own build (test_share_sanitized)."""
    if built := os.environ.get("CUINTERPOSE_TEST_LIBRARY"):
        settings.register_profile("sanitized", settings.get_profile("ci"), max_examples=50)
        settings.load_profile("sanitized")
        return Library(Path(built))
    need("gcc")
    return Library(made_once(run_folder / "libshare.so", lambda path: build(path, Toolchain())))


SCENES = {"plain": (), "sanitized": tuple(SANITIZE), "threads": ("-fsanitize=thread",)}


@pytest.fixture(scope="session")
def checkpoint_builds(run_folder: Path) -> Callable[[str], tuple[World, Path, Path]]:
    """By a name of SCENES: a world with the shim and the tracker alone, a program and a driver to run it on."""
    need("gcc")

    @functools.cache
    def made(name: str) -> tuple[World, Path, Path]:
        flags = SCENES[name]

        def make(root: Path) -> None:
            shutil.copytree(shim_of(run_folder, name, Toolchain(flags=flags)), root)
            if (
                name == "threads"
            ):  # the program too, since it brings the runtime; the shim's part runs before that is up
                shutil.copy(made("plain")[0].shim, root / "cuinterpose")
            build_parts(root, Toolchain(), Toolchain(flags=flags if name == "threads" else ()))

        try:
            root = made_once(run_folder / f"checkpoint-{name}", make)
        except subprocess.CalledProcessError:
            if name == "plain":
                raise
            pytest.skip(f"gcc has no {flags} here")
        before = (
            subprocess.run(
                ["gcc", f"-print-file-name={library}"], capture_output=True, text=True, check=True
            ).stdout.strip()
            for library in (("libasan.so", "libubsan.so") if name == "sanitized" else ())
        )
        return World(Toolchain(), root, tuple(before)), *parts(root)

    return made


@pytest.fixture
def scenes(
    checkpoint_builds: Callable[[str], tuple[World, Path, Path]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Stage]]:
    """Tracked programs on the fake driver, by a name of SCENES, in directories of their own."""
    with contextlib.ExitStack() as ends:
        yield lambda name: ends.enter_context(stage(*checkpoint_builds(name), tmp_path_factory.mktemp("s")))


@pytest.fixture
def scene(scenes: Callable[[str], Stage]) -> Stage:
    return scenes("plain")


@pytest.fixture(scope="session")
def command(plain: World) -> Command:
    def copy(modules: Path) -> None:
        """Beside the compiled parts, which are there already."""
        for module in (ROOT / "cuinterpose").glob("*.py"):
            shutil.copy(module, plain.root / "cuinterpose")
        modules.touch()

    made_once(plain.root / "modules", copy)
    return Command(plain)
