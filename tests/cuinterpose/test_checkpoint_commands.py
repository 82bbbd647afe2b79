"""The commands on a group, preflight's words on each obstacle, and the C library."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cuinterpose import checkpoint, inventory, preflight
from cuinterpose.checkpoint_driver import State
from cuinterpose.member import Phase
from tests import ROOT
from tests.cuinterpose.checkpoint_world import GRANULE, LIMITS, Stage, Worker
from tests.cuinterpose.shim_world import Toolchain
from tests.schemas import document


def command(scene: Stage, *arguments: str | int) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "cuinterpose.cli", *map(str, arguments)],
        cwd=scene.fake,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "CUINTERPOSE_DIR": str(scene.where),
            "LD_LIBRARY_PATH": str(scene.driver.parent),
            "FAKE_CUDA": str(scene.fake),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def pair(scene: Stage) -> tuple[Worker, Worker]:
    creator, importer = scene.start(), scene.start()
    importer.take_in(creator, creator.share())
    return creator, importer


def test_the_commands(scene: Stage) -> None:
    creator, importer = pair(scene)
    for name, arguments in {
        "inventory": ("inventory", "--all"),
        "preflight": ("preflight", creator.pid, importer.pid),
        "checkpoint": ("cycle", "--all"),
    }.items():
        status, text, error = command(scene, *arguments, "--json")
        assert (status, error) == (0, ""), text
        document(text)
        status, text, error = command(scene, *arguments)
        assert (status, error) == (0, "")
        assert str(creator.pid) in text or name != "inventory"
    assert command(scene, "checkpoint", "--all")[0] == 0
    assert scene.states() == [State.CHECKPOINTED] * 2
    status, text, _ = command(scene, "checkpoint", "--all", "--json")
    assert (status, document(text)["outcome"]) == (1, "refused")
    status, text, _ = command(scene, "restore", "--all", "--verbose")
    assert status == 0
    assert "import" in text
    assert importer.do("read 0 0 2") == "90"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("inventory",), "name processes, or say --all"),
        (("cycle", "--all", "1"), "name processes, or say --all"),
        (("cycle", "--all", "--directory", "/nowhere"), "/nowhere"),
        (("cycle", "--all", "--libcuda", "/nowhere/libcuda.so.1"), "/nowhere/libcuda.so.1"),
        (("restore", "--all", "--cuda-checkpoint", "/nowhere/cuda-checkpoint"), "no such command"),
    ],
)
def test_mistakes_are_one_line(scene: Stage, arguments: tuple[str, ...], words: str) -> None:
    status, text, error = command(scene, *arguments)
    assert (status, text) == (2, "")
    assert error.startswith("cuinterpose: error: ")
    assert words in error
    assert len(error.splitlines()) == 1
    assert "/nowhere/libcuda.so.1: /nowhere" not in error
    assert "[Errno" not in error


def test_a_directory_that_others_may_enter(scene: Stage) -> None:
    os.chmod(scene.where, 0o755)
    status, _, error = command(scene, "preflight", "--all")
    assert (status, "chmod 700" in error, "mode 0755" in error) == (2, True, True)


def test_preflight_of_nobody(scene: Stage) -> None:
    status, text, _ = command(scene, "preflight", "--all")
    assert (status, text.splitlines()[0]) == (1, "refused: there is no process to checkpoint")


def test_run_with_tracking(scene: Stage) -> None:
    environment = scene.environment(track=False, shim=False)
    show = [sys.executable, "-c", "import os; print(os.environ['CUINTERPOSE_TRACK'], os.environ['CUINTERPOSE_DIR'])"]
    run = [sys.executable, "-m", "cuinterpose.cli", "run", "--track", "--check", "--", *show]
    environment |= {"PYTHONPATH": str(ROOT), "CUINTERPOSE_SHIM": str(scene.world.shim)}
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"1 {scene.where}\n", "")
    scene.where.chmod(0o755)
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
    scene.where.chmod(0o700)
    assert done.returncode == 2
    assert "mode 0700" in done.stderr


def judged(scene: Stage, *workers: Worker) -> preflight.Answer:
    group = inventory.collect(scene.where, [worker.pid for worker in workers])
    return preflight.judge(group, scene.library(), mps=lambda: False)


def codes(answer: preflight.Answer) -> set[str]:
    return {obstacle.code for obstacle in answer.obstacles}


def test_who_is_left_out(scene: Stage) -> None:
    """The worst case of all is the first: the driver would break the sharing in silence."""
    creator, importer = pair(scene)
    answer = judged(scene, creator)
    assert (answer.status, codes(answer)) == (1, {"importer-outside"})
    assert str(importer.pid) in answer.obstacles[0].what
    assert checkpoint.cycle(scene.where, [creator.pid], scene.library(), LIMITS).outcome == "refused"
    answer = judged(scene, importer)
    assert (answer.status, codes(answer)) == (1, {"creator-outside"})
    assert judged(scene, creator, importer).status == 0
    # once it has released what it had, the importer is nobody's obstacle
    importer.do("unmap 0 0 2")
    importer.do("release 0")
    assert judged(scene, creator).status == 0


def test_memory_that_an_importer_alone_keeps(scene: Stage) -> None:
    """CUDA keeps it as long as the import lives; letting go of that would be the end of it."""
    creator, importer = pair(scene)
    creator.do("unmap 0 0 2")
    creator.do("release 0")
    assert codes(judged(scene, creator, importer)) == {"creator-released"}
    assert scene.cycle().outcome == "refused"
    assert importer.do("read 0 0 2") == "90"


MIB = (1 << 20) // GRANULE  # in granules


def large_pair(scene: Stage, granules: int, devices: str) -> tuple[Worker, Worker]:
    """Memory of which two granules are written, shared by two processes whose driver sees so many devices."""
    creator, importer = scene.start(FAKE_DEVICES=devices), scene.start(FAKE_DEVICES=devices)
    creator.do(f"create 0 {granules} 1")
    creator.do(f"reserve 0 {granules}")
    creator.do(f"map 0 0 0 {granules} 0")
    creator.do(f"access 0 0 {granules} 3 0")
    creator.do("write 0 0 2 90")
    importer.take_in(creator, creator.number("export 0"), granules=granules)
    return creator, importer


@pytest.mark.parametrize(("granules", "devices"), [(512 * MIB - 1, "2"), (512 * MIB, "1"), (1024 * MIB, "1")])
def test_memory_that_is_shared_again(
    scene: Stage, granules: int, devices: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below the size from which the driver refuses, or with one device, where it refused nothing."""
    monkeypatch.setattr(inventory, "GPUS", tmp_path)
    (tmp_path / "0000:01:00.0").mkdir()
    creator, importer = large_pair(scene, granules, devices)
    assert "end the sharing" not in "".join(inventory.lines(inventory.collect(scene.where)))
    assert judged(scene, creator, importer).status == 0
    report = scene.cycle()
    assert (report.outcome, report.lost) == ("done", []), report.lines(verbose=True)
    creator.do("write 0 0 2 33")
    assert importer.do("read 0 0 2") == "33"


@pytest.mark.parametrize("granules", [512 * MIB, 1024 * MIB])
def test_memory_that_is_too_large_to_be_shared_again(scene: Stage, granules: int) -> None:
    """Refused before anything is touched; accepted, it is lost after the point of no return, and the report says so."""
    creator, importer = large_pair(scene, granules, "2")
    shared = creator.number("export 0")
    assert "; a restore would end the sharing" in command(scene, "inventory", "--all")[1]
    status, text, _ = command(scene, "preflight", "--all")
    assert status == 1
    assert f"process {creator.pid}: its driver sees 2 devices" in text
    assert f"process {importer.pid} would lose it" in text
    for name in ("checkpoint", "cycle"):
        status, text, _ = command(scene, name, "--all", "--json")
        said = document(text)
        assert (status, said["outcome"], said["steps"]) == (1, "refused", [])
        assert [item["code"] for item in said["obstacles"]] == ["large-shared"]
    assert scene.states() == [State.RUNNING] * 2
    creator.do("write 0 0 2 33")
    assert importer.do("read 0 0 2") == "33"
    assert command(scene, "preflight", "--all", "--accept", "large-shared")[0] == 0
    status, text, _ = command(scene, "cycle", "--all", "--accept", "large-shared", "--json")
    said = document(text)
    assert (status, said["outcome"]) == (1, "lost")
    assert any(f"process {importer.pid}" in line and "CUresult 1" in line for line in said["lost"])
    assert creator.do("read 0 0 2") == "33"
    own = importer.number(f"take {creator.pid} {shared}")
    assert (creator.fails("export 0"), importer.fails(f"import 1 {own}")) == (1, 1)
    # what it has lost stands in nobody's way any more
    assert judged(scene, creator, importer).status == 0


@pytest.mark.parametrize("devices", ["0", "1"])
def test_large_memory_where_it_is_not_known(
    scene: Stage, devices: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The devices were not counted, or the driver sees one of the host's two."""
    monkeypatch.setattr(inventory, "GPUS", tmp_path)
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    creator, importer = large_pair(scene, 512 * MIB, devices)
    assert "; a restore may end the sharing" in "".join(inventory.lines(inventory.collect(scene.where)))
    answer = judged(scene, creator, importer)
    assert (answer.status, codes(answer)) == (2, {"large-shared"})
    importer.do(f"unmap 0 0 {512 * MIB}")
    importer.do("release 0")
    assert judged(scene, creator, importer).status == 0


def test_an_importer_that_cannot_be_asked(scene: Stage) -> None:
    creator, importer = pair(scene)
    (scene.where / scene.holdings(importer).participant.hex()).unlink()
    # it is not taken for a process that shares nothing, either
    assert (judged(scene, creator, importer).status, codes(judged(scene, creator, importer))) == (2, {"unread"})
    answer = judged(scene, creator)
    assert (answer.status, codes(answer)) == (2, {"importer-unknown"})
    importer.kill()
    assert judged(scene, creator).status == 0


@pytest.mark.parametrize(
    ("commands", "code", "status"),
    [
        (["alloc 5 1", "ipcget 5"], "ipc-memory-given", 2),
        (["create 5 1 9", "fabric 5"], "fabric-given", 2),
        (["multicast 5"], "multicast", 1),
        (["capture"], "capture", 1),
    ],
)
def test_what_cannot_be_kept(scene: Stage, commands: list[str], code: str, status: int) -> None:
    worker = scene.start()
    for line in commands:
        worker.do(line)
    answer = judged(scene, worker)
    assert (answer.status, codes(answer)) == (status, {code})
    accepted = preflight.judge(answer.group, scene.library(), accept=[code], mps=lambda: False)
    assert (accepted.status, len(accepted.accepted)) == (0, 1)


def test_legacy_ipc(scene: Stage) -> None:
    creator, importer = scene.start(), scene.start()
    creator.do("alloc 0 1")
    importer.do(f"ipcopen 0 {creator.do('ipcget 0')}")
    assert "ipc-memory-opened" in codes(judged(scene, creator, importer))
    importer.do("ipcclose 0")
    assert "ipc-memory-opened" not in codes(judged(scene, creator, importer))


def test_entangled_and_foreign(scene: Stage) -> None:
    """The process itself refuses to let go of them, whatever the coordinator accepts."""
    creator, importer = pair(scene)
    importer.do("multicast 5")
    importer.do("bind 5 0")
    importer.do("release 5")
    assert codes(judged(scene, creator, importer)) == {"entangled"}
    report = scene.cycle(accept=["entangled"])
    assert (report.outcome, report.lost) == ("put back", [])
    plain, other = scene.start(track=False), scene.start()
    other.take_in(plain, plain.share())
    assert codes(judged(scene, other)) == {"foreign"}
    report = scene.cycle(other, accept=["foreign"])
    assert (report.outcome, report.lost) == ("put back", [])
    assert other.do("read 0 0 2") == "90"


def test_who_is_not_tracked_or_there(scene: Stage) -> None:
    tracked = scene.start()
    tracked.do("create 0 1 1")
    with_shim, without = scene.start(track=False), scene.start(track=False, shim=False)
    gone = scene.start(track=False)
    gone.kill()
    for worker in (with_shim, without):
        answer = judged(scene, tracked, worker)
        assert (answer.status, codes(answer)) == (2, {"untracked"})
        assert "--track" in answer.obstacles[0].what
    answer = judged(scene, tracked, gone)
    assert answer.status == 1
    assert "gone" in codes(answer)
    idle = scene.start(init=False)
    answer = judged(scene, tracked, idle)
    assert (answer.status, answer.left_out) == (0, (idle.pid,))
    idle.do("init")
    answer = judged(scene, tracked, idle)
    assert (answer.status, answer.left_out) == (0, ())
    assert scene.cycle(tracked, idle).outcome == "done"


def test_mps_and_no_driver(scene: Stage) -> None:
    group = inventory.collect(scene.where)
    answer = preflight.judge(group, None, "why", mps=lambda: True)
    assert codes(answer) == {"no-driver", "empty", "mps"}
    assert answer.status == 1


def test_a_tracer(scene: Stage) -> None:
    worker = scene.start()
    worker.do("create 0 1 1")
    attach = (
        "import ctypes, sys, time; c = ctypes.CDLL(None); assert c.ptrace(0x4206, int(sys.argv[1]), 0, 0) == 0; "  # SEIZE
        "print(1, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", attach, str(worker.pid)], stdout=subprocess.PIPE) as tracer:
        assert tracer.stdout
        if not tracer.stdout.readline():
            pytest.skip("no right to trace here")
        answer = judged(scene, worker)
        tracer.kill()
    assert (answer.status, codes(answer)) == (1, {"traced"})


def test_an_inventory_changes_nothing(scene: Stage) -> None:
    creator, importer = pair(scene)
    first = inventory.as_json(inventory.collect(scene.where))
    assert first == inventory.as_json(inventory.collect(scene.where))
    held = scene.holdings(importer)
    assert (held.phase, len(held.imports), len(held.reservations)) == (Phase.OPEN, 1, 1)
    (item,) = held.imports
    (mapping,) = item.mappings
    assert (mapping.size, mapping.offset, [access.flags for access in mapping.access]) == (2 << 16, 0, [3])
    (allocation,) = scene.holdings(creator).allocations
    assert [who.pid for who in allocation.importers] == [importer.pid]
    assert allocation.importers[0].started == inventory.started(importer.pid)
    (member,) = inventory.collect(scene.where, [creator.pid]).members
    assert [ticket.resource for ticket in member.tickets] == [allocation.resource]
    text = "\n".join(inventory.lines(inventory.collect(scene.where)))
    assert f"imported by {importer.pid}" in text
    assert f"of process {creator.pid}" in text


def test_in_c(scene: Stage, tmp_path: Path) -> None:
    """examples/checkpointer.c with libcucheckpoint.so."""
    libraries = scene.world.root / "cuinterpose"
    program = Toolchain().compile(
        tmp_path / "checkpointer",
        [ROOT / "examples" / "checkpointer.c"],
        f"-I{ROOT / 'cuinterpose'}",
        f"-L{libraries}",
        "-lcucheckpoint",
        f"-Wl,-rpath,{libraries}",
        "-ldl",
    )
    creator, importer = pair(scene)
    run = [str(program), str(scene.where), str(creator.pid), str(importer.pid)]
    environment = {"LD_LIBRARY_PATH": str(scene.driver.parent), "FAKE_CUDA": str(scene.fake)}
    done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "checkpointed\nrestored\n", "")
    assert importer.do("read 0 0 2") == "90"
    importer.do("capture")
    done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "a stream is being captured" in done.stderr
    importer.do("endcapture")
    assert importer.do("read 0 0 2") == "90"
