"""A fault at every step of a cycle: nothing is lost that the report does not name, nobody is stuck, nothing leaks."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuinterpose import checkpoint, preflight
from cuinterpose.checkpoint_driver import Command, DriverError, Library, NoDriver, State, within
from cuinterpose.directory import open_directory
from cuinterpose.frame import REPLY, Frame, Op, ProtocolError, Status, decode
from cuinterpose.inventory import collect
from cuinterpose.member import Conversation, Phase, Stage, StepError, holdings, parse
from tests import ROOT
from tests.cuinterpose.checkpoint_world import LIMITS, Worker
from tests.cuinterpose.checkpoint_world import Stage as Scene
from tests.cuinterpose.shim_world import NATIVE, Toolchain

STEPS = (
    "close",
    "look again",
    "let go",
    "hold",
    "lock",
    "locked",
    "checkpoint",
    "restore",
    "unlock",
    "serve",
    "import",
    "open",
)
BEFORE_THE_CHECKPOINT = STEPS[: STEPS.index("checkpoint")]


def pair(scene: Scene) -> tuple[Worker, Worker]:
    creator, importer = scene.start(), scene.start()
    importer.take_in(creator, creator.share())
    return creator, importer


def shared_still(creator: Worker, importer: Worker, byte: int = 33) -> None:
    assert (creator.do("read 0 0 2"), importer.do("read 0 0 2")) == ("90", "90")
    creator.do(f"write 0 0 2 {byte}")
    assert importer.do("read 0 0 2") == str(byte)
    importer.do("write 0 0 2 90")
    assert creator.do("read 0 0 2") == "90"


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


COORDINATOR = """
import os, signal, sys
from pathlib import Path
from cuinterpose import checkpoint
from cuinterpose.checkpoint_driver import Library
where, driver, name, count = sys.argv[1:]
seen = []
def on_step(step):
    seen.append(step.name)
    if seen.count(name) == int(count):
        os.kill(os.getpid(), signal.SIGKILL)
report = checkpoint.cycle(Path(where), None, Library(driver), on_step=on_step)
print("\\\\n".join(report.lines(verbose=True)))
sys.exit(3)
"""


@pytest.mark.parametrize("count", [pytest.param(1, id="first"), pytest.param(2, id="second", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", STEPS)
def test_the_coordinator_is_killed(scene: Scene, name: str, count: int) -> None:
    """Until the driver has locked, the programs go on by themselves; after that another coordinator brings them back."""
    creator, importer = pair(scene)
    before = creator.descriptors(), importer.descriptors()
    done = subprocess.run(
        [sys.executable, "-c", COORDINATOR, scene.where, scene.driver, name, str(count)],
        env={**os.environ, "FAKE_CUDA": str(scene.fake), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if name == "look again" and count == 2:
        assert done.returncode == 3  # there is only one
    else:
        assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    if STEPS.index(name) > STEPS.index("hold"):
        report = checkpoint.restore(scene.where, None, scene.library(), LIMITS)
        assert (report.outcome, report.lost) == ("done", []), report.lines(verbose=True)
    shared_still(creator, importer)
    assert scene.states() == [State.RUNNING] * 2
    assert (creator.descriptors(before[0]), importer.descriptors(before[1])) == before
    assert scene.cycle().outcome == "done"
    shared_still(creator, importer)


@pytest.mark.parametrize("op", [Op.CLOSE, Op.LET_GO, Op.SERVE])
def test_the_coordinator_falls_silent(scene: Scene, op: Op) -> None:
    """Its connection is open and no step comes: the process does not wait for ever. Once it holds, it does."""
    creator, importer = pair(scene)
    (member,) = collect(scene.where, [importer.pid]).members
    assert member.holdings
    with Conversation(member.endpoint, member.holdings.participant) as silent:
        for step in (Op.CLOSE, Op.LET_GO, Op.SERVE):
            silent.step(step, 5, 0.2 if step == op else 30)
            if step == op:
                break
        shared_still(creator, importer)
    with closed_gate(member.endpoint, member.holdings.participant) as holding:
        for step, patience in ((Op.LET_GO, 30), (Op.HOLD, 0.1)):
            assert holding.step(step, 5, patience) in (Phase.LET_GO, Phase.HELD)
        time.sleep(0.5)
        assert holdings(member.endpoint, member.holdings.participant).phase is Phase.HELD
    shared_still(creator, importer)


def closed_gate(endpoint: str, participant: bytes) -> Conversation:
    """Closes the gate, once the process has let go of the coordinator before; a busy process answers so and hangs up."""
    for _ in range(100):
        conversation = Conversation(endpoint, participant)
        try:
            assert conversation.step(Op.CLOSE, 5, 30) is Phase.CLOSED
        except StepError:
            conversation.close()
            time.sleep(0.1)
        else:
            return conversation
    pytest.fail("the process never let go of a silent coordinator")


def test_steps_out_of_order(scene: Scene) -> None:
    creator, importer = pair(scene)
    (member,) = collect(scene.where, [importer.pid]).members
    assert member.holdings
    participant = member.holdings.participant
    with Conversation(member.endpoint, participant) as one:
        for op in (Op.LET_GO, Op.HOLD, Op.LOCK):
            with pytest.raises(StepError) as refused:
                one.step(op)
            assert refused.value.stage is Stage.ORDER
        assert one.step(Op.CLOSE) is one.step(Op.CLOSE) is Phase.CLOSED
        with pytest.raises(StepError):
            one.step(Op.OPEN_GATE)
        with Conversation(member.endpoint, participant) as two, pytest.raises(StepError):
            two.step(Op.CLOSE)
        assert one.step(Op.LET_GO) is one.step(Op.LET_GO) is Phase.LET_GO
        with pytest.raises(StepError):
            one.step(Op.IMPORT)
        for op, phase in ((Op.SERVE, Phase.SERVING), (Op.IMPORT, Phase.BACK), (Op.OPEN_GATE, Phase.OPEN)):
            assert one.step(op) is phase
            assert one.step(op) is phase
    shared_still(creator, importer)


@pytest.mark.parametrize("who", ["creator", "importer"])
@pytest.mark.parametrize("name", STEPS)
def test_a_member_is_killed(scene: Scene, name: str, who: str) -> None:
    """The other one lives: with its memory if that is its own; and what went with the dead is in the report."""
    creator, importer = pair(scene)
    dead, alive = (creator, importer) if who == "creator" else (importer, creator)
    killed = []

    def on_step(step: checkpoint.Step) -> None:
        if step.name == name and not killed:
            killed.append(step)
            dead.kill()

    limits = checkpoint.Limits(quiesce=3, lock=3, driver=10, importing=2, patience=20)
    report = checkpoint.cycle(scene.where, None, scene.library(), limits, on_step=on_step)
    assert killed
    assert scene.library().state(alive.pid) is State.RUNNING, report.lines(verbose=True)
    if who == "importer":
        assert alive.do("read 0 0 2") == "90"
        alive.do("write 0 0 2 1")
        assert report.outcome in ("put back", "lost", "done")
    else:
        try:
            said = alive.do("read 0 0 2")
        except Exception:
            assert any(str(alive.pid) in line for line in report.lost), report.lines(verbose=True)
            assert [item.lost != "" for item in scene.holdings(alive).imports] == [True]
            alive.do("release 0")
        else:
            assert said == "90"
    alive.do("create 9 1 1")  # it is not stuck
    alive.do("release 9")
    assert checkpoint.restore(scene.where, [alive.pid], scene.library(), limits).outcome in ("done", "lost")


@pytest.mark.parametrize("who", ["creator", "importer"])
@pytest.mark.parametrize("name", ["lock", "checkpoint", "cuMemUnmap", "cuMemRelease", "cuCtxSynchronize"])
def test_the_driver_refuses_before_the_checkpoint(scene: Scene, name: str, who: str) -> None:
    creator, importer = pair(scene)
    worker = creator if who == "creator" else importer
    worker.do(f"fail {name} 719 0 1")
    report = scene.cycle()
    if who == "creator" and name.startswith("cu"):
        assert report.outcome == "done"  # of a creator's nothing is let go of
    else:
        assert (report.outcome, report.lost) == ("put back", []), report.lines(verbose=True)
        assert any("719" in step.why and step.pid == worker.pid for step in report.steps)
    worker.do("fail none 0 0 0")
    shared_still(creator, importer)
    assert scene.states() == [State.RUNNING] * 2
    assert scene.cycle().outcome == "done"
    shared_still(creator, importer)


@pytest.mark.parametrize(
    ("who", "name"),
    [
        ("importer", "cuMemImportFromShareableHandle"),
        ("importer", "cuMemMap"),
        ("importer", "cuMemSetAccess"),
        ("creator", "cuMemExportToShareableHandle"),
        ("creator", "restore"),
        ("importer", "restore"),
        ("importer", "unlock"),
    ],
)
def test_the_driver_refuses_after_the_checkpoint(scene: Scene, who: str, name: str) -> None:
    """What failed is named with the driver's status; the rest is restored, and another attempt at the driver's part works."""
    creator, importer = pair(scene)
    bystander = scene.start()
    bystander.do("create 0 1 1")
    worker = creator if who == "creator" else importer
    worker.do(f"fail {name} 719 0 1")
    limits = checkpoint.Limits(quiesce=5, lock=5, driver=20, importing=1, patience=20)
    report = checkpoint.cycle(scene.where, None, scene.library(), limits)
    assert report.outcome == "lost"
    assert report.status == 1
    assert any("719" in line for line in (*report.lost, *(step.why for step in report.steps))), report.lines(
        verbose=True
    )
    bystander.do("props 0")
    if name in ("restore", "unlock"):
        again = checkpoint.restore(scene.where, None, scene.library(), limits)
        assert (again.outcome, again.lost) == ("done", []), again.lines(verbose=True)
        shared_still(creator, importer)
    else:
        assert creator.do("read 0 0 2") == "90"
        assert [bool(item.lost) for item in scene.holdings(importer).imports] == [True]
        importer.do("release 0")


def test_no_descriptor_left(scene: Scene) -> None:
    """EMFILE where an import should come back: named, and the program goes on."""
    creator, importer = pair(scene)

    def on_step(step: checkpoint.Step) -> None:
        if step.name == "hold":
            used = max(int(name) for name in os.listdir(f"/proc/{importer.pid}/fd")) + 1
            resource.prlimit(importer.pid, resource.RLIMIT_NOFILE, (used, 1024))
            held.append(used)

    held: list[int] = []
    limits = checkpoint.Limits(quiesce=5, lock=5, driver=20, importing=1, patience=20)
    report = checkpoint.cycle(scene.where, None, scene.library(), limits, on_step=on_step)
    assert held
    resource.prlimit(importer.pid, resource.RLIMIT_NOFILE, (1024, 1024))
    if report.outcome != "done":  # a number below the limit may have been free
        assert any(str(importer.pid) in line for line in report.lost), report.lines(verbose=True)
    assert creator.do("read 0 0 2") == "90"
    importer.do("create 9 1 1")


def test_no_descriptor_for_a_ticket(scene: Scene) -> None:
    """The driver gave one, so the call does not fail: the descriptor stays, noted."""
    creator = scene.start()
    creator.share()
    used = max(int(name) for name in os.listdir(f"/proc/{creator.pid}/fd")) + 1
    resource.prlimit(creator.pid, resource.RLIMIT_NOFILE, (used + 1, 1024))
    fd = creator.number("export 0")
    assert os.readlink(f"/proc/{creator.pid}/fd/{fd}").startswith(str(scene.fake))
    resource.prlimit(creator.pid, resource.RLIMIT_NOFILE, (1024, 1024))
    assert scene.holdings(creator).notes["descriptor_given"] == 1


def test_no_endpoint(scene: Scene) -> None:
    """A directory that others may enter: said once, and the program runs as without the tracker."""
    scene.where.chmod(0o755)
    creator, importer = scene.start(), scene.start(track=False)
    importer.take_in(creator, creator.share())
    assert importer.do("read 0 0 2") == "90"
    scene.where.chmod(0o700)
    (member,) = collect(scene.where, [creator.pid]).members
    assert (member.holdings, member.tracked) == (None, None)
    assert "could not be used" in member.why
    assert checkpoint.cycle(scene.where, [creator.pid], scene.library(), LIMITS).outcome == "refused"


LIES = {
    "nothing": b"",
    "not a frame": b"x" * 64,
    "another op": Frame(Op.EXPORT | REPLY).encode(),
    "no descriptor": b"ok",
    "a phase that is none": b"phase",
}


@pytest.mark.parametrize("lie", LIES)
def test_a_peer_lies(scene: Scene, monkeypatch: pytest.MonkeyPatch, lie: str) -> None:
    """Somebody of our uid listens in the directory: inventory says what is wrong, and the others are not hurt."""
    creator, importer = pair(scene)
    participant = bytes(range(1, 17))
    path = scene.where / participant.hex()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen(8)

        def serve() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                with client:
                    request = decode(client.recv(64))
                    answer = LIES[lie]
                    if request.op == Op.IDENTIFY:
                        answer = Frame(Op.IDENTIFY | REPLY, request.serial, participant=participant).encode()
                    elif answer in (b"ok", b"phase"):
                        kind = 250 if answer == b"phase" else 0
                        answer = Frame(request.op | REPLY, request.serial, kind=kind, participant=participant).encode()
                    client.send(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        group = collect(scene.where)
        assert [bool(member.holdings) for member in group.members].count(False) == 1
        driver = scene.library()
        state = driver.state
        # the driver says that it uses CUDA
        monkeypatch.setattr(driver, "state", lambda pid: State.RUNNING if pid == os.getpid() else state(pid))
        report = checkpoint.cycle(scene.where, None, driver, LIMITS)
        assert (report.outcome, report.status) == ("refused", 2)
        if lie != "no descriptor":  # a step's answer has none
            with pytest.raises(ProtocolError), Conversation(str(path), participant) as conversation:
                conversation.step(Op.CLOSE, 1)
        listener.shutdown(socket.SHUT_RDWR)
    shared_still(creator, importer)
    assert scene.cycle().outcome == "done"


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b"\xff", b"[" * 100000, b'{"schema":"cuinterpose.process/2"}', b'{"schema":1}', b"1" * 5000],
)
def test_an_inventory_that_is_none(data: bytes) -> None:
    with pytest.raises(ProtocolError) as refused:
        parse(data, 1)
    assert refused.value.status in (Status.MALFORMED, Status.VERSION)


VALID = json.dumps(
    {
        "schema": "cuinterpose.process/1",
        "pid": 1,
        "phase": "let go",
        "captures": 0,
        "contexts": 1,
        "devices": 1,
        "participant": "01" * 16,
        "allocations": [
            {
                **dict.fromkeys(("size", "device", "handle_types", "references"), 1),
                "multicast": False,
                "resource": None,
                "importers": [{"pid": 1, "started": 2}],
                "mappings": [],
            }
        ],
        "imports": [
            {
                "foreign": False,
                "entangled": False,
                "references": 1,
                "lost": {"stage": 77, "cuda": 1},
                "participant": "02" * 16,
                "resource": "03" * 16,
                "endpoint": "/x",
                "mappings": [{"address": 1, "size": 2, "offset": 0, "away": True, "access": []}],
            }
        ],
        "reservations": [{"address": 1, "size": 2}],
        "notes": {"multicast": 0},
    }
).encode()


@given(st.data())
def test_an_inventory_of_any_bytes(data: st.DataObject) -> None:
    """A document with something in it exchanged: an answer or one kind of error."""
    assert parse(VALID, 7).pid == 7
    at = data.draw(st.integers(0, len(VALID)))
    size = data.draw(st.integers(0, 40))
    with contextlib.suppress(ProtocolError):
        parse(VALID[:at] + data.draw(st.binary(max_size=40)) + VALID[at + size :], 7)
    document = json.loads(VALID)
    name = data.draw(st.sampled_from(sorted(document)))
    document[name] = data.draw(
        st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=3)
    )
    with contextlib.suppress(ProtocolError):
        parse(json.dumps(document).encode(), 7)


def test_within() -> None:
    waiting = threading.Event()
    with pytest.raises(DriverError, match=r"no answer in 0\.1 s"):
        within(0.1, "checkpoint", lambda: waiting.wait(30) and None)
    waiting.set()


STAND_IN = """\
#!{python}
import argparse, ctypes, sys
parser = argparse.ArgumentParser()
parser.add_argument("--get-state", action="store_true")
parser.add_argument("--action")
parser.add_argument("--pid", type=int)
parser.add_argument("--timeout", type=int, default=0)
a = parser.parse_args()
library = ctypes.CDLL("{driver}")
if a.get_state:
    state = ctypes.c_int()
    code = library.cuCheckpointProcessGetState(a.pid, ctypes.byref(state))
    print(["running", "locked", "checkpointed", "failed"][state.value])
else:
    code = getattr(library, "cuCheckpointProcess" + a.action.capitalize())(a.pid, (ctypes.c_uint * 16)(a.timeout))
if code:
    sys.exit(f"cuda-checkpoint: error {{code}}")
"""


def test_the_drivers_command(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only cuda-checkpoint is there. A stand-in, with the command's options."""
    command = tmp_path / "cuda-checkpoint"
    command.write_text(STAND_IN.format(python=sys.executable, driver=scene.driver))
    command.chmod(0o755)
    monkeypatch.setenv("FAKE_CUDA", str(scene.fake))
    creator, importer = pair(scene)
    driver = Command(str(command))
    report = checkpoint.cycle(scene.where, None, driver, LIMITS)
    assert report.outcome == "done", report.lines(verbose=True)
    shared_still(creator, importer)
    creator.do("launch -1 0 0 3000")
    limits = checkpoint.Limits(quiesce=3, lock=0.2, driver=10, importing=5, patience=20)
    report = checkpoint.cycle(scene.where, None, driver, limits)
    assert (report.outcome, report.lost) == ("put back", [])
    assert any("error 600" in step.why for step in report.steps)
    shared_still(creator, importer)
    with pytest.raises(NoDriver):
        Command(str(tmp_path / "nothing"))


def test_a_driver_without_checkpoints(scene: Scene, tmp_path: Path) -> None:
    driver = Toolchain().shared(
        tmp_path / "libcuda.so.1",
        [NATIVE / "checkpoint_driver.c"],
        "-DWITHOUT_CHECKPOINTS",
        "-Wno-unused-function",
        "-Wl,-soname,libcuda.so.1,-Bsymbolic",
        "-lpthread",
    )
    with pytest.raises(NoDriver, match=r"12\.8"):
        Library(str(driver))
    answer = preflight.judge(collect(scene.where), None, "why not")
    assert (answer.status, answer.obstacles[0].code) == (1, "no-driver")
    assert "why not" in answer.lines()[1]


def test_the_directory_is_trusted_or_not_used(scene: Scene) -> None:
    scene.where.chmod(0o750)
    with pytest.raises(PermissionError):
        checkpoint.cycle(scene.where, None, scene.library(), LIMITS)
    scene.where.chmod(0o700)
    os.close(open_directory(scene.where))
