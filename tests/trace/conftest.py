"""The real traces, and the C programs that the recorders are tried on, compiled once a session."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nvproxy_model.trace.decode.catalog import Catalog
from tests.builds import made_once

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TRACES = sorted((ROOT / "tests" / "data" / "traces").glob("*.jsonl.gz"))
QUICK = ("cuda-vmm-1", "cupy", "event-buffer-chain", "ncu-2", "nsys-gpuctxsw-1", "nvidia-smi", "nvml-events", "torch-matmul")
"""One of each program. The others run among the slow tests."""
DRIVER = "580.159.04"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "trace" in metafunc.fixturenames:
        names = {path.name.split(".")[0]: path for path in TRACES}
        assert names.keys() > set(QUICK)
        marks = {name: () if name in QUICK else pytest.mark.slow for name in names}
        metafunc.parametrize("trace", [pytest.param(path, id=name, marks=marks[name]) for name, path in names.items()])


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return Catalog(DRIVER)


@pytest.fixture(scope="session")
def traces() -> dict[str, Path]:
    return {path.name.split(".")[0]: path for path in TRACES}


class Programs:
    """Paths of what was compiled."""

    def __init__(self, folder: Path, cc: str) -> None:
        self.folder = folder
        self.cc = cc
        self.program = self._build("program", HERE / "program.c", "-O1", "-pthread")
        self.fake = self._build("libfake.so", HERE / "fake_driver.c", "-O1", "-shared", "-fPIC", "-ldl")
        self.recorder = self.shared("librecorder.so", "-O2")

    def shared(self, name: str, *flags: str) -> Path:
        sources = sorted((ROOT / "nvproxy_model" / "trace" / "record" / "recorder").glob("*.c"))
        fixed = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden", "-shared", "-pthread")
        return self._build(name, *sources, *fixed, *flags, "-ldl")

    def static(self) -> Path | None:
        """The program without a dynamic loader; None where no static libc is installed."""
        try:
            return self._build("program_static", HERE / "program.c", "-O1", "-static", "-pthread")
        except subprocess.CalledProcessError:
            return None

    def attack(self) -> Path:
        """What a recorder must survive."""
        return self._build("attack", HERE / "attack.c", "-O1", "-pthread")

    def _build(self, name: str, *arguments: str | Path) -> Path:
        libraries = [each for each in arguments if str(each).startswith("-l")]
        others = [each for each in arguments if each not in libraries]
        return made_once(
            self.folder / name,
            lambda out: subprocess.run([self.cc, *others, "-o", out, *libraries], check=True, capture_output=True),
        )


@pytest.fixture(scope="session")
def programs(run_folder: Path) -> Programs:
    cc = shutil.which(os.environ.get("CC", "cc"))
    if cc is None:
        pytest.skip("no C compiler")
    folder = run_folder / "programs"
    folder.mkdir(exist_ok=True)
    return Programs(folder, cc)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def writer(text: str | bytes, name: str = "t.jsonl") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return writer


NODES = """
set -e
mount -t tmpfs none "$1"
cd "$1"
for node in null zero full urandom random tty; do : > $node; mount --bind /dev/$node $node 2> /dev/null || true; done
: > nvidiactl; mount --bind /dev/urandom nvidiactl
: > nvidia0; mount --bind /dev/zero nvidia0
: > nvidia-uvm; mount --bind /dev/full nvidia-uvm
mkdir shm; mkdir pts
mount --rbind "$1" /dev
shift
exec "$@"
"""


@pytest.fixture
def with_nodes(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command where /dev/nvidia* are nodes (over /dev/urandom, zero and full), in a mount namespace of its own."""
    root = tmp_path / "dev"
    root.mkdir()
    unshare = shutil.which("unshare") or "unshare"
    base = [unshare, "--map-root-user", "--mount", "sh", "-c", NODES, "sh", str(root)]
    if not shutil.which(unshare) or subprocess.run([*base, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespace to be had")

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run([*base, *command], capture_output=True, text=True, check=False, env=env)

    return run
