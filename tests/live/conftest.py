"""Programs and nodes for the broker's tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.live.watched import NODES, World, available, built


@pytest.fixture(scope="session")
def _programs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path | None]:
    available()
    return built(tmp_path_factory.mktemp("watched"))


@pytest.fixture
def world(_programs: tuple[Path, Path | None], tmp_path: Path) -> World:
    """A fresh directory of nodes, and the program."""
    nodes = tmp_path / "dev"
    (nodes / "sub").mkdir(parents=True)
    for name in NODES:
        os.mkfifo(nodes / name)
    (nodes / "link").symlink_to("nvidia-modeset")
    return World(nodes, *_programs)
