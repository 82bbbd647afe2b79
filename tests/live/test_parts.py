"""The broker's parts alone: nodes, what runs in place, memory, files, the capability sets, and what real runs recorded."""

from __future__ import annotations

import ctypes
import errno
import functools
import itertools
import mmap
import os
import select
import signal
import stat
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvproxy_model import Policy, kernel, notification, task_memory
from nvproxy_model.caps import SUPPORTED, Caps
from nvproxy_model.errors import MemoryFault
from nvproxy_model.live.files import OpenFiles
from nvproxy_model.live.in_place import IN_PLACE, find
from nvproxy_model.live.nodes import DeviceNodes, DirectoryNodes
from nvproxy_model.live.tally import Tally, smallest_caps
from nvproxy_model.live.turns import Turns
from nvproxy_model.policy.decision import Decision
from nvproxy_model.session.ports import Buffer, Pages
from nvproxy_model.signals import passed_on
from nvproxy_model.trace.judge.replay import Replay
from nvproxy_model.trace.reader import Reader
from tests import ROOT
from tests.live.watched import VERSION

DEVICES = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n238 nvidia-uvm\n241 nvidia-caps\n\nBlock devices:\n238 sd\n"


def node(major: int, minor: int, kind: int = stat.S_IFCHR) -> Any:
    return SimpleNamespace(st_mode=kind | 0o666, st_rdev=os.makedev(major, minor))


@pytest.mark.parametrize(
    ("major", "minor", "path", "kind"),
    [
        (195, 255, "/dev/nvidiactl", "frontend"),
        (195, 0, "/dev/nvidia0", "frontend"),
        (195, 17, "/dev/nvidia17", "frontend"),
        (195, 254, "/dev/nvidia-modeset", "other"),
        (238, 0, "/dev/nvidia-uvm", "uvm"),
        (238, 1, "/dev/nvidia-uvm-tools", "other"),
        (241, 2, "/dev/nvidia-caps/nvidia-cap2", "open-only"),
    ],
)
def test_nodes_are_known_by_their_numbers(major: int, minor: int, path: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / "devices").write_text(DEVICES)
    assert DeviceNodes(tmp_path / "devices")(node(major, minor)) == (path, kind)


def test_what_is_not_a_node(tmp_path: Path) -> None:
    (tmp_path / "devices").write_text(DEVICES)
    nodes = DeviceNodes(tmp_path / "devices")
    assert nodes(node(1, 3)) is None
    assert nodes(node(238, 0, stat.S_IFBLK)) is None
    assert nodes(os.stat(__file__)) is None


def test_a_driver_that_is_loaded_later_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "devices").write_text("Character devices:\n195 nvidia\n")
    nodes = DeviceNodes(tmp_path / "devices")
    assert nodes(node(238, 0)) is None
    (tmp_path / "devices").write_text(DEVICES)
    monkeypatch.setattr("nvproxy_model.live.nodes._AGE", -1)
    assert nodes(node(238, 0)) == ("/dev/nvidia-uvm", "uvm")


def alloc(hclass: int) -> Buffer:
    arg = Buffer(bytearray(48))
    arg.data[12:16] = hclass.to_bytes(4, "little")
    return arg


def test_what_runs_in_place() -> None:
    places = {hclass: find(IN_PLACE, "frontend", 0xC030462B, alloc(hclass)) for hclass in range(0x10000)}
    assert {hclass for hclass, place in places.items() if place is not None} == {0, 1, 0x41, 0x503C}
    escapes = {nr for nr in range(256) if find(IN_PLACE, "frontend", 0xC0004600 | nr, None) is not None}
    assert escapes == {0x4E, 0x4F, 0x5E}
    assert all(find(IN_PLACE, "uvm", request, None) is not None for request in (0x30000001, 0x27, 75))
    pinned = Buffer(bytearray(56), {24: Pages(0x1000, 0x1000, True)})
    assert find(IN_PLACE, "frontend", 0xC0384627, pinned) is not None
    assert find(IN_PLACE, "frontend", 0xC0384627, Buffer(bytearray(56))) is None
    assert all(".c" in place.why or "NV01_MEMORY_SYSTEM_OS_DESCRIPTOR" in place.why for place in IN_PLACE)


def test_every_row_that_runs_in_place_is_one_of_the_policys() -> None:
    policy = Policy.for_driver(VERSION, allow_unsupported=True)
    for place in IN_PLACE:
        if place.number is not None:
            assert place.number in getattr(policy, place.table)


@pytest.fixture
def pages() -> Any:
    """Three pages: one to write, one to read, one that is not there. Their address."""
    whole = mmap.mmap(-1, 3 * mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(whole))
    libc = ctypes.CDLL(None)
    whole[:] = bytes(range(256)) * (len(whole) // 256)
    libc.mprotect(ctypes.c_void_p(address + mmap.PAGESIZE), ctypes.c_size_t(mmap.PAGESIZE), 1)
    libc.mprotect(ctypes.c_void_p(address + 2 * mmap.PAGESIZE), ctypes.c_size_t(mmap.PAGESIZE), 0)
    yield address
    libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(3 * mmap.PAGESIZE), 3)


def test_memory_faults_where_the_kernel_does(pages: int) -> None:
    me, page = os.getpid(), mmap.PAGESIZE
    assert task_memory.read(me, pages + page - 4, 8) == bytes([252, 253, 254, 255, 0, 1, 2, 3])
    task_memory.write(me, pages, b"new")
    assert task_memory.read(me, pages, 3) == b"new"
    for address, size in ((pages + 2 * page - 1, 2), (0, 1), (pages + 2 * page, 1), ((1 << 64) - 1, 2)):
        with pytest.raises(MemoryFault):
            task_memory.read(me, address, size)
    # /proc/PID/mem would write there.
    with pytest.raises(MemoryFault):
        task_memory.write(me, pages + page, b"x")
    assert not task_memory.hole(me, pages, 2 * page)
    assert task_memory.hole(me, pages, 3 * page)


@given(actions=st.lists(st.tuples(st.sampled_from(["open", "dup", "close", "use"]), st.integers(0, 7)), max_size=40))
def test_a_file_is_itself_under_every_number_and_until_its_end(
    actions: list[tuple[str, int]], tmp_path_factory: Any
) -> None:
    """Against a plain model that follows each descriptor."""
    directory = tmp_path_factory.getbasetemp() / "nodes-of-files"
    if not directory.exists():
        directory.mkdir()
        os.mkfifo(directory / "nvidiactl")
    files = OpenFiles(DirectoryNodes(directory))
    numbers: dict[int, int] = {}
    known: dict[int, Any] = {}
    births = itertools.count()
    try:
        for action, at in actions:
            fds = sorted(numbers)
            if action == "open":
                numbers[os.open(directory / "nvidiactl", os.O_RDWR)] = next(births)
                continue
            if not fds:
                continue
            fd = fds[at % len(fds)]
            if action == "dup":
                numbers[os.dup(fd)] = numbers[fd]
            elif action == "close":
                born = numbers.pop(fd)
                os.close(fd)
                if born not in numbers.values() and born in known:
                    assert files.gone() == [known.pop(born)]
            else:
                taken = os.dup(fd)
                file = files.find(1, fd, taken)
                assert file is not None
                assert known.setdefault(numbers[fd], file) is file
                files.release(file)
                os.close(taken)
                assert files.gone() == []
        assert len({id(file) for file in known.values()}) == len(known)
    finally:
        for fd in numbers:
            os.close(fd)
        files.close()


NUMBERS = [("control", n) for n in (0x1F0, 0x20800122, 0x20803083, 0x90CD0101, 0x20801813, 0xB02)]
NUMBERS += [("alloc", n) for n in (0x73, 0x90CD, 0x90E7, 0xF1, 0x80)] + [
    ("frontend", 0xC8),
    ("frontend", 0xD9),
    ("uvm", 0x27),
]


@functools.cache
def policy_under(caps: Caps) -> Policy:
    return Policy.for_driver(VERSION, caps, allow_unsupported=True)


@settings(max_examples=30, deadline=None)
@given(seen=st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=5))
def test_the_smallest_set_is_the_smallest(seen: list[tuple[str, int]]) -> None:
    """Against every set, asked one by one."""
    policy = Policy.for_driver(VERSION, "compute,utility", allow_unsupported=True)
    tally = Tally(policy)
    for table, number in seen:
        entry = policy.entry(table, number)
        tally.call(getattr(entry, "decision", entry))
    caps, _ = smallest_caps(tally)

    def admits(some: Caps) -> bool:
        other = policy_under(some)
        gates = [
            ("frontend", {"control": 0x2A, "alloc": 0x2B}[table]) for table, _ in seen if table in ("control", "alloc")
        ]
        return all(other.entry(table, number).decision.why.name != "CAPABILITY" for table, number in [*seen, *gates])

    single = [cap for cap in Caps if cap & SUPPORTED]
    sets = [Caps(sum(some)) for size in range(len(single) + 1) for some in itertools.combinations(single, size)]
    assert caps == next(some for some in sets if admits(some))


def test_a_turn_is_passed_on_when_a_call_takes_long() -> None:
    """The second thread receives while the first still answers."""
    began, second, first = threading.Event(), threading.Event(), threading.Event()
    waited: list[bool] = []

    def work() -> None:
        while turns.take():
            turn = turns.begin(1)
            if not began.is_set():
                began.set()
                waited.append(second.wait(20))
                assert not turns.finish(turn)
                first.set()
            else:
                second.set()
                waited.append(first.wait(20))
                if turns.finish(turn):
                    turns.end()
                    return

    turns = Turns(work, 4)
    turns.start()
    turns.join()
    assert waited == [True, True]


def test_a_turn_that_ended_is_not_passed_on() -> None:
    """The one that watches may have looked before the end and come to it after."""
    turns = Turns(lambda: None, 4)
    assert turns.take()
    turn = turns.begin(1)
    assert turns.finish(turn)
    turns._pass_on(turn)
    assert turns._receiving.locked()  # the turn is still ours, and nobody else receives
    turns.end()


def test_a_signal_is_passed_on_while_nothing_runs_its_handler() -> None:
    """As when it comes just before the wait: Python's own handlers run after it."""
    ready, write = os.pipe()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        with passed_on(lambda number: os.write(write, bytes([number]))):
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
            waiting = select.poll()
            waiting.register(ready, select.POLLIN)
            os.kill(os.getpid(), signal.SIGUSR1)
            assert waiting.poll(20_000)
            assert os.read(ready, 8) == bytes([signal.SIGUSR1])
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(ready)
        os.close(write)
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_the_filter_slows_nothing_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the kernel is as old as it may be or not, the program's speculation stays as it is (linux/seccomp.h)."""
    asked: list[int] = []

    def seccomp(_: object, flags: int) -> int:
        asked.append(flags)
        if flags & kernel.FLAG_WAIT_KILLABLE_RECV:
            raise OSError(errno.EINVAL, "before 5.19")
        return 7

    monkeypatch.setattr(kernel, "seccomp", seccomp)
    assert notification.install([]) == 7
    assert len(asked) == 2
    assert all(flags & 1 << 2 for flags in asked)


RUNS = sorted((ROOT / "tests" / "data" / "runs").glob("*.jsonl.gz"))
"""Recorded by ``nvproxy-policy run --record`` on an H200 with driver 580.159.04, scrubbed. nsys with profiling; two processes
that share memory, with the default capabilities."""
CAPS = {"nsys": "compute,utility,profiling", "share": "compute,utility"}


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name.split(".")[0])
def test_what_a_program_saw_is_what_the_policy_says(path: Path) -> None:
    policy = Policy.for_driver(VERSION, CAPS[path.name.split(".")[0]], allow_unsupported=True)
    reader = Reader(path)
    records = list(reader)
    assert reader.complete
    refused = 0
    for rec in records:
        if rec.k != "ioctl" or rec.kind not in ("control", "alloc") or rec.ret is None:
            continue
        decision: Decision = policy.entry(rec.kind, rec.key).decision
        if not decision.allowed and decision.status is not None:
            assert rec.status == decision.status
            refused += 1
    assert refused == (2 if "nsys" in path.name else 0)
    replay = Replay(policy).feed(records)
    replay.finish()
    assert replay.divergences == []
    in_place = {(rec.kind, rec.key) for rec in records if rec.k == "ioctl" and rec.ret is None and rec.kind != "uvm"}
    assert in_place <= {
        ("alloc", 0),
        ("alloc", 0x41),
        ("alloc", 0x503C),
        ("fe", 0x4E),
        ("fe", 0x4F),
        ("fe", 0x5E),
        ("fe", 0x27),
    }
    assert all(rec.fl & 4 for rec in records if rec.k == "ioctl" and rec.ret is None)


def test_a_profilers_event_buffers_were_made_by_the_broker() -> None:
    records = [rec for rec in Reader(RUNS[0]) if rec.k == "ioctl"]
    made = [rec for rec in records if (rec.kind, rec.key) in (("alloc", 0x90CD), ("alloc", 0x90CE))]
    assert [rec.status for rec in made] == [0] * 20
    assert all(rec.ret == 0 for rec in made)
