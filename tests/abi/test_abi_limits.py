"""Counts and pointers at their edges, through a policy: what each list control admits, copies and refuses."""

from __future__ import annotations

import errno
import struct
from typing import Any, NamedTuple

import pytest

from nvproxy_model import Policy, versions
from nvproxy_model.fields import CStruct
from nvproxy_model.policy.interpret import interpret

POLICY = Policy.for_driver("580.126.20", caps="compute,utility,graphics,video,profiling")
OLDEST = Policy.for_driver("535.129.03", caps="compute,utility")
TREE = versions.load()
ARGUMENT = 0x1F
MIB = 1 << 20
A, B = 0x7000_0000_1000, 0x7000_0000_2000


class Edge(NamedTuple):
    """``answer`` is the sizes of the copies, or the refusal: an NV status, or a negative errno."""

    number: int
    params: bytes
    answer: Any
    policy: Policy = POLICY


def counted(number: int, count: int, pointer: int, answer: Any, tail: int = 0) -> Edge:
    return Edge(number, struct.pack("<I4xQ", count, pointer) + bytes(tail), answer)


def p2p(count: int, first: int, second: int | None, answer: Any) -> Edge:
    params = bytearray(168 if second is None else 176)
    struct.pack_into("<I", params, 128, count)
    struct.pack_into("<Q", params, 160, first)
    if second is not None:
        struct.pack_into("<Q", params, 168, second)
    return Edge(0x127, bytes(params), answer, OLDEST if second is None else POLICY)


def info_lists() -> list[Edge]:
    """gVisor, ctrlIoctlHasInfoList: 8 bytes an element; none at all is shown to the driver as NULL."""
    edges = []
    for number, tail in (
        (0x410110, 0),
        (0x801104, 0),
        (0x20800802, 0),
        (0x20801201, 16),
        (0x20801301, 0),
        (0x20801802, 0),
    ):
        edges += [counted(number, count, A, [8 * count], tail) for count in (1, MIB // 8)]
        edges += [counted(number, count, A, ARGUMENT, tail) for count in (MIB // 8 + 1, 1 << 29, 0xFFFFFFFF)]
        edges += [counted(number, 0, A, [], tail), counted(number, 1, 0, [8], tail)]
    return edges


def u32_lists() -> list[Edge]:
    """gVisor, ctrlGetNvU32List: with NULL the count is not judged."""
    edges = []
    for number in (0x800201, 0x20800123):
        edges += [counted(number, count, A, [4 * count]) for count in (1, MIB // 4)]
        edges += [counted(number, count, A, ARGUMENT) for count in (0, MIB // 4 + 1, 1 << 30, 0xFFFFFFFF)]
        edges += [counted(number, count, 0, []) for count in (0, 7, 0xFFFFFFFF)]
    return edges


def caps_tables() -> list[Edge]:
    """gVisor, ctrlDevGetCaps: the pointer is not looked at before the copy-out."""
    edges = []
    for number in (0x801102, 0x801301, 0x801701, 0x801B01):
        edges += [counted(number, count, pointer, [count]) for count in (1, MIB) for pointer in (A, 0)]
        edges += [counted(number, count, A, ARGUMENT) for count in (0, MIB + 1, 0xFFFFFFFF)]
    return edges


def channel_lists() -> list[Edge]:
    """gVisor, ctrlDevFIFOGetChannelList: an errno, and two arrays of one length."""
    good = [Edge(0x80170D, struct.pack("<I4xQQ", n, A, B), [4 * n, 4 * n]) for n in (1, MIB // 4)]
    return good + [Edge(0x80170D, struct.pack("<I4xQQ", n, A, B), -errno.EINVAL) for n in (0, MIB // 4 + 1, 1 << 30)]


def peer_ids() -> list[Edge]:
    """The number of elements is a square: 65536 and 2**31 wrap in 32 and in 64 bits (field reports of 2026)."""
    bad = (0, 513, 65536, 1 << 31, 0xFFFFFFFF)
    return [
        *(p2p(count, A, None, [4 * count * count]) for count in (1, 512)),
        *(p2p(count, A, None, ARGUMENT) for count in bad),
        *(p2p(count, 0, None, []) for count in bad),
        *(p2p(count, A, B, [4 * count * count] * 2) for count in (1, 512)),
        *(p2p(count, first, second, ARGUMENT) for count in bad for first, second in ((A, B), (A, 0), (0, B))),
        *(p2p(count, 0, 0, []) for count in bad),
        p2p(2, 0, B, [16]),
        p2p(2, A, 0, [16]),
    ]


def register_operations() -> list[Edge]:
    """gVisor, ctrlGpuExecRegOps: 32 bytes each."""

    def edge(count: int, pointer: int, answer: Any) -> Edge:
        return Edge(0x20800122, struct.pack("<20xIQ16x", count, pointer), answer)

    return [
        *(edge(count, A, [32 * count]) for count in (1, MIB // 32)),
        *(edge(count, A, ARGUMENT) for count in (0, MIB // 32 + 1, 1 << 27, 0xFFFFFFFF)),
        *(edge(count, 0, []) for count in (0, 0xFFFFFFFF)),
    ]


def debugger_reads() -> list[Edge]:
    """gVisor, ctrlDebugReadMemory: more than the 1 MiB of other parameters, and a bound that holds for NULL as well."""

    def edge(length: int, pointer: int, answer: Any) -> Edge:
        return Edge(0x83DE0315, struct.pack("<IIQQ", 1, length, 0, pointer), answer)

    return [
        *(edge(length, A, [length]) for length in (1, 2 * MIB, 1 << 30)),
        *(edge(length, pointer, ARGUMENT) for length in ((1 << 30) + 1, 0xFFFFFFFF) for pointer in (A, 0)),
        *(edge(length, 0, []) for length in (0, 1, 1 << 30)),
        edge(0, A, []),
    ]


def other_pointers() -> list[Edge]:
    disable, named = bytearray(536), bytearray(40)
    struct.pack_into("<Q", disable, 16, A)
    struct.pack_into("<Q", named, 16, A)
    return [
        Edge(0x2080110B, bytes(536), []),
        Edge(0x2080110B, bytes(disable), -errno.EINVAL),
        Edge(0x202, bytes(named), []),
    ]


EDGES = [
    *info_lists(), *u32_lists(), *caps_tables(), *channel_lists(), *peer_ids(), *register_operations(), *debugger_reads(),
    *other_pointers(),
]  # fmt: skip


@pytest.mark.parametrize("edge", EDGES, ids=lambda edge: f"{edge.number:x}-{edge.params.hex()[:48]}")
def test_an_edge(edge: Edge) -> None:
    decision = edge.policy.decide_control(edge.number, edge.params, {})
    if isinstance(edge.answer, list):
        assert decision.allowed, decision.reason
        assert [copy.size for copy in decision.copies] == edge.answer
        # Every address of the guest's is gone from what the host is given.
        assert A.to_bytes(8, "little") not in (decision.params or b"")
        assert B.to_bytes(8, "little") not in (decision.params or b"")
    else:
        assert not decision.allowed
        assert (decision.status if decision.status is not None else -decision.errno) == edge.answer, decision.reason
        assert decision.params is None
    record = edge.policy.control[edge.number].params
    assert isinstance(record, CStruct)
    assert interpret(decision.call, record.at(TREE[decision.version]), edge.params, {}) == decision


@pytest.mark.parametrize("number", sorted({edge.number for edge in EDGES}))
@pytest.mark.parametrize("wrong", [-1, 1])
def test_a_wrong_size_is_an_errno(number: int, wrong: int) -> None:
    params = next(edge.params for edge in EDGES if edge.number == number and edge.policy is POLICY)
    decision = POLICY.decide_control(number, bytes(len(params) + wrong), {})
    assert (decision.allowed, decision.errno, decision.status) == (False, errno.EINVAL, None)
