"""What threads may share and what they may not. Races are made likely, or are made: no test depends on one."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from nvproxy_model import Decision, File, Files, Policy, Session, versions
from nvproxy_model.fields import CStruct, NvU32, NvU64, since
from nvproxy_model.structs.nv_unix_nvos_params_wrappers import nv_ioctl_nvos02_parameters_with_fd
from nvproxy_model.testing import FakeDriver, Memory

THREADS = 8
CAPS = "all,profiling,rdma"
FDS = {7: File("frontend", host_fd=1042)}
Answer = TypeVar("Answer")


@pytest.fixture(autouse=True)
def _switching() -> Iterator[None]:
    """Threads change places as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(ask: Callable[[int], Answer]) -> list[Answer]:
    """What each thread gets when all ask at the same moment."""
    barrier = threading.Barrier(THREADS, timeout=60)

    def start(index: int) -> Answer:
        barrier.wait()
        return ask(index)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(start, range(THREADS)))


def test_a_release_is_one_object_whoever_asks_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "_LOADED", {})
    trees = at_once(lambda _: versions.load())
    assert all(tree is versions.load() for tree in trees)


def test_a_layout_is_one_object_whoever_asks_first() -> None:
    tree = versions.load()
    for _ in range(40):
        inner = CStruct("INNER", "a" / NvU32, since("570.86.15", "b" / NvU32))
        outer = CStruct("OUTER", "head" / inner, since("580.65.06", "tail" / NvU64))
        found = at_once(lambda _, outer=outer: [id(outer.at(node)) for node in tree.values()])  # type: ignore[misc]
        assert all(ids == found[0] for ids in found)
        assert len(set(found[0])) == len({outer.at(node).layout() for node in tree.values()}) == 3


def _answers(policy: Policy, start: int) -> dict[tuple[str, int], Decision]:
    """Every number's answer, and some that no rule has, from a place of its own in the tables."""
    numbers = [(table, number) for table, rows in policy.rules.items() for number in [*rows, *range(0x7000, 0x7040)]]
    found = {}
    for table, number in numbers[start:] + numbers[:start]:
        entry = policy.entry(table, number)
        found[table, number] = entry.decision if entry.decide is None else entry.decide(bytes(8), FDS)
    return found


def test_threads_share_a_policy() -> None:
    """From the first call on, while its tables are still being filled."""
    for caps in ("utility", CAPS):
        alone = _answers(Policy.for_driver("580.126.20", caps), 0)
        shared = Policy.for_driver("580.126.20", caps)
        assert all(found == alone for found in at_once(lambda index, shared=shared: _answers(shared, index * 40)))  # type: ignore[misc]


class Paused(Memory):
    """Guest memory in which the first write waits, as a thread does that the interpreter has put aside."""

    def __init__(self) -> None:
        super().__init__(0, 0x8000)
        self.arrived, self.go_on = threading.Event(), threading.Event()
        self.pause = False

    def write(self, address: int, data: bytes) -> None:
        if self.pause:
            self.pause = False
            self.arrived.set()
            assert self.go_on.wait(60)
        super().write(address, data)


@pytest.mark.parametrize("locked", [False, True])
def test_a_session_takes_one_call_at_a_time(locked: bool) -> None:
    """Two at once mix their results: the pages of one are named by the other. With the embedder's lock they do not."""
    memory = Paused()
    session = Session(Policy.for_driver("580.126.20", CAPS), memory, Files(FDS), FakeDriver("580.126.20"))
    pinned = nv_ioctl_nvos02_parameters_with_fd.make(
        params={"hRoot": 5, "hClass": 0x71, "pMemory": 0x4000, "limit": 0xFFF}, fd=-1
    )
    memory.write(0x100, pinned)
    memory.pause = True
    lock = threading.Lock()

    def call(request: int) -> tuple[tuple[int, int], ...]:
        if not locked:
            return session.ioctl(7, request, 0x100).unpin
        with lock:
            return session.ioctl(7, request, 0x100).unpin

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(call, 0xC0004627 | len(pinned) << 16)  # an unknown client: the pages are let go again
        assert memory.arrived.wait(60)
        two = pool.submit(call, 0xC00446FF)  # no such escape
        if not locked:
            two.result(60)
        memory.go_on.set()
        pages = ((0x4000, 0x1000),)
        assert (one.result(60), two.result(60)) == ((pages, ()) if locked else ((), pages))
