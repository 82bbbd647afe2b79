"""Two processes, one allocation: what runs on a GPU (benchmarks/cuinterpose_gpu.c), on a driver whose memory is memfds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import ROOT
from tests.cuinterpose.share_library import SOURCES
from tests.cuinterpose.shim_world import NATIVE, World


@pytest.mark.parametrize("flavour", ["plain", pytest.param("sanitized", marks=pytest.mark.slow)])
@pytest.mark.parametrize("shim", [True, False], ids=["shim", "alone"])
def test_two_processes(request: pytest.FixtureRequest, tmp_path: Path, flavour: str, shim: bool) -> None:
    world: World = request.getfixturevalue(flavour)
    driver = tmp_path / "libcuda.so.1"
    world.tools.shared(driver, [NATIVE / "memory_driver.c"], "-Wl,-soname,libcuda.so.1,-Bsymbolic")
    program = world.tools.compile(tmp_path / "gpu", [ROOT / "benchmarks" / "cuinterpose_gpu.c", *SOURCES], "-ldl")
    roles = {"share": ["importer: 2 exports", "creator: "], "bench": ["cuMemCreate+cuMemRelease"]}
    if flavour == "sanitized":
        del roles["bench"]
    for role, words in roles.items():
        done = world.tools.run(
            [program, role],
            [*world.before, *([world.shim] if shim else [])],
            {"LD_LIBRARY_PATH": str(tmp_path), "ASAN_OPTIONS": "detect_leaks=0"},
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        for word in words:
            assert word in done.stdout
