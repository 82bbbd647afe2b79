"""One build of the shim, the fake drivers and runtimes and the test programs, and how to run them."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import ROOT

NATIVE = Path(__file__).parent / "native"
DRIVERS = {"12.0": 12000, "12.2": 12020, "13.0": 13000, "13.1": 13010}
RUNTIMES = {"libcudart.so.11.0": 11080, "libcudart.so.12": 12060, "libcudart.so.13": 13000}
RUNTIME_13_1 = 13010
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
DLSYM_VERSION = {"x86_64": "GLIBC_2.2.5", "aarch64": "GLIBC_2.17"}


@dataclass(frozen=True)
class Toolchain:
    """A compiler, flags for every object, and how to run what it makes."""

    cc: str = "gcc"
    flags: tuple[str, ...] = ()
    machine: str = platform.machine()
    runner: tuple[str, ...] = ()

    def compile(self, output: Path, sources: list[Path], *options: str) -> Path:
        output.parent.mkdir(parents=True, exist_ok=True)
        command = [self.cc, "-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", *self.flags, *map(str, sources)]
        subprocess.run([*command, "-o", str(output), *options], check=True)
        return output

    def shared(self, output: Path, sources: list[Path], *options: str) -> Path:
        return self.compile(output, sources, "-shared", "-fPIC", *options)

    def run(
        self, command: list[str | Path], preload: list[Path | str], environment: dict[str, str], timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        loader = {**environment}
        if preload:
            loader["LD_PRELOAD"] = ":".join(map(str, preload))
        runner = list(self.runner)
        if runner:  # an emulator's own loader must not see them
            for name, value in loader.items():
                runner += ["-E", f"{name}={value}"]
            loader = {}
        return subprocess.run(
            [*runner, *map(str, command)],
            env={"PATH": os.environ["PATH"], **loader},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )


@dataclass(frozen=True)
class World:
    """One build of everything, and how to run a program in it."""

    tools: Toolchain
    root: Path
    before: tuple[str, ...] = ()  # preloaded ahead of all: sanitizer runtimes

    @property
    def shim(self) -> Path:
        return self.root / "cuinterpose" / "libcuinterpose.so"

    def driver(self, version: str) -> Path:
        return self.root / "drivers" / version / "libcuda.so.1"

    def run(
        self,
        program: str,
        *arguments: str,
        driver: str | None = None,
        runtimes: str = "runtimes",
        preload: list[Path] | None = None,
        **environment: str,
    ) -> subprocess.CompletedProcess[str]:
        """Runs program, by default with the shim alone preloaded and no driver to be found."""
        path = [self.root / "objects", self.root / runtimes]
        environment = {"ASAN_OPTIONS": "detect_leaks=0", **environment}
        if driver:
            path.append(self.driver(driver).parent)
            environment["CASE_DRIVER"] = str(DRIVERS[driver])
        environment["LD_LIBRARY_PATH"] = ":".join(map(str, path))
        chosen: list[Path | str] = [self.shim] if preload is None else [*preload]
        return self.tools.run([self.root / program, *arguments], [*self.before, *chosen], environment)


def build_shim(output: Path, tools: Toolchain, *flags: str) -> None:
    """By setup.py, as a user's install does it, and with -Werror."""
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", str(output)],
        cwd=ROOT,
        env={
            **os.environ,
            "CC": tools.cc,
            "CFLAGS": " ".join(["-Werror", "-g", *tools.flags, *flags]),
            "_PYTHON_HOST_PLATFORM": f"linux-{tools.machine}",
            "NVPROXY_NATIVE": "1",
        },
        check=True,
        stdout=subprocess.DEVNULL,
    )


def build_world(root: Path, tools: Toolchain, shim: Callable[[Path, Toolchain], None] = build_shim) -> World:
    objects = root / "objects"
    keep_caller = "-fno-optimize-sibling-calls"

    def make_driver(version: str, number: int) -> Path:
        return tools.shared(
            root / "drivers" / version / "libcuda.so.1",
            [NATIVE / "fake_driver.c"],
            f"-DDRIVER_VERSION={number}",
            "-Wl,-soname,libcuda.so.1,-Bsymbolic",
        )

    def make_runtime(directory: str, soname: str, number: int) -> Path:
        script = root / directory / f"{soname}.map"
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(f"{soname} {{ global: cuda*; local: *; }};\n")
        return tools.shared(
            root / directory / soname,
            [NATIVE / "fake_runtime.c"],
            f"-DCUDART_VERSION={number}",
            f"-Wl,-soname,{soname},--version-script={script}",
            "-ldl",
        )

    def make_object(name: str, *options: str) -> Path:
        return tools.shared(
            objects / f"lib{name}.so", [NATIVE / "object.c"], f"-DNAME={name}", keep_caller, f"-L{objects}", *options
        )

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        shim_built = pool.submit(shim, root, tools)
        drivers = {version: pool.submit(make_driver, version, number) for version, number in DRIVERS.items()}
        runtimes = {soname: pool.submit(make_runtime, "runtimes", soname, n) for soname, n in RUNTIMES.items()}
        early = [
            pool.submit(make_runtime, "runtimes-12.0", "libcudart.so.12", 12000),
            pool.submit(make_runtime, "runtimes-13.1", "libcudart.so.12", RUNTIMES["libcudart.so.12"]),
            pool.submit(make_runtime, "runtimes-13.1", "libcudart.so.11.0", RUNTIMES["libcudart.so.11.0"]),
            pool.submit(make_runtime, "runtimes-13.1", "libcudart.so.13", RUNTIME_13_1),
            pool.submit(tools.shared, objects / "libinterposer.so", [NATIVE / "interposer.c"], keep_caller, "-ldl"),
            pool.submit(
                tools.shared, objects / "libdlopen.so", [NATIVE / "interposer.c"], "-DDLOPEN", keep_caller, "-ldl"
            ),
            pool.submit(tools.shared, objects / "libearly.so", [NATIVE / "early.c"], keep_caller, "-ldl"),
            pool.submit(
                tools.shared,
                objects / "libdlsym.so",
                [NATIVE / "interposer.c"],
                "-DDLSYM",
                f'-DBASE_VERSION="{DLSYM_VERSION[tools.machine]}"',
                keep_caller,
                "-ldl",
            ),
            pool.submit(make_object, "dep"),
        ]
        for job in early:
            job.result()
        newest = drivers["13.1"].result()
        dep = ["-Wl,--no-as-needed", "-ldep", "-ldl"]
        program = [keep_caller, "-Wl,-z,lazy", "-ldl", "-lpthread"]
        late = [
            pool.submit(make_object, "plugin", *dep),
            pool.submit(make_object, "direct", "-DDIRECT", str(newest), *dep),
            *(
                pool.submit(make_object, f"user{g}", f"-DRUNTIME={g}", str(runtimes[soname].result()), "-ldl")
                for g, soname in zip((11, 12, 13), RUNTIMES, strict=True)
            ),
            pool.submit(tools.compile, root / "transcript", [NATIVE / "transcript.c"], *program),
            pool.submit(tools.compile, root / "cases", [NATIVE / "cases.c"], *program),
            pool.submit(tools.compile, root / "target", [NATIVE / "target.c"], *program),
            pool.submit(tools.compile, root / "preinit", [NATIVE / "preinit.c"], str(newest), *program),
            pool.submit(tools.compile, root / "direct", [NATIVE / "cases.c"], "-DDIRECT", str(newest), *program),
            pool.submit(
                tools.compile,
                root / "direct-no-pie",
                [NATIVE / "cases.c"],
                "-DDIRECT",
                "-fno-pie",
                "-no-pie",
                str(newest),
                *program,
            ),
        ]
        for job in [*late, *drivers.values(), shim_built]:
            job.result()
    return World(tools, root)


def need(*programs: str) -> None:
    missing = [name for name in programs if not shutil.which(name)]
    if missing or sys.platform != "linux" or platform.machine() not in DLSYM_VERSION:
        pytest.skip(f"the shim's tests need Linux on x86-64 or aarch64, and {' '.join(missing or programs)}")


@dataclass(frozen=True)
class Command:
    """The command, from a copy of the package beside the shim that was built for the tests."""

    world: World

    def __call__(self, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "cuinterpose.cli", *map(str, arguments)],
            env=self.environment(**environment),
            cwd=self.world.root,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "CUINTERPOSE_SHIM")}
        return {**kept, "PYTHONPATH": str(self.world.root), **more}
