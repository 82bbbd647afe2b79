"""What tests compile once: whatever became of who began it, the next has all of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.builds import made_once


@pytest.mark.parametrize("end", ["raises", "is killed"])
def test_what_was_left_half_made_is_made_anew(tmp_path: Path, end: str) -> None:
    target = tmp_path / "parts"

    def half(root: Path) -> None:
        root.mkdir()
        (root / "half").touch()
        raise OSError

    child = os.fork()
    if child == 0:
        try:
            made_once(target, half)
        finally:
            os._exit(0) if end == "raises" else os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    assert (target / "half").exists()
    assert made_once(target, Path.mkdir) == target
    assert list(target.iterdir()) == []
    assert made_once(target, Path.mkdir) == target
