"""The tests of tickets and of the exchange again, with the C built with AddressSanitizer and UBSan."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cuinterpose.share_library import build
from tests.cuinterpose.shim_world import World


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ticket", "exchange"])
def test_sanitized(sanitized: World, tmp_path: Path, name: str) -> None:
    built = build(tmp_path / "libshare.so", sanitized.tools)
    done = subprocess.run(
        [
            sys.executable,
            *("-m", "pytest", "-o", "addopts=", "-p", "no:cacheprovider"),
            Path(__file__).with_name(f"test_share_{name}.py"),
        ],
        env={
            **os.environ,
            "LD_PRELOAD": ":".join(sanitized.before),
            "ASAN_OPTIONS": "detect_leaks=0",
            "CUINTERPOSE_TEST_LIBRARY": str(built),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
