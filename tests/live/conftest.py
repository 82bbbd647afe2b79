"""Programs and nodes for the broker's tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.builds import made_once
from tests.live.watched import NODES, World, available, build


@pytest.fixture(scope="session")
def _programs(run_folder: Path) -> tuple[Path, Path | None]:
    available()
    folder = made_once(run_folder / "watched", build)
    static = folder / "static"
    return folder / "program", static if static.exists() else None


@pytest.fixture
def world(_programs: tuple[Path, Path | None], tmp_path: Path) -> World:
    """A fresh directory of nodes, and the program."""
    nodes = tmp_path / "dev"
    (nodes / "sub").mkdir(parents=True)
    for name in NODES:
        os.mkfifo(nodes / name)
    (nodes / "link").symlink_to("nvidia-modeset")
    return World(nodes, *_programs)
