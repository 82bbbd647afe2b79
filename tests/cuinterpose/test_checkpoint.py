"""A group's checkpoint, restore and cycle, on a driver that behaves as a real one did: what programs see of it."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable

import pytest

from cuinterpose import checkpoint, preflight
from cuinterpose.checkpoint_driver import DriverError, State
from tests.cuinterpose.checkpoint_world import LIMITS, Stage, Worker


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
    before = importer.do("address 0"), importer.do("handle 0"), importer.descriptors()
    report = scene.cycle()
    assert (report.outcome, report.lost, report.status) == ("done", [], 0), report.lines(verbose=True)
    assert (importer.do("address 0"), importer.do("handle 0"), importer.descriptors(before[2])) == before
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


Prepare = Callable[[list[Worker]], None]


def mapped(workers: list[Worker]) -> None:
    workers[1].take_in(workers[0], workers[0].share())


def never_mapped(workers: list[Worker]) -> None:
    own = workers[1].number(f"take {workers[0].pid} {workers[0].share()}")
    workers[1].do(f"import 0 {own}")
    workers[1].do("reserve 0 2")


def only_mapped(workers: list[Worker]) -> None:
    mapped(workers)
    workers[1].do("release 0")


def only_held(workers: list[Worker]) -> None:
    mapped(workers)
    workers[1].do("unmap 0 0 2")


def creator_released(workers: list[Worker]) -> None:
    mapped(workers)
    workers[0].do("release 0")


def retained(workers: list[Worker]) -> None:
    mapped(workers)
    workers[1].do("release 0")
    workers[1].do("retain 0 0 0")
    workers[1].do("retain 5 0 1")


def all_three(workers: list[Worker]) -> None:
    fd = workers[0].share()
    for worker in workers[1:]:
        worker.take_in(workers[0], fd)


def crossed(workers: list[Worker]) -> None:
    mapped(workers)
    workers[0].take_in(workers[1], workers[1].share(1, byte=3), 1)


def itself(workers: list[Worker]) -> None:
    """A process that imports what it exported."""
    mapped(workers)
    workers[0].do(f"import 4 {workers[0].number('export 0')}")
    workers[0].do("reserve 4 2")
    workers[0].do("map 4 4 0 2 0")
    workers[0].do("access 4 0 2 3 0")


def own_context(workers: list[Worker]) -> None:
    workers[1].do("context")
    mapped(workers)


WORLDS = ["plain", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sanitized", "threads"))]
SHAPES: dict[str, tuple[int, Prepare]] = {
    name: (count, prepare)
    for name, count, prepare in (
        ("mapped", 2, mapped),
        ("never mapped", 2, never_mapped),
        ("mapped, released", 2, only_mapped),
        ("unmapped, held", 2, only_held),
        ("creator released", 2, creator_released),
        ("retained", 2, retained),
        ("three", 3, all_three),
        ("crossed", 2, crossed),
        ("itself", 2, itself),
        ("own context", 2, own_context),
    )
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("world_name", WORLDS)
def test_shapes(scenes: Callable[[str], Stage], world_name: str, shape: str) -> None:
    """The driver alone loses every one of them; twice through a cycle, nothing is seen of it."""
    scene = scenes(world_name)
    count, prepare = SHAPES[shape]
    workers = [scene.start() for _ in range(count)]
    prepare(workers)
    seen = [[worker.do(command) for command in ("handle 0", "address 0")] for worker in workers]
    open_before = [worker.descriptors() for worker in workers]
    before = [scene.holdings(worker) for worker in workers]
    for round_ in range(2):
        report = scene.cycle()
        assert (report.outcome, report.lost) == ("done", []), report.lines(verbose=True)
        assert [[worker.do(command) for command in ("handle 0", "address 0")] for worker in workers] == seen
        counts = zip(workers, open_before, strict=True)
        assert [worker.descriptors(expected) for worker, expected in counts] == open_before
        assert [scene.holdings(worker) for worker in workers] == before
        if shape in ("never mapped", "unmapped, held"):
            workers[1].do("map 0 0 0 2 0")
            workers[1].do("access 0 0 2 3 0")
        for writer, byte in zip(workers, range(round_ * 10, 100), strict=False):
            writer.do(f"write 0 0 2 {byte}")
            assert [worker.do("read 0 0 2") for worker in workers] == [str(byte)] * count
        if shape in ("never mapped", "unmapped, held"):
            workers[1].do("unmap 0 0 2")
        if shape == "itself":
            assert workers[0].do("read 4 0 2") == str(byte)
    assert scene.end() == [0] * count


def test_every_reference_counts(scene: Stage) -> None:
    creator, importer = scene.start(), scene.start()
    importer.take_in(creator, creator.share())
    importer.do("retain 1 0 0")
    importer.do("retain 2 0 1")
    assert importer.do("same 0 1") == importer.do("same 1 2") == "1"
    assert scene.cycle().outcome == "done"
    importer.do("unmap 0 0 2")
    for _ in range(3):
        importer.do("props 0")
        importer.do("release 0")
    assert importer.fails("release 0") == importer.fails("props 0") == 1
    assert importer.do("left") == "0 0"


@pytest.mark.parametrize("way", ["take", "open", "send", "dup"])
def test_a_ticket_stays_a_ticket(scene: Stage, way: str) -> None:
    """However a descriptor travels; and one that came before a cycle is imported after it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        creator = scene.start(pass_fds=(ours.fileno(),))
        importer = scene.start(pass_fds=(theirs.fileno(),))
        fd = creator.share()
        if way == "send":
            creator.do(f"socket {ours.fileno()}")
            importer.do(f"socket {theirs.fileno()}")
            creator.do(f"send {fd}")
            own = importer.number("receive")
        elif way == "dup":
            own = importer.number(f"take {creator.pid} {creator.number(f'dup {fd}')}")
        else:
            own = importer.number(f"{way} {creator.pid} {fd}")
        creator.do(f"close {fd}")
        assert scene.cycle().outcome == "done"
        importer.do(f"import 0 {own}")
        importer.do("reserve 0 2")
        importer.do("map 0 0 0 2 0")
        importer.do("access 0 0 2 3 0")
        assert importer.do("read 0 0 2") == "90"


def test_a_descriptor_that_a_third_process_holds(scene: Stage) -> None:
    creator, importer, third = scene.start(), scene.start(), scene.start()
    fd = creator.share()
    importer.take_in(creator, fd)
    own = third.number(f"take {creator.pid} {fd}")
    report = scene.cycle(creator, importer)
    assert report.outcome == "done", report.lines()
    third.do(f"import 0 {own}")
    third.do("reserve 0 2")
    third.do("map 0 0 0 2 0")
    third.do("access 0 0 2 3 0")
    assert third.do("read 0 0 2") == "90"


CALLS = """
create 0 2 1|create 1 1 0|create 2 0 1|release 9|props 9|props 0|reserve 0 4|reserve 1 0|map 9 0 0 2 0|map 0 0 0 2 0
map 0 0 0 2 0|map 0 0 2 1 0|map 0 0 2 2 1|map 0 0 3 2 0|getaccess 0 0|access 0 0 2 3 0|access 0 0 1 3 0|access 0 2 1 3 0
getaccess 0 0|getaccess 0 2|write 0 0 2 7|read 0 0 2|read 0 0 3|export 9|export 1|fabric 0|free 0|unmap 0 0 1|unmap 0 2 1
retain 3 0 0|retain 4 0 3|same 0 3|release 0|release 3|release 0|props 0|read 0 0 2|retain 5 0 1|release 5|unmap 0 0 2
retain 6 0 0|free 0|free 0|import 7 -1|import 7 0|import 7 9999|multicast 8|bind 8 0|release 8|sync|capture|endcapture
endcapture|attribute 0 0|left|alloc 1 1|ipcget 1|ipcclose 1
"""


def test_the_same_answers_as_without_the_shim(scene: Stage) -> None:
    """Results, in order, of calls that succeed and of calls that fail; numbers of descriptors apart."""
    transcripts = []
    for options in ({"shim": False, "track": False}, {"track": False}, {"track": True}):
        worker = scene.start(**options)
        transcript = []
        for command in CALLS.replace("\n", "|").strip("|").split("|"):
            worker.send(command)
            assert worker.process.stdout
            said = worker.process.stdout.readline()
            transcript.append(
                (command, "ok" if command.startswith(("export", "ipcget")) and said[:2] == "ok" else said)
            )
        transcripts.append(transcript)
    assert transcripts[0] == transcripts[1] == transcripts[2]
    assert sum(said.startswith("err") for _, said in transcripts[0]) > 20


FAILING = ("Create", "AddressReserve", "Map", "SetAccess", "Unmap", "Release", "RetainAllocationHandle", "AddressFree")


@pytest.mark.parametrize("call", [*FAILING, "ExportToShareableHandle", "ImportFromShareableHandle"])
def test_a_call_that_fails_leaves_the_ledger_as_it_was(scene: Stage, call: str) -> None:
    creator, importer = scene.start(), scene.start()
    importer.take_in(creator, creator.share())
    importer.do("reserve 1 2")
    own = importer.number(f"take {creator.pid} {creator.number('export 0')}")
    commands = {
        "Create": "create 3 1 1",
        "AddressReserve": "reserve 3 1",
        "Map": "map 0 1 0 2 0",
        "SetAccess": "access 0 0 2 1 0",
        "Unmap": "unmap 0 0 2",
        "Release": "release 0",
        "RetainAllocationHandle": "retain 3 0 0",
        "AddressFree": "free 1",
        "ImportFromShareableHandle": f"import 3 {own}",
        "ExportToShareableHandle": "export 0",
    }
    worker = creator if call.startswith("Export") else importer
    before = scene.holdings(worker)
    worker.do(f"fail cuMem{call} 719 0 1")
    assert worker.fails(commands[call]) == 719
    assert scene.holdings(worker) == before
    assert scene.cycle().outcome == "done"
    assert importer.do("read 0 0 2") == "90"


def test_the_creator_is_gone(scene: Stage) -> None:
    """The exceptions from CUDA's own behaviour, each with its error."""
    creator, importer = scene.start(), scene.start()
    fd = creator.share()
    own = importer.number(f"take {creator.pid} {fd}")
    creator.do("release 0")
    importer.do(f"import 0 {own}")  # its mapping holds the memory
    creator.do("unmap 0 0 2")
    assert importer.fails(f"import 1 {own}") == 400  # CUDA_ERROR_INVALID_HANDLE
    creator.process.terminate()
    creator.process.wait()
    assert importer.fails(f"import 1 {own}") == 304  # CUDA_ERROR_OPERATING_SYSTEM


def test_a_consumer_without_the_tracker_is_refused(scene: Stage) -> None:
    creator, plain = scene.start(), scene.start(track=False)
    own = plain.number(f"take {creator.pid} {creator.share()}")
    assert plain.fails(f"import 0 {own}") == 999


def test_the_drivers_own_descriptors(scene: Stage) -> None:
    """CUINTERPOSE_TRACK_EXPORT=driver: who is not tracked can import; it is noted on both sides."""
    creator = scene.start(CUINTERPOSE_TRACK_EXPORT="driver")
    plain, importer = scene.start(track=False), scene.start()
    fd = creator.share()
    for worker in (plain, importer):
        worker.take_in(creator, fd)
        assert worker.do("read 0 0 2") == "90"
    assert scene.holdings(creator).notes["descriptor_given"] == 1
    assert [item.foreign for item in scene.holdings(importer).imports] == [True]


def test_fork(scene: Stage) -> None:
    """A child has no ledger: it neither hangs nor speaks for its parent."""
    creator, importer = scene.start(), scene.start()
    importer.take_in(creator, creator.share())
    assert importer.do("fork") == "0"
    assert scene.cycle().outcome == "done"
    assert importer.do("read 0 0 2") == "90"


@pytest.mark.parametrize("world_name", WORLDS)
def test_threads_that_allocate_meanwhile(scenes: Callable[[str], Stage], world_name: str) -> None:
    scene = scenes(world_name)
    workers = [scene.start() for _ in range(2)]
    mapped(workers)
    for worker in workers:
        worker.do("churn")
    for _ in range(3):
        # the fake driver's memory is mapped files, which come and go while preflight reads what is mapped
        report = scene.cycle(accept=preflight.IDLE)
        assert report.outcome == "done", report.lines(verbose=True)
    for worker in workers:
        rounds, error = worker.do("churned").split()
        assert (int(rounds) > 0, error) == (True, "0")
    assert workers[1].do("read 0 0 2") == "90"
    assert scene.end() == [0, 0]


def test_a_kernel_in_flight_ends_before_its_memory_goes(scene: Stage) -> None:
    """And one that is launched while imports are away waits at the gate."""
    creator, importer = scene.start(), scene.start()
    importer.take_in(creator, creator.share())
    importer.do("launch 0 0 4242 300")
    launched = []

    def launch_too(step: checkpoint.Step) -> None:
        if step.name == "let go" and step.pid == importer.pid:
            importer.send("launch 0 1 77 10")
            launched.append(step)

    assert scene.cycle(on_step=launch_too).outcome == "done"
    importer.answer()
    importer.do("sync")
    assert (creator.do("word 0 0"), creator.do("word 0 1")) == ("4242", "77")


def test_a_graph_is_replayed(scene: Stage) -> None:
    creator, importer = scene.start(), scene.start()
    importer.take_in(creator, creator.share())
    importer.do("graph 0 0 1 99 0")
    assert scene.cycle().outcome == "done"
    importer.do("replay 0")
    importer.do("sync")
    assert creator.do("word 0 1") == "99"


@pytest.mark.parametrize("who", ["creator", pytest.param("importer", marks=pytest.mark.slow)])
def test_work_that_does_not_end(scene: Stage, who: str) -> None:
    """The importer's stops the cycle at the gate, the creator's at the driver's lock; both are put back and go on."""
    creator, importer = scene.start(), scene.start()
    importer.take_in(creator, creator.share())
    worker = creator if who == "creator" else importer
    worker.do("launch -1 0 0 4000")
    limits = checkpoint.Limits(quiesce=0.3, lock=0.3, driver=20, importing=5, patience=20)
    report = checkpoint.cycle(scene.where, None, scene.library(), limits)
    assert (report.outcome, report.lost, report.status) == ("put back", [], 1), report.lines(verbose=True)
    assert next(step.name for step in report.steps if step.why) == ("lock" if who == "creator" else "close")
    worker.do("sync")
    creator.do("write 0 0 2 8")
    assert importer.do("read 0 0 2") == "8"
    assert checkpoint.cycle(scene.where, None, scene.library(), LIMITS).outcome == "done"
    assert importer.do("read 0 0 2") == "8"


def test_a_capture_is_not_spoilt(scene: Stage) -> None:
    creator, importer = scene.start(), scene.start()
    importer.take_in(creator, creator.share())
    importer.do("capture")
    assert scene.cycle().outcome == "refused"
    assert scene.cycle(accept=["capture"]).outcome == "put back"
    importer.do("endcapture")
    assert scene.cycle().outcome == "done"


def test_checkpoint_and_restore_apart(scene: Stage) -> None:
    """Another coordinator restores; and each command may be given again."""
    creator, importer = scene.start(), scene.start()
    importer.take_in(creator, creator.share())
    driver = scene.library()
    first = checkpoint.checkpoint(scene.where, None, driver, LIMITS)
    assert (first.outcome, first.status) == ("done", 0), first.lines()
    assert scene.states() == [State.CHECKPOINTED] * 2
    assert checkpoint.checkpoint(scene.where, None, driver, LIMITS).outcome == "refused"
    importer.send("read 0 0 2")  # blocks
    for _ in range(2):
        report = checkpoint.restore(scene.where, None, driver, LIMITS)
        assert (report.outcome, report.lost) == ("done", []), report.lines(verbose=True)
    assert importer.answer() == "90"
    assert scene.states() == [State.RUNNING] * 2


def test_one_coordinator_at_a_time(scene: Stage) -> None:
    creator, importer = scene.start(), scene.start()
    importer.take_in(creator, creator.share())

    def again() -> None:
        with pytest.raises(BlockingIOError):
            checkpoint.restore(scene.where, None, scene.library(), LIMITS)

    assert scene.cycle(between=again).outcome == "done"


def test_stopped_member(scene: Stage) -> None:
    """A process that does not run cannot be asked: nothing is touched, and it is said."""
    creator, importer = scene.start(), scene.start()
    importer.take_in(creator, creator.share())
    os.kill(importer.pid, signal.SIGSTOP)
    try:
        report = scene.cycle()
    finally:
        os.kill(importer.pid, signal.SIGCONT)
    assert report.outcome == "refused"
    assert importer.do("read 0 0 2") == "90"
