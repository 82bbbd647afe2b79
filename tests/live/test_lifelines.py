"""What becomes of the program when we die, when the disk is full, when there are no descriptors left."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from nvproxy_model.live import guardian
from nvproxy_model.trace.decode.catalog import Catalog
from nvproxy_model.trace.format import Header, Writer, writing
from nvproxy_model.trace.judge.replay import Replay
from nvproxy_model.trace.reader import Reader
from nvproxy_model.trace.record import table
from nvproxy_model.trace.record.brokered import Brokered
from tests import ROOT
from tests.live.watched import NODES, VERSION, World

BROKER = """
import sys, resource
from pathlib import Path
from tests.live.watched import World
world = World(Path(sys.argv[1]), Path(sys.argv[2]), None)
limit = int(sys.argv[3])
options = {}
if limit:
    # The program has its own limit; ours is set once it is held.
    from nvproxy_model.live import broker
    class Tree(broker.Tree):
        def __init__(self, *more):
            super().__init__(*more)
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    broker.Tree = Tree
import tests.live.watched as watched
from contextlib import nullcontext
watched.redirected = lambda out, source: nullcontext()
ran = world.run(*sys.argv[4:], stdin=0, say=print)
print(ran.report.status, flush=True)
"""


@contextmanager
def running(world: World, *arguments: Any, limit: int = 0, text: bool = True) -> Iterator[subprocess.Popen[Any]]:
    """A broker in a process of its own, on pipes."""
    command = [sys.executable, "-c", BROKER, str(world.nodes), str(world.program), str(limit), *map(str, arguments)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=text, cwd=ROOT, start_new_session=True
    ) as broker:
        try:
            yield broker
        finally:
            with_descendants = children(broker.pid)
            for pid in (broker.pid, *with_descendants):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def children(pid: int) -> list[int]:
    """The process's children."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def until(what: Callable[[], bool]) -> bool:
    for _ in range(2000):
        if what():
            return True
        time.sleep(0.01)
    return False


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_tree_ends_with_the_broker(world: World) -> None:
    with running(world, "hang") as broker:
        assert broker.stdout is not None
        program = int(broker.stdout.readline())
        tree = [program, *children(program), *(child for pid in children(program) for child in children(pid))]
        assert until(lambda: len(children(program)) == 1)
        broker.kill()
        assert until(lambda: not any(alive(pid) for pid in tree))


def test_the_program_goes_on_when_the_guardian_is_killed(world: World) -> None:
    with running(world, "wait", 5) as broker:
        assert broker.stdout is not None
        assert broker.stdin is not None
        assert broker.stdout.readline() == "ready\n"
        (kept,) = children(broker.pid)
        os.kill(kept, signal.SIGKILL)
        assert until(lambda: len(children(broker.pid)) == 1 and children(broker.pid) != [kept])
        broker.stdin.write("\n")
        broker.stdin.flush()
        assert broker.stdout.read().splitlines() == ["control 0", "5"]


def test_a_signal_to_the_broker_is_the_programs(world: World) -> None:
    with running(world, "wait", 5) as broker:
        assert broker.stdout is not None
        assert broker.stdout.readline() == "ready\n"
        broker.terminate()
        assert broker.stdout.read().splitlines() == [str(128 + signal.SIGTERM)]


def test_no_descriptors_left(world: World) -> None:
    """Some calls fail, the program learns of it and goes on; nothing hangs."""
    with running(world, "many", 100, limit=64) as broker:
        out, _ = broker.communicate(timeout=60)
    assert "a call could not be answered: " in out
    assert "Too many open files" in out
    *lines, status = out.splitlines()
    assert [line for line in lines if line.startswith("bad ") and line != "bad 0"]
    assert status == "0"


@pytest.fixture
def recorded(world: World, tmp_path: Path) -> Callable[..., tuple[Any, Reader]]:
    def run(*arguments: Any, **options: Any) -> tuple[Any, Reader]:
        path = tmp_path / "run.jsonl"
        entries = table.entries(Catalog(VERSION))
        with writing(path, Header(driver=VERSION, recorder="broker")) as writer:
            ran = world.run(*arguments, recorder=Brokered(writer, entries), **options)
        return ran, Reader(path)

    return run


def test_a_trace_has_both_sides_of_what_was_performed(recorded: Any, world: World) -> None:
    ran, reader = recorded("chain", caps="compute,utility,profiling", program=world.static)
    records = list(reader)
    assert reader.complete
    calls = [rec for rec in records if rec.k == "ioctl"]
    assert len(calls) == sum(ran.broker.tally.decided.values())
    assert all(rec.ret == 0 and rec.top1 is not None for rec in calls)
    assert [rec.key for rec in calls if rec.kind == "alloc"] == [0x41, 0x80, 0x2080, 0x90CE, 0x90CE, 0x90CE, 0x90CD]
    assert {rec.status for rec in calls} == {0}
    replay = Replay(ran.broker.policy).feed(records)
    replay.finish()
    assert replay.divergences == []
    assert replay.refused == []


def test_refusals_and_hidden_nodes_are_in_the_trace(recorded: Any) -> None:
    _, reader = recorded("refusals")
    records = list(reader)
    assert [(rec.dev, rec.err) for rec in records if rec.k == "open"][:2] == [
        ("/dev/nvidiactl", 0),
        ("/dev/nvidia-modeset", errno.ENOENT),
    ]
    assert [rec.status for rec in records if rec.kind == "alloc" and rec.key == 0xC639] == [0x22]


def test_a_full_disk_ends_the_trace_and_not_the_program(world: World) -> None:
    said: list[str] = []
    with open("/dev/full", "wb", buffering=0) as full:
        writer = Writer.__new__(Writer)
        with pytest.raises(OSError, match="No space"):
            Writer(full, Header())
        with open(os.devnull, "wb", buffering=0) as null:
            writer = Writer(null, Header())
            os.dup2(full.fileno(), null.fileno())
            recorder = Brokered(writer, table.entries(Catalog(VERSION)))
            ran = world.run("calls", 10, recorder=recorder, say=said.append)
    assert ran.out == "bad 0\n"
    assert said == ["a call could not be answered: the trace ends here: No space left on device"]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.EBUSY, "another supervisor"),
        (errno.EINVAL, "WAIT_KILLABLE_RECV"),
        (errno.EPERM, "forbidden here"),
        (errno.ENOSYS, "forbidden here"),
        (0, "the child died"),
    ],
)
def test_why_a_program_cannot_be_watched(number: int, text: str) -> None:
    line = guardian._refusal(number)
    assert text in line
    assert "\n" not in line


ORDINARY = """
import ctypes, os, sys
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: what a user's own session is
"""


@pytest.fixture
def ordinary(world: World) -> Iterator[World]:
    """The same world where everybody may go; its programs run as nobody."""
    if os.geteuid() != 0:
        yield world
        return
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        shutil.copytree(world.nodes.parent, place / "w", symlinks=True, ignore=lambda *_: ["dev"])
        nodes = place / "dev"
        nodes.mkdir()
        for node in NODES:
            os.mkfifo(nodes / node)
            (nodes / node).chmod(0o666)
        shutil.copy(world.program, place / "program")
        (place / "program").chmod(0o755)
        yield World(nodes, place / "program", None)


def as_nobody(world: World, *arguments: str) -> list[str]:
    """What a program prints under a broker that has no privilege at all, forked off before it gives up what it has."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if os.geteuid() == 0:
                exec(ORDINARY)
            ran = world.run(*arguments)
            os.write(write, f"{ran.out}{ran.report.status} {dict(ran.calls)}".encode())
        except BaseException as error:
            os.write(write, repr(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    return text.splitlines()


def test_an_ordinary_user(ordinary: World) -> None:
    *lines, last = as_nobody(ordinary, "inherited")
    assert lines == ["child 0", "parent sees 0", "dup 0", "exec 0", "after 0"]
    assert last.startswith("0 ")


def test_a_program_that_lets_nobody_look_is_counted_and_left_alone(ordinary: World) -> None:
    lines = as_nobody(ordinary, "opaque", "3")
    assert "'unseen'" in lines[-1]


def test_another_root_hides_the_same_nodes(world: World) -> None:
    if os.geteuid() != 0:
        pytest.skip("chroot(2) wants CAP_SYS_CHROOT")
    if world.static is None:
        pytest.skip("no static libc")
    root = world.nodes.parent
    shutil.copy(world.static, root / "static")
    ran = world.run("chrooted", str(root), program=root / "static")
    assert ran.out.splitlines() == [f"modeset -1 {errno.ENOENT}", "control device opens"]
    assert ran.refused == {"open of /dev/nvidia-modeset": 1}
