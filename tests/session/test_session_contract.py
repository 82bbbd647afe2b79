"""What a session promises an embedder, and what it asks of one: hosts held to their contract, bounds on what a guest can grow."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from typing import Any

import pytest

from nvproxy_model import Buffer, File, Files, HostError, Policy, Session, Why
from nvproxy_model.session import events
from nvproxy_model.session.objects import Graph, State
from nvproxy_model.session.ports import MapContext
from nvproxy_model.structs.cl90cd import NV_EVENT_BUFFER_ALLOC_PARAMETERS
from nvproxy_model.structs.nvos import NV_MEMORY_ALLOCATION_PARAMS
from tests.session.paged import PAGE
from tests.session.session_world import World
from tests.session.test_session_after import CLIENT, CTL, DATA, Guest, nvos54, nvos64, os_descriptor

FD_EVENT = 0xCE


def _grow_inner(arg: Buffer) -> None:
    for behind in arg.pointers.values():
        if isinstance(behind, Buffer):
            behind.data.append(0)


RUDE: list[tuple[Callable[[Buffer], Any], str]] = [
    (lambda arg: arg.data.append(0), "changed a buffer of .* bytes to bytearray of"),
    (lambda arg: arg.data.pop(), "changed a buffer"),
    (lambda arg: arg.data.clear(), "changed a buffer"),
    (lambda arg: setattr(arg, "data", bytes(arg.data)), "to bytes of"),
    (_grow_inner, "changed a buffer"),
    (lambda arg: None, "returned None"),
    (lambda arg: -5, "returned -5"),
    (lambda arg: "EIO", "returned 'EIO'"),
]


def _raise(arg: Buffer) -> None:
    raise OSError(errno.EIO, "no")


CALLS = {
    "fast control": (0x2A, nvos54(0x20800301, 8)),
    "typed control": (0x2A, nvos54(0x0101, 40)),
    "alloc": (0x2B, nvos64(0x80, params=0x11000, new=0x77)),
    "escape": (0xC8, bytes(72)),
    "os descriptor": (0x27, os_descriptor()),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(("rude", "message"), [*RUDE, (_raise, "raised OSError")])
def test_a_host_outside_its_contract(name: str, rude: Callable[[Buffer], Any], message: str) -> None:
    """A clear error at the boundary, and nothing in guest memory; the next call works."""
    guest = Guest()
    guest.memory.map(DATA, PAGE)
    nr, argument = CALLS[name]
    if rude is _grow_inner and name in ("escape", "os descriptor"):
        pytest.skip("nothing lies behind its argument but pages")
    guest.memory.write(ARG := 0x10000, argument)
    before = {page: bytes(data) for page, data in guest.memory.pages.items()}
    calls = []

    class Rude:
        def ioctl(self, host_fd: int, request: int, arg: Buffer | None) -> int:
            calls.append(request)
            answer = rude(arg)  # type: ignore[arg-type]
            return answer if message.startswith("returned") else 0

    guest.session.host = Rude()
    with pytest.raises(HostError, match=message):
        guest.session.ioctl(CTL, 0xC0004600 | len(argument) << 16 | nr, ARG)
    assert len(calls) == 1
    assert {page: bytes(data) for page, data in guest.memory.pages.items()} == before
    guest.session.host = guest
    result, _ = guest.call(0x2A, nvos54(0x20800301, 8))
    assert (result.errno, result.unpin) == (0, ((DATA, PAGE),) if name == "os descriptor" else ())


def test_a_host_may_put_another_array_in_place() -> None:
    """Rebinding ``data`` to a bytearray of the same length is an answer like any other."""
    for nr, argument in (CALLS["fast control"], CALLS["escape"]):
        guest = Guest()

        def answer(arg: Buffer) -> None:
            arg.data = bytearray(len(arg.data) - 4) + b"\x57\0\0\0"

        result, out = guest.call(nr, argument, answer)
        assert result.errno == 0
        assert out[-4:] == b"\x57\0\0\0"


# -- OS events of hardened sessions


def _registered(world: World) -> int:
    assert world.session.events is not None
    return len(world.session.events)


def test_os_events_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_OS_EVENTS", 8)
    world = World(profile="hardened")
    fd = world.open()
    for client in range(1, 9):
        assert world.os_event(fd, client, fd)[1] == 0
    calls = world.host.calls
    result, status = world.os_event(fd, 9, fd)
    assert (result.errno, status, world.host.calls) == (0, 0x1A, calls)
    assert result.decision is not None
    assert result.decision.why is Why.HARDENED
    assert "OS events = 0x8: want fewer than 0x8" in result.decision.reason
    world.os_event(fd, 3, fd)  # registered already: the driver's to refuse
    assert world.host.calls == calls + 1
    assert world.os_event(fd, 3, fd, free=True)[1] == 0
    assert world.os_event(fd, 9, fd)[1] == 0
    assert _registered(world) == 8
    world.close(fd)
    assert _registered(world) == 0


def test_the_bound_on_os_events() -> None:
    assert events.MAX_OS_EVENTS == 16384
    found = events.Events()
    for client in range(events.MAX_OS_EVENTS):
        found.register(client, client % 7)
        found.register(client, client % 7)
    assert len(found) == events.MAX_OS_EVENTS
    for fd in range(6):
        found.closed(fd)
    assert len(found) == events.MAX_OS_EVENTS // 7
    found.unregister(1, 6)
    found.unregister(6, 6)
    found.unregister(6, 6)
    assert len(found) == events.MAX_OS_EVENTS // 7 - 1


def test_the_default_profile_remembers_no_events() -> None:
    world = World()
    fd = world.open()
    assert world.os_event(fd, 1, fd)[1] == 0
    assert world.session.events is None


# -- duplicates and invalidated objects


def _edges(graph: Graph) -> int:
    nodes, stack = set(), [node for obj in graph for node in (obj, *obj.needs)]
    while stack:
        node = stack.pop()
        if node not in nodes:
            nodes.add(node)
            stack += node.needs
    return sum(len(node.needs) + len(node.needed_by) for node in nodes)


@pytest.mark.parametrize("count", [50, 100, 200])
def test_duplicates_share_their_dependencies(count: int) -> None:
    """n duplicates of an object with n dependencies are of the order of n edges, and mean what n * n meant."""
    graph = Graph()
    graph.add_client(1, 0x41, None)
    graph.add_client(2, 0x41, None)
    graph.add(1, 9, 0x503C, 1)
    for handle in range(100, 100 + count):
        graph.add(1, handle, 0x90F1, 1)
        graph.depend(1, 9, handle)
    for handle in range(1000, 1000 + count):
        assert graph.dup(2, handle, 2, 1, 9) is not None
    assert _edges(graph) <= 12 * count
    copy = graph.get(2, 1000)
    original = graph.get(1, 9)
    assert copy is not None
    assert original is not None
    assert {dep.handle for dep in copy.deps} == {2, *range(100, 100 + count)}
    assert {dep.handle for dep in original.deps} == {1, *range(100, 100 + count)}
    first = graph.get(1, 100)
    assert first is not None
    assert {(obj.client, obj.handle) for obj in first.rdeps} == {(1, 9)} | {(2, h) for h in range(1000, 1000 + count)}
    gone = graph.free(1, 100)
    assert len(gone) == count + 2
    assert gone[-1] is first
    assert {obj.handle for obj in graph} == {1, 2, *range(101, 100 + count)}
    assert all(not obj.rdeps for obj in graph if obj.hclass == 0x90F1)


def test_a_later_dependency_is_its_objects_own() -> None:
    graph = Graph()
    graph.add_client(1, 0x41, None)
    for handle in (5, 6):
        graph.add(1, handle, 0x90F1, 1)
    graph.add(1, 9, 0x503C, 1, [5])
    graph.dup(1, 10, 1, 1, 9)
    graph.depend(1, 9, 6)
    graph.dup(1, 11, 1, 1, 9)
    graph.dup(1, 12, 1, 1, 10)
    graph.free(1, 6)
    assert [obj.handle for obj in graph] == [1, 5, 10, 12]
    graph.free(1, 5)
    assert [obj.handle for obj in graph] == [1]


def test_shared_dependencies_end_with_the_last_that_needs_them() -> None:
    graph = Graph()
    graph.add_client(1, 0x41, None)
    graph.add(1, 5, 0x90F1, 1)
    graph.add(1, 9, 0x503C, 1, [5])
    graph.dup(1, 10, 1, 1, 9)
    graph.depend(1, 10, 5)
    graph.dup(1, 11, 1, 1, 10)
    for handle in (9, 10, 11):
        space = graph.get(1, 5)
        assert space is not None
        assert handle in {obj.handle for obj in space.rdeps}
        graph.free(1, handle)
    assert space is not None
    assert not space.needed_by


def test_what_is_not_below_is_invalidated() -> None:
    """rs_server.c: what depends on the freed object without being below it keeps its handle taken."""
    graph = Graph()
    graph.add_client(1, 0x41, "file")
    graph.add(1, 2, 0x90CE, 1)
    graph.add(1, 3, 0x90CE, 1)
    graph.add(1, 4, 0x90CD, 1, [2, 3])
    graph.add(1, 5, 0x5, 4)
    graph.add(1, 6, 0x5, 2)
    assert {obj.handle for obj in graph.free(1, 2)} == {2, 4, 5, 6}
    states = {handle: graph.state(1, handle) for handle in range(1, 8)}
    assert states == {
        1: State.LIVE,
        2: State.FREE,
        3: State.LIVE,
        4: State.INVALIDATED,
        5: State.INVALIDATED,
        6: State.FREE,
        7: State.FREE,
    }
    assert list(graph.invalidated()) == [(1, 4), (1, 5)]
    assert graph.get(1, 4) is None
    assert graph.free(1, 4) == []
    assert graph.state(1, 4) is State.FREE
    graph.add(1, 5, 0x80, 1)
    assert (graph.state(1, 5), list(graph.invalidated())) == (State.LIVE, [])
    graph.free(1, 1)
    assert graph.state(1, 3) is State.FREE
    assert graph.free(1, 3) == []


def test_a_client_takes_its_invalidated_handles_along() -> None:
    graph = Graph()
    graph.add_client(1, 0x41, "file")
    graph.add_client(2, 0x41, "file")
    graph.add(1, 2, 0x90CE, 1)
    graph.add(1, 4, 0x90CD, 1, [2])
    graph.dup(2, 7, 2, 1, 4)
    graph.free(1, 2)
    assert list(graph.invalidated()) == [(1, 4), (2, 7)]
    graph.free(2, 2)
    assert list(graph.invalidated()) == [(1, 4)]
    graph.close("file")
    assert list(graph.invalidated()) == []
    assert len(graph) == 0


def test_the_driver_agrees_about_invalidated_handles() -> None:
    """The fake driver's own list: a control is RESOURCE_LOST, an allocation of the handle fails, freeing it is NV_OK."""
    world = World()
    fd = world.open()
    _, _, client = world.alloc(fd, 0, 0, 0, 0x41)
    params = NV_MEMORY_ALLOCATION_PARAMS.at(world.policy.version).make(size=0x1000, attr2=0x400000)
    for handle in (0x20, 0x21):
        assert world.alloc(fd, client, client, handle, 0x90CE, params)[1] == 0
    buffer = NV_EVENT_BUFFER_ALLOC_PARAMETERS.make(recordSize=32, recordCount=4, hBufferHeader=0x20, hRecordBuffer=0x21)
    assert world.alloc(fd, client, client, 0x30, 0x90CD, buffer)[1] == 0
    assert world.free(fd, client, 0x21)[1] == 0
    graph = world.session.graph
    assert graph.state(client, 0x30) is State.INVALIDATED
    assert world.control(fd, client, 0x30, 0x90CD0104)[1] == 0x6E
    assert world.alloc(fd, client, client, 0x30, 0x90CE, params)[1] == 0x19
    assert graph.state(client, 0x30) is State.INVALIDATED
    assert world.free(fd, client, 0x30)[1] == 0
    assert graph.state(client, 0x30) is State.FREE
    assert world.control(fd, client, 0x30, 0x90CD0104)[1] == 0x57
    assert world.alloc(fd, client, client, 0x30, 0x90CE, params)[1] == 0
    assert graph.state(client, 0x30) is State.LIVE


def test_a_thousand_frees_leave_nothing() -> None:
    graph = Graph()
    graph.add_client(1, 0x41, None)
    blocks = []
    for _ in range(3):
        for _ in range(1000):
            graph.add(1, 2, 0x90CE, 1)
            graph.add(1, 4, 0x90CD, 1, [2])
            graph.dup(1, 5, 1, 1, 4)
            graph.free(1, 2)
            for handle in (4, 5):
                graph.free(1, handle)
        assert list(graph.invalidated()) == []
        blocks.append(sys.getallocatedblocks())
    assert blocks[2] - blocks[1] < 100


# -- the calls themselves


def test_a_session_takes_the_arguments_as_the_kernel_does() -> None:
    """int fd, unsigned int request: what stands in the upper halves of the registers is not looked at."""
    policy = Policy.for_driver("580.159.04")
    guest = Guest()
    session = Session(policy, guest.memory, Files({CTL: File("frontend", 77), 9: File("other", 78)}), guest)
    guest.memory.write(0x10000, nvos54(0x20800301, 8))
    for fd, request in (
        (CTL, 0xC020462A),
        (CTL + (1 << 32), 0xC020462A + (1 << 32)),
        (CTL - (1 << 32), -(1 << 33) | 0xC020462A),
    ):
        assert session.ioctl(fd, request, 0x10000).errno == 0
    assert session.ioctl(8, 0xC020462A, 0x10000).errno == errno.EBADF
    assert session.ioctl(-1, 0xC020462A, 0x10000).errno == errno.EBADF
    assert session.ioctl(9, 0xC020462A, 0x10000).errno == errno.ENOTTY
    assert session.close(8)[:2] == (-1, errno.EBADF)
    assert session.mmap(8, 4096)[:2] == (-1, errno.EBADF)
    assert session.mmap(9, 4096)[:2] == (-1, errno.EINVAL)
    assert session.mmap(CTL, 4096)[:2] == (-1, errno.EINVAL)
    files = session.fds
    assert isinstance(files, Files)
    files[CTL].mapping = MapContext(0x1800, "uncached")
    for length, offset in ((0x2001, 0), (0x1000, 0x1001), (0, 0), (0x1000, -1), (-1, 0)):
        assert session.mmap(CTL, length, offset)[:2] == (-1, errno.EINVAL)
    for length, offset in ((0x2000, 0), (0x1000, 0x1000), (1, 0x1FFF)):
        assert session.mmap(CTL, length, offset)[:2] == (0, 0)


@pytest.mark.parametrize(("size", "answer"), [(31, errno.EINVAL), (33, errno.EINVAL), (0, errno.EINVAL), (32, 0)])
def test_the_size_of_a_control(size: int, answer: int) -> None:
    guest = Guest()
    guest.memory.write(0x10000, nvos54(0x20800301, 8))
    result = guest.session.ioctl(CTL, 0xC000462A | size << 16, 0x10000)
    assert (result.errno, len(guest.calls)) == (answer, not answer)
    if answer:
        assert result.decision is not None
        assert f"NVOS54_PARAMETERS: want 32 bytes, found {size} bytes" in result.decision.reason


@pytest.mark.parametrize(("size", "answer"), [(31, 22), (33, 22), (47, 22), (49, 22), (32, 0), (48, 0)])
def test_the_sizes_of_an_allocation(size: int, answer: int) -> None:
    guest = Guest()
    guest.memory.write(0x10000, nvos64(0x900E))
    result = guest.session.ioctl(CTL, 0xC000462B | size << 16, 0x10000)
    assert (result.errno, len(guest.calls)) == (answer, not answer)


def test_a_short_allocation_in_both_ways() -> None:
    """The driver is given the 48-byte form, and the guest finds the 32-byte one with the answer in it."""
    guest = Guest()
    argument = CLIENT.to_bytes(4, "little") * 2 + (0).to_bytes(4, "little") + (0x900E).to_bytes(4, "little")
    argument += bytes(8) + b"\x0b\0\0\0" + bytes(4)

    def answer(arg: Buffer) -> None:
        assert arg.data == argument[:24] + bytes(8) + b"\x0b\0\0\0" + bytes(12)
        arg.data[8:12] = b"\x44\0\0\0"
        arg.data[40:44] = b"\0\0\0\0"
        arg.data[36:40] = b"\xff\xff\xff\xff"

    _, out = guest.call(0x2B, argument, answer)
    assert out == argument[:8] + b"\x44\0\0\0" + argument[12:]
    _, out = guest.call(0x2B, argument, lambda arg: arg.data.__setitem__(slice(40, 44), b"\x57\0\0\0"))
    assert out == argument[:28] + b"\x57\0\0\0"


@pytest.mark.parametrize(("handle", "on"), [(9, 0xBAD), (0xBAD, 5), (0xBAD, 0xBAD), (0, 5), (9, 0)])
def test_a_dependency_on_what_is_not_there(handle: int, on: int) -> None:
    graph = Graph()
    graph.add_client(1, 0x41, None)
    graph.add(1, 5, 0x90F1, 1)
    graph.add(1, 9, 0x503C, 1)
    graph.depend(1, handle, on)
    graph.depend(2, handle, on)
    assert [str(obj) for obj in graph] == [
        "0x1:0x1 class=0x41 parent=0x0 deps=[]",
        "0x1:0x5 class=0x90f1 parent=0x1 deps=[0x1:0x1]",
        "0x1:0x9 class=0x503c parent=0x1 deps=[0x1:0x1]",
    ]


def test_a_graph_ignores_what_names_nothing() -> None:
    graph = Graph()
    assert graph.add(1, 9, 0x80, 0) is None
    graph.add_client(1, 0x41, "one")
    assert graph.add(1, 0, 0x80, 1) is None
    assert graph.dup(1, 9, 1, 1, 0xBAD) is None
    assert graph.dup(2, 9, 1, 1, 1) is None
    assert (len(graph), graph.free(2, 9), graph.close("two")) == (1, [], [])
    assert graph.state(2, 1) is State.FREE
    assert graph.add_client(0, 0x41, "zero").handle == 0
    assert (len(graph), graph.has_client(0)) == (1, True)


def test_events_of_one_descriptor_and_of_one_client() -> None:
    found = events.Events()
    for client, fd in ((1, 7), (1, 8), (2, 7)):
        found.register(client, fd)
    found.closed(7)
    assert len(found) == 1
    found.unregister(1, 7)
    found.unregister(3, 8)
    assert len(found) == 1
    graph = Graph()
    root = graph.add_client(1, 0x41, None)
    child = graph.add(1, 5, 0x80, 1)
    assert child is not None
    found.freed(child)
    assert len(found) == 1
    found.freed(root)
    assert len(found) == 0
    # What is over takes no room: a guest can register and unregister for ever.
    assert not found._of_client
    assert not found._of_fd


def test_a_buffer_and_files_are_readable() -> None:
    inner = Buffer(bytearray(b"\x01\x02"))
    assert repr(Buffer(bytearray(2), {0: inner})) == "Buffer(0000, {0: Buffer(0102, {})})"
    files = Files()
    one, two = File("uvm", 7), File("other", 8)
    assert (files.install(one), files.install(two)) == (0, 1)
    assert files.remove(0) is one
    assert files.remove(0) is None
    assert files.remove(5) is None
    assert files.install(one) == 0
    assert files.install(File("other", 9)) == 2
    assert (one.references, one.mapping, one.control_device) == (1, None, True)


def test_the_hardened_profile_looks_at_event_buffers_alone() -> None:
    """Parameters of another class are not read as theirs, however short or long they are."""
    for hclass, size in ((0x80, 56), (0x2080, 4), (0x90CE, 128), (0x90F1, 48)):
        guest = Guest(profile="hardened")
        guest.memory.write(0x11000, bytes(size))
        result, _ = guest.call(0x2B, nvos64(hclass, params=0x11000))
        assert result.decision is not None
        assert (result.decision.why, len(guest.calls)) == (Why.RULE, 1), hex(hclass)


def test_a_video_bind_of_a_buffer_that_is_not_known() -> None:
    world = World(profile="hardened")
    fd = world.open()
    _, _, client = world.alloc(fd, 0, 0, 0, 0x41)
    for handle in (0x77, client):
        params = handle.to_bytes(4, "little") + bytes(16)
        result, status = world.control(fd, client, client, 0x20800309, params)
        assert status == 0x1F
        assert result.decision is not None
        assert result.decision.facts is not None
        assert (result.decision.why, result.decision.facts.value) == (Why.HARDENED, 0)


def test_a_buffer_that_is_freed_is_forgotten() -> None:
    world = World(profile="hardened")
    fd = world.open()
    assert world.session.events is not None
    _, _, client = world.alloc(fd, 0, 0, 0, 0x41)
    _, _, device = world.alloc(fd, client, client, 0x10, 0x80)
    assert world.alloc(fd, client, device, 0x11, 0x2080, bytes(4))[1] == 0
    memory = NV_MEMORY_ALLOCATION_PARAMS.at(world.policy.version).make(size=0x1000, attr2=0x400000)
    for handle in (0x20, 0x21):
        assert world.alloc(fd, client, client, handle, 0x90CE, memory)[1] == 0
    fields = {"recordSize": 0x30, "recordCount": 4, "hBufferHeader": 0x20, "hRecordBuffer": 0x21, "hSubDevice": 0x11}
    for _ in range(3):
        assert world.alloc(fd, client, client, 0x30, 0x90CD, NV_EVENT_BUFFER_ALLOC_PARAMETERS.make(**fields))[1] == 0
        assert len(world.session.events._record_size) == 1
        assert world.free(fd, client, 0x30)[1] == 0
        assert len(world.session.events._record_size) == 0
