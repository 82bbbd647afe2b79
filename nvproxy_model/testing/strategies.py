"""Hypothesis strategies for guest calls: struct bytes from what their fields mean, and whole ioctls from a
policy's tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from hypothesis import strategies as st

from nvproxy_model import ioctl
from nvproxy_model.abi.escapes import NV_ESC_RM_ALLOC, NV_ESC_RM_CONTROL
from nvproxy_model.fields import CStruct, Fd, Handle, OpaquePointer, UserPointer
from nvproxy_model.policy.plan import plan
from nvproxy_model.policy.policy import Policy
from nvproxy_model.rules import Table
from nvproxy_model.structs.nvos import NVOS21_PARAMETERS, NVOS54_PARAMETERS, NVOS64_PARAMETERS
from nvproxy_model.testing.calls import BLOCK, GuestCall

__all__ = ["GuestCall", "calls", "garbage", "records"]

_EDGES = {
    1: [0, 1, 2, 0x7F, 0x80, 0xFF],
    2: [0, 1, 0x7FFF, 0x8000, 0xFFFF],
    4: [0, 1, 2, 3, 16, 257, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF],
    8: [0, 1, 4096, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 32, (1 << 63) - 1, (1 << 64) - 1],
}


def _around(size: int, values: Sequence[int]) -> st.SearchStrategy[int]:
    """One of ``values`` mostly, an edge of the width sometimes; numbers that do not fit are cut off."""
    mask = (1 << 8 * size) - 1
    wanted = st.sampled_from([value & mask for value in values]) if values else st.just(0)
    return st.one_of(wanted, wanted, st.sampled_from(_EDGES.get(size, [0])))


@st.composite
def records(
    draw: st.DrawFn,
    of: CStruct,
    *,
    handles: Sequence[int] = (),
    fds: Sequence[int] = (),
    pointers: Sequence[int] = (),
    fixed: Mapping[str, int] | None = None,
) -> bytes:
    """The bytes of one resolved struct: handles, fds and pointers mostly from what is given, small counts,
    noise elsewhere.

    ``fixed`` sets fields by dotted path.
    """
    data = bytearray(draw(st.binary(min_size=of.sizeof(), max_size=of.sizeof()) | st.just(bytes(of.sizeof()))))
    counts = {count.path for count in plan(of).counts if count is not None}
    for path, offset, member in of.walk():
        if member.dims:
            continue
        if fixed and path in fixed:
            value = fixed[path]
        elif isinstance(member.role, Handle):
            value = draw(_around(member.size, handles))
        elif isinstance(member.role, Fd):
            value = draw(_around(member.size, [*fds, *(fd + (1 << 32) for fd in fds)]))
        elif isinstance(member.role, (UserPointer, OpaquePointer)):
            value = draw(_around(member.size, [0, *pointers]))
        elif path in counts:
            value = draw(_around(member.size, [0, 1, 2, 3, 8]))
        else:
            continue
        data[offset : offset + member.size] = (value & (1 << 8 * member.size) - 1).to_bytes(member.size, "little")
    return bytes(data)


_PARAMS = 1 << 8
"""How long the parameters of a control are that this model knows by name only."""


def _request(number: int, size: int) -> int:
    return ioctl.request(number, size)


@st.composite
def calls(
    draw: st.DrawFn,
    policy: Policy,
    *,
    address: int = BLOCK,
    handles: Sequence[int] = (),
    fds: Sequence[int] = (),
    pointers: Sequence[int] = (),
) -> GuestCall:
    """An ioctl that some row of the policy's tables speaks of; its parameters are to be put at guest
    ``address``."""
    tables: list[Table] = ["frontend", "uvm", "control", "control", "alloc", "alloc"]
    table = draw(st.sampled_from(tables))
    rules = policy.rules[table]
    rule = rules[draw(st.sampled_from(sorted(rules)))]
    of = rule.params_at(policy.version)
    if isinstance(of, CStruct):
        body = draw(records(of, handles=handles, fds=fds, pointers=pointers))
    else:
        body = (
            draw(st.binary(max_size=_PARAMS))
            if of is None
            else draw(st.binary(min_size=of.sizeof(), max_size=of.sizeof()))
        )
    if table == "uvm":
        return GuestCall("uvm", rule.number, body, None, address)
    if table == "frontend":
        return GuestCall("frontend", _request(rule.number, len(body)), body, None, address)
    params = None if rule.params is None and rule.struct is None else body
    where = address if params else 0
    if table == "control":
        fixed = {"cmd": rule.number, "params": where, "paramsSize": len(params or b"")}
        return GuestCall(
            "frontend",
            _request(NV_ESC_RM_CONTROL, 32),
            draw(records(NVOS54_PARAMETERS, handles=handles, fixed=fixed)),
            params,
            address,
        )
    outer = draw(st.sampled_from([NVOS21_PARAMETERS, NVOS64_PARAMETERS]))
    fixed = {"hClass": rule.number, "pAllocParms": where}
    argument = draw(records(outer, handles=handles, pointers=pointers, fixed=fixed))
    return GuestCall("frontend", _request(NV_ESC_RM_ALLOC, outer.sizeof()), argument, params, address)


_DEVICES: list[Literal["frontend", "uvm"]] = ["frontend", "uvm"]


def garbage() -> st.SearchStrategy[GuestCall]:
    """Any request with any bytes: what no row speaks of."""
    return st.builds(
        GuestCall,
        st.sampled_from(_DEVICES),
        st.integers(0, 0xFFFFFFFF),
        st.binary(max_size=128),
        st.none() | st.binary(max_size=128),
        st.just(BLOCK),
    )
