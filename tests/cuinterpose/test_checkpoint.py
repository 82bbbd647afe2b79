"""A group's checkpoint, restore and cycle, on a driver that behaves as a real one did."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cuinterpose import checkpoint
from cuinterpose.checkpoint_driver import DriverError, State
from tests.cuinterpose.checkpoint_world import Stage, build_parts, stage
from tests.cuinterpose.shim_world import World


@pytest.fixture(scope="module")
def parts(plain: World, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build_parts(tmp_path_factory.mktemp("checkpoint"), plain.tools)


@pytest.fixture
def scene(plain: World, parts: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(plain, *parts, tmp_path_factory.mktemp("s")) as made:
        yield made


def test_the_driver_alone_loses_the_importer(scene: Stage) -> None:
    """What the tracker is for, and that the fake does as the H200 did: restore 801, state 2, unlock 401."""
    creator, importer = scene.start(track=False), scene.start(track=False)
    importer.take_in(creator, creator.share())
    driver = scene.library()
    for worker in (creator, importer):
        driver.lock(worker.pid, 1)
        driver.checkpoint(worker.pid)
    driver.restore(creator.pid)
    driver.unlock(creator.pid)
    with pytest.raises(DriverError, match="801"):
        driver.restore(importer.pid)
    assert scene.states() == [State.RUNNING, State.CHECKPOINTED]
    with pytest.raises(DriverError, match="401"):
        driver.unlock(importer.pid)
    assert creator.do("read 0 0 2") == "90"


def test_two_processes(scene: Stage) -> None:
    creator, importer = scene.start(), scene.start()
    importer.take_in(creator, creator.share())
    before = importer.do("address 0"), importer.do("handle 0"), importer.do("descriptors")
    report = scene.cycle()
    assert (report.outcome, report.lost, report.status) == ("done", [], 0), report.lines(verbose=True)
    assert (importer.do("address 0"), importer.do("handle 0"), importer.do("descriptors")) == before
    assert importer.do("read 0 0 2") == "90"
    creator.do("write 0 0 2 165")
    assert importer.do("read 0 0 2") == "165"
    importer.do("write 0 0 2 7")
    assert creator.do("read 0 0 2") == "7"
    assert checkpoint.cycle(scene.where, None, scene.library()).outcome == "done"
    assert creator.do("read 0 0 2") == "7"
    for command in ("props 0", "unmap 0 0 2", "release 0", "free 0"):
        importer.do(command)
    assert importer.do("left") == "0 0"
    assert importer.fails("release 0")
    assert scene.end() == [0, 0]
