"""The strategies draw what they say: whole structs, the fields asked for, calls that some row speaks of."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvproxy_model import File, Files, MemoryFault, Policy, Session
from nvproxy_model.fields import CStruct
from nvproxy_model.structs import every
from nvproxy_model.structs.nvos import NVOS54_PARAMETERS
from nvproxy_model.testing import FakeDriver, GuestCall, Memory, apply
from nvproxy_model.testing.strategies import calls, garbage, records
from tests.effort import examples

POLICY = Policy.for_driver("580.126.20", "all,profiling,rdma")
STRUCTS = [
    record.at(POLICY.version) for record in every() if isinstance(record, CStruct) and record.exists(POLICY.version)
]
HANDLES, FDS, WHERE = [0x5C000001, 0x5C000002], [3, 4], 0x2000


@given(st.data(), st.sampled_from(STRUCTS))
def test_records_are_whole(data: st.DataObject, of: CStruct) -> None:
    drawn = data.draw(records(of, handles=HANDLES, fds=FDS))
    assert len(drawn) == of.sizeof()
    assert of.build(of.parse(drawn)) == drawn


@given(records(NVOS54_PARAMETERS, handles=HANDLES, fixed={"cmd": 0x90CD0104, "paramsSize": 1 << 40}))
def test_fixed_fields_are_as_given(drawn: bytes) -> None:
    fields = NVOS54_PARAMETERS.parse(drawn)
    assert (fields.cmd, fields.paramsSize) == (0x90CD0104, 0)


@given(calls(POLICY, address=WHERE, handles=HANDLES, fds=FDS))
def test_calls_are_of_the_tables(call: object) -> None:
    request, argument = call.request, call.argument  # type: ignore[attr-defined]
    params = call.params  # type: ignore[attr-defined]
    if call.device == "uvm":  # type: ignore[attr-defined]
        assert request in POLICY.uvm
        return
    number = request & 0xFF
    assert number in POLICY.frontend
    assert request >> 16 & 0x3FFF == len(argument)
    if number in (0x2A, 0x2B) and params is not None:
        at = 8 if number == 0x2A else 12
        inner = int.from_bytes(argument[at : at + 4], "little")
        assert inner in (POLICY.control if number == 0x2A else POLICY.alloc)
        assert int.from_bytes(argument[16:24], "little") == (WHERE if params else 0)


@given(garbage())
def test_garbage_is_a_request_and_bytes(call: object) -> None:
    assert 0 <= call.request <= 0xFFFFFFFF  # type: ignore[attr-defined]


def _session(*kinds: str, last: int = 0x8000) -> Session:
    files = Files({fd: File(kind, 1000 + fd) for fd, kind in enumerate(kinds, 3)})  # type: ignore[arg-type]
    return Session(POLICY, Memory(0x1000, last), files, FakeDriver("580.126.20"))


@settings(max_examples=examples(30))
@given(
    calls(POLICY, address=WHERE, handles=HANDLES, fds=FDS) | garbage().map(lambda call: call._replace(address=WHERE))
)
def test_a_call_is_applied_as_its_guest_would_make_it(call: GuestCall) -> None:
    """The same answer and the same memory as by hand."""
    applied, by_hand = _session("other", "frontend", "uvm"), _session("other", "frontend", "uvm")
    result = apply(call, applied)
    at = WHERE + -(-len(call.params or b"") // 16) * 16
    by_hand.memory.write(WHERE, call.params or b"")
    by_hand.memory.write(at, call.argument)
    assert result == by_hand.ioctl(4 if call.device == "frontend" else 5, call.request, at)
    assert applied.memory.data == by_hand.memory.data  # type: ignore[attr-defined]
    if result.decision is not None and call.params and result.decision.params is not None:
        assert len(result.decision.params) in (len(call.params), len(call.argument))


def test_a_call_needs_its_file_and_its_memory() -> None:
    call = GuestCall("uvm", 0x17, bytes(16), None, WHERE)
    with pytest.raises(LookupError, match="has no uvm file open: put a File"):
        apply(call, _session("frontend"))
    with pytest.raises(MemoryFault):
        apply(call, _session("uvm", last=WHERE))
