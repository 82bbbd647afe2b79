"""Structs made up for the purpose: what a plan finds in them, and what is decided on bytes written by hand."""

from __future__ import annotations

import errno
import struct
from typing import Any

import pytest

from nvproxy_model import DefinitionError, File, Verdict, Why
from nvproxy_model.fields import (
    CStruct,
    Fd,
    Handle,
    NvP64,
    NvU8,
    NvU16,
    NvU32,
    NvU64,
    OpaquePointer,
    Status,
    UserPointer,
)
from nvproxy_model.policy.decision import Call, Copy, Decision, Facts, int32
from nvproxy_model.policy.generate import decider
from nvproxy_model.policy.interpret import interpret
from nvproxy_model.policy.plan import Count, plan

CALL = Call("580.126.20", "control", 0x1234, None)
ALLOC = CALL._replace(table="alloc")
FILES = {3: File("frontend", 0x111), 4: File("uvm", 0x222), 0: File("frontend", 0x333)}


def ask(of: CStruct, data: bytes | None, call: Call = CALL, *, strict: bool = False, files: Any = FILES) -> Decision:
    """Both readings, which must agree; the answers that follow are written out by hand."""
    generated = decider(call, of, strict=strict)(data, files)
    assert generated == interpret(call, of, data, files, strict=strict)
    return generated


INNER = CStruct("INNER", "n" / NvU32, "list" / UserPointer(NvU16, "n"))
NESTED = CStruct("NESTED", "before" / NvU64, "inner" / INNER, "n" / NvU32)


def test_a_count_stands_beside_its_pointer() -> None:
    """Not the outer field of the same name."""
    what = plan(NESTED)
    assert what.counts == (Count("inner.n", 8, "I"),)
    assert (what.buffers[0].offset, what.buffers[0].name) == (16, "NESTED.inner.list")
    decision = ask(NESTED, struct.pack("<QIxxxxQIxxxx", 7, 3, 0x7000, 9))
    assert decision.copies == (Copy(16, 0x7000, 6),)
    assert decision.params == struct.pack("<QIxxxxQIxxxx", 7, 3, 0, 9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CStruct("BOTH", "fd" / Fd(), "p" / UserPointer(NvU8, 4)), "BOTH: fds and buffers in one struct"),
        (
            lambda: CStruct("BOTH", "fd" / Fd(), "p" / OpaquePointer(null_only=True)),
            "BOTH: fds and buffers in one struct",
        ),
        (lambda: CStruct("MISSING", "p" / UserPointer(NvU8, "n")), "MISSING.p: no field 'n' counts its elements"),
        (lambda: CStruct("UP", "n" / NvU32, "in" / CStruct("D", "p" / UserPointer(NvU8, "n"))), "no field 'in.n'"),
    ],
)
def test_structs_that_no_decider_is_made_for(make: Any, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        plan(make())


def test_pointers_that_are_only_put_back() -> None:
    """One without an element, and an opaque one, are the driver's affair; the first comes back to the guest."""
    of = CStruct("PLAIN", "a" / UserPointer(None), "b" / OpaquePointer(), "status" / Status(), "pad" / NvU32)
    what = plan(of)
    assert (what.buffers, what.opaque, what.roles, what.restore) == ((), (), False, ((0, 8),))
    assert what.status is not None
    assert (what.status.offset, what.status.size) == (16, 4)
    data = struct.pack("<QQII", 1, 2, 3, 4)
    assert ask(of, data) == Decision(Verdict.ALLOW, Why.RULE, CALL, params=data)


def test_an_array_has_no_role() -> None:
    of = CStruct("ARRAY", "fds" / Fd()[4], "h" / Handle(depends=True)[2])
    assert (plan(of).fds, plan(of).depends, plan(of).restore) == ((), (), ())


FD = CStruct("FD", "pad" / NvU32, "a" / Fd(), "b" / Fd(NvU64, null=0, refuse=0x1F), "c" / Fd(negative=True, file="uvm"))


@pytest.mark.parametrize(
    ("a", "b", "c", "answer"),
    [
        (3, 0, 4, (0x111, 0, 0x222)),
        (3, 3, -1, (0x111, 0x111, -1)),
        (0, (1 << 32) + 3, -(1 << 31), (0x333, 0x111, -(1 << 31))),
        (3, 1 << 32, 4, (0x111, 0x333, 0x222)),
        (4, 0, 4, "FD.a = 0x4: want a frontend file, found a uvm file"),
        (-1, 0, 4, "FD.a = -0x1"),
        (3, 5, 4, "FD.b = 0x5: want a frontend file, found no open file"),
        (3, 0, 3, "FD.c = 0x3: want a uvm file, found a frontend file"),
        (3, 0, 0, "FD.c = 0x0: want a uvm file, found a frontend file"),
    ],
)
def test_descriptors(a: int, b: int, c: int, answer: tuple[int, int, int] | str) -> None:
    decision = ask(FD, struct.pack("<IiQixxxx", 77, a, b, c))
    if isinstance(answer, str):
        assert not decision.allowed
        assert answer in decision.reason
        assert (decision.errno, decision.status) == ((0, 0x1F) if "FD.b" in answer else (errno.EINVAL, None))
    else:
        assert decision.verdict is Verdict.TRANSLATE
        assert decision.params == struct.pack("<IiQixxxx", 77, *(answer[0], answer[1]), answer[2])


def test_a_wide_descriptor_under_the_hardened_profile() -> None:
    for value, refused in ((0x7FFFFFFF, False), (0x80000000, True), ((1 << 32) + 3, True)):
        data = struct.pack("<IiQixxxx", 0, 3, value, -1)
        decision = ask(FD, data, strict=True, files={3: FILES[3], 0x7FFFFFFF: FILES[3]})
        assert (decision.why is Why.HARDENED) is refused
        if refused:
            assert (decision.status, decision.facts) == (0x1F, Facts("FD.b", value, "at most 0x7fffffff"))
        else:
            assert decision.allowed


ROLES = CStruct(
    "ROLES",
    "n" / NvU32,
    "m" / NvU32,
    "copy" / UserPointer(NvU32, "n", limit=16),
    "out" / UserPointer(NvU16, ("square", "m"), limit=50, mode="out", null="forward", refuse=0x1F),
    "judge" / UserPointer(NvU8, "n", limit=4, null="judge", empty="forward", late=True),
    "fixed" / UserPointer(NvU64, 2, empty="forward"),
    "cleared" / OpaquePointer(cleared=True),
    "none" / OpaquePointer(NvP64, null_only=True),
)


def roles(n: int, m: int, *pointers: int) -> bytes:
    return struct.pack("<II6Q", n, m, *pointers)


def test_buffers_by_role() -> None:
    decision = ask(ROLES, roles(4, 5, 0x1000, 0x2000, 0x3000, 0x4000, 0x5000, 0))
    assert decision.copies == (
        Copy(8, 0x1000, 16),
        Copy(16, 0x2000, 50, copy_in=False),
        Copy(24, 0x3000, 4, late=True),
        Copy(32, 0x4000, 16),
    )
    assert decision.params == roles(4, 5, 0, 0, 0, 0, 0, 0)
    assert decision.verdict is Verdict.TRANSLATE


def test_null_and_empty_by_role() -> None:
    """`copy` takes address 0 like any other; `forward` does not look at the count; `judge` looks, and copies nothing."""
    decision = ask(ROLES, roles(1, 99, 0, 0, 0, 0, 0, 0))
    assert [(copy.offset, copy.address, copy.size) for copy in decision.copies] == [(8, 0, 4), (32, 0, 16)]
    assert decision.params == roles(1, 99, 0, 0, 0, 0, 0, 0)


REFUSED = [
    (roles(5, 1, 1, 0, 1, 1, 0, 0), Why.COUNT, "ROLES.copy = 0x5: want 1 to 16 bytes, found 20 bytes", None),
    (roles(0, 1, 1, 0, 1, 1, 0, 0), Why.COUNT, "ROLES.copy = 0x0: want 1 to 16 bytes, found 0 bytes", None),
    (roles(4, 6, 1, 1, 1, 1, 0, 0), Why.COUNT, "ROLES.out = 0x6: want 1 to 50 bytes, found 72 bytes", 0x1F),
    (roles(4, 0, 1, 1, 1, 1, 0, 0), Why.COUNT, "ROLES.out = 0x0: want 1 to 50 bytes, found 0 bytes", 0x1F),
    (roles(4, 1, 1, 1, 1, 1, 0, 9), Why.POINTER, "ROLES.none = 0x9: want NULL", None),
    (roles(4, 1, 1, 1, 1, 1, 0, 9)[:-1], Why.SIZE, "ROLES: want 56 bytes, found 55 bytes", None),
    (roles(4, 1, 1, 1, 1, 1, 0, 9) + b"\0", Why.SIZE, "ROLES: want 56 bytes, found 57 bytes", None),
]


@pytest.mark.parametrize(("data", "why", "text", "status"), REFUSED)
def test_refusals_by_role(data: bytes, why: Why, text: str, status: int | None) -> None:
    decision = ask(ROLES, data)
    assert (decision.verdict, decision.why, decision.status) == (Verdict.REJECT, why, status)
    assert decision.errno == (0 if status else errno.EINVAL)
    assert text in decision.reason


def test_a_judged_count_is_judged_for_null_too() -> None:
    of = CStruct("JUDGE", "n" / NvU32, "p" / UserPointer(NvU8, "n", limit=4, null="judge", empty="forward"))
    for n, address, copies in ((4, 0, ()), (0, 0x1000, ()), (4, 0x1000, (Copy(8, 0x1000, 4),))):
        decision = ask(of, struct.pack("<IxxxxQ", n, address))
        assert (decision.allowed, decision.copies) == (True, copies)
        assert decision.params == struct.pack("<IxxxxQ", n, 0)
        assert decision.verdict is (Verdict.TRANSLATE if address else Verdict.ALLOW)
    for address in (0, 0x1000):
        assert ask(of, struct.pack("<IxxxxQ", 5, address)).why is Why.COUNT


HANDLES = CStruct(
    "HANDLES",
    "need" / Handle(required=True),
    "a" / Handle(depends=True),
    "b" / Handle(depends=True, null=(0, 0xFFFFFFFF)),
    "c" / Handle(),
)


@pytest.mark.parametrize(
    ("a", "b", "depends"),
    [(1, 2, (1, 2)), (0, 2, (2,)), (1, 0, (1,)), (1, 0xFFFFFFFF, (1,)), (0, 0, ()), (0xFFFFFFFF, 7, (0xFFFFFFFF, 7))],
)
def test_dependencies(a: int, b: int, depends: tuple[int, ...]) -> None:
    data = struct.pack("<IIII", 1, a, b, 3)
    assert ask(HANDLES, data) == Decision(Verdict.ALLOW, Why.RULE, CALL, params=data, depends=depends)


def test_a_required_handle() -> None:
    decision = ask(HANDLES, struct.pack("<IIII", 0, 1, 2, 3))
    assert (decision.why, decision.errno, decision.facts) == (Why.REQUIRED, errno.EINVAL, Facts("HANDLES.need", 0))


@pytest.mark.parametrize(
    ("of", "call", "allowed"),
    [
        (HANDLES, ALLOC, False),
        (FD, ALLOC, False),
        (CStruct("FREE", "a" / Handle(depends=True)), ALLOC, True),
        (CStruct("FREE", "a" / Handle(depends=True)), CALL, False),
        (CStruct("BUFFER", "p" / UserPointer(NvU8, 4)), ALLOC, True),
    ],
)
def test_null_parameters(of: CStruct, call: Call, allowed: bool) -> None:
    decision = ask(of, None, call)
    assert decision.allowed is allowed
    assert (decision.why, decision.errno) == ((Why.RULE, 0) if allowed else (Why.NULL, errno.EFAULT))


def test_the_source_of_a_decider_is_kept() -> None:
    source = decider(CALL, HANDLES).__source__  # type: ignore[attr-defined]
    assert source.startswith("def decide(data, fds):")
    compile(source, "x", "exec")


@pytest.mark.parametrize(
    ("value", "low"),
    [
        (0, 0),
        (0x7FFFFFFF, 0x7FFFFFFF),
        (0x80000000, -0x80000000),
        (0xFFFFFFFF, -1),
        (1 << 32, 0),
        (1 << 33, 0),
        ((1 << 40) + 3, 3),
        (-1, -1),
    ],
)
def test_int32(value: int, low: int) -> None:
    assert int32(value) == low


@pytest.mark.parametrize("host", [-1, 0, 7])
def test_a_number_that_the_host_is_given_in_any_case(host: int) -> None:
    """Whatever the guest's number stands for, but for the one that means none."""
    of = CStruct("HOSTS", "pad" / NvU32, "fd" / Fd(NvU64, null=9, host=host), "tail" / NvU32)
    for value in (3, 77, 0, (1 << 64) - 1):
        decision = ask(of, struct.pack("<IxxxxQIxxxx", 5, value, 6))
        assert decision.verdict is Verdict.TRANSLATE
        assert decision.params == struct.pack("<IxxxxQIxxxx", 5, host & 0xFFFFFFFF, 6)
    untouched = struct.pack("<IxxxxQIxxxx", 5, 9, 6)
    assert ask(of, untouched) == Decision(Verdict.ALLOW, Why.RULE, CALL, params=untouched)


def test_a_handle_that_has_two_words_for_none() -> None:
    of = CStruct("ALONE", "space" / Handle(depends=True, null=(0, 0xFFFFFFFF)))
    for value, depends in ((0, ()), (0xFFFFFFFF, ()), (1, (1,)), (0xFFFFFFFE, (0xFFFFFFFE,))):
        assert ask(of, value.to_bytes(4, "little")).depends == depends
