"""What a hostile reading of gVisor's handlers found missing once, and what only a driver that contradicts itself shows."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from typing import Any

from nvproxy_model import Buffer, File, Files, MemoryFault, Policy, Session
from nvproxy_model.session.objects import Graph
from nvproxy_model.structs.nvos import NVOS32_PARAMETERS
from nvproxy_model.testing import Memory

CLIENT, ARG, PARAMS = 0xC1D00001, 0x1000, 0x2000


class Host:
    """Notes requests and answers as it is told."""

    def __init__(self, answer: Callable[[Buffer], None] = lambda arg: None) -> None:
        self.requests: list[int] = []
        self.answer = answer

    def ioctl(self, host_fd: int, request: int, arg: Buffer | None) -> int:
        self.requests.append(request)
        if arg is not None:
            self.answer(arg)
        return 0


def _session(host: Host, caps: str = "all,profiling,rdma") -> Session:
    files = Files({3: File("frontend", 1 << 20), 6: File("dma-buf", (1 << 20) + 6)})
    session = Session(Policy.for_driver("580.126.20", caps), Memory(0, 0x10000), files, host)
    session.graph.add_client(CLIENT, 0x41, files[3])
    return session


def _vid_heap(root: int, address: int = 0) -> bytes:
    fields: Any = NVOS32_PARAMETERS.parse(bytes(NVOS32_PARAMETERS.sizeof()))
    raw = bytearray(NVOS32_PARAMETERS.build({**fields, "hRoot": root, "function": 2}))
    at = next(offset for path, offset, _ in NVOS32_PARAMETERS.walk() if path == "data.AllocSize.address")
    raw[at : at + 8] = address.to_bytes(8, "little")
    return bytes(raw)


def test_a_heap_call_needs_its_client() -> None:
    for root, status, calls in ((0xDEAD, 0x23, 0), (CLIENT, 0, 1)):
        host = Host()
        session = _session(host)
        session.memory.write(ARG, _vid_heap(root))
        assert session.ioctl(3, 0xC0B8464A, ARG).errno == 0
        at = NVOS32_PARAMETERS.field("status").offset
        assert struct.unpack("<I", session.memory.read(ARG + at, 4)) == (status,)
        assert len(host.requests) == calls


def test_a_fault_comes_before_an_unknown_client() -> None:
    host = Host()
    session = _session(host)
    session.memory.write(ARG, _vid_heap(0xDEAD, address=1 << 40))
    assert (session.ioctl(3, 0xC0B8464A, ARG).errno, host.requests) == (errno.EFAULT, [])


def test_the_host_never_sees_the_guests_type_and_direction() -> None:
    calls = {0x2A: (32, 0xC020462A), 0x2B: (48, 0xC030462B), 0xD6: (8, 0xC00846D6), 0xC8: (72, 0xC04846C8)}
    for number, (size, seen) in calls.items():
        host = Host()
        session = _session(host)
        if number == 0x2A:
            session.memory.write(ARG, struct.pack("<IIIIQII", CLIENT, 1, 0x20800301, 0, PARAMS, 8, 0))
        assert session.ioctl(3, 0x40005800 | size << 16 | number, ARG).errno == 0
        assert host.requests == [seen]


def test_an_appended_dma_buf_keeps_the_guests_fd() -> None:
    def lose(arg: Buffer) -> None:
        arg.data[:4] = b"\xff\xff\xff\xff"

    session = _session(Host(lose))
    session.memory.write(ARG, struct.pack("<i", 6) + bytes(2604))
    assert session.ioctl(3, 0xCA3046D9, ARG).errno == 0
    assert session.memory.read(ARG, 4) == struct.pack("<i", 6)


def test_an_unreadable_refusal() -> None:
    """gVisor swallows the fault when it refuses a class, not when it refuses a client."""
    for root, hclass, error in ((CLIENT, 0xDEAD, 0), (0xDEAD, 0x80, errno.EFAULT)):
        session = _session(Host())
        session.memory.write(ARG, struct.pack("<IIII", root, root, 7, hclass) + bytes(32))

        def fail(address: int, data: bytes) -> None:
            raise MemoryFault(hex(address))

        session.memory.write = fail  # type: ignore[method-assign, assignment]
        assert session.ioctl(3, 0xC030462B, ARG)[:2] == (-1 if error else 0, error)


def _live(graph: Graph) -> list[tuple[int, int]]:
    return sorted((obj.client, obj.handle) for obj in graph)


def test_a_handle_given_out_twice_goes_with_whoever_had_it_first() -> None:
    graph = Graph()
    graph.add_client(1, 0x41, "file")
    graph.add(1, 10, 0x80, 1)
    graph.add(1, 11, 0x80, 1)
    graph.add(1, 12, 0x2080, 10)
    graph.add(1, 12, 0x2080, 11)
    graph.free(1, 10)
    assert _live(graph) == [(1, 1), (1, 11)]


def _two_clients(parent: int) -> Graph:
    """Client 1 has an address space and a group that depends on it; client 2 a duplicate of the group."""
    graph = Graph()
    graph.add_client(1, 0x41, "one")
    graph.add_client(2, 0x41, "two")
    graph.add(1, 10, 0x90F1, parent)
    graph.add(1, 11, 0xA06C, 1, [10])
    graph.dup(2, 20, 2, 1, 11)
    return graph


def test_a_client_given_out_twice_frees_nothing_until_its_file_is_closed() -> None:
    graph = _two_clients(1)
    graph.add_client(1, 0x41, "three")
    assert _live(graph) == [(1, 1), (2, 2), (2, 20)]
    graph.close("one")
    assert (2, 20) not in _live(graph)


def test_an_orphan_vanishes_with_its_client_alone() -> None:
    graph = _two_clients(0x7777)
    assert (1, 10) in [(gone.client, gone.handle) for gone in graph.free(1, 1)]  # what it pinned may go
    assert _live(graph) == [(2, 2), (2, 20)]
    graph = _two_clients(1)
    graph.free(1, 1)
    assert _live(graph) == [(2, 2)]
