"""The generated deciders against the plain reading through construct, for every layout of every struct with roles."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvproxy_model import versions
from nvproxy_model.fields import CStruct
from nvproxy_model.policy.decision import Call
from nvproxy_model.policy.generate import decider
from nvproxy_model.policy.interpret import interpret
from nvproxy_model.policy.plan import plan
from nvproxy_model.session.ports import File
from nvproxy_model.structs import every

TREE = versions.load()
FILES = {
    0: File("other", 1 << 20),
    3: File("frontend", (1 << 20) + 3),
    4: File("uvm", (1 << 20) + 4),
    5: File("open-only", (1 << 20) + 5),
    6: File("dma-buf", (1 << 20) + 6),
}


def _variants() -> list[CStruct]:
    """Every layout of every struct that has something to decide, over all releases."""
    seen: dict[int, CStruct] = {}
    for record in every():
        for version in TREE.values():
            if isinstance(record, CStruct) and record.exists(version):
                variant = record.at(version)
                if plan(variant).roles or plan(variant).depends:
                    seen[id(variant)] = variant
    return list(seen.values())


VARIANTS = _variants()
INTERESTING = st.sampled_from(
    [
        0,
        1,
        3,
        4,
        5,
        6,
        7,
        255,
        256,
        512,
        513,
        1 << 16,
        1 << 18,
        1 << 31,
        (1 << 32) - 1,
        1 << 32,
        (1 << 32) + 3,
        (1 << 64) - 1,
    ]
)


@st.composite
def _bytes_of(draw: st.DrawFn, of: CStruct) -> bytes:
    """Random bytes with interesting values where the roles and counts are."""
    what = plan(of)
    data = bytearray(draw(st.binary(min_size=what.size, max_size=what.size)))
    places = [(step.offset, step.format) for step in (*what.required, *what.fds, *what.pointers, *what.depends)]
    places += [(count.offset, count.format) for count in what.counts if count is not None]
    for offset, kind in places:
        size = struct.calcsize(f"<{kind}")
        data[offset : offset + size] = (draw(INTERESTING) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    return bytes(data)


@pytest.mark.parametrize("of", VARIANTS, ids=lambda of: f"{of.ctype}-{of.sizeof()}")
@given(data=st.data(), table=st.sampled_from(["control", "alloc"]), strict=st.booleans())
def test_generated_equals_interpreted(of: CStruct, data: st.DataObject, table: str, strict: bool) -> None:
    call = Call("580.126.20", table, 0x1234, None)
    raw = data.draw(st.none() | _bytes_of(of) | st.binary(max_size=100))
    assert decider(call, of, strict=strict)(raw, FILES) == interpret(call, of, raw, FILES, strict=strict)


def test_there_is_something_to_compare() -> None:
    assert len(VARIANTS) >= 40
