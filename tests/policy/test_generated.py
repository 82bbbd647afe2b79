"""The generated deciders against the plain reading through construct, for every layout of every struct with roles."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvproxy_model import versions
from nvproxy_model.fields import CStruct
from nvproxy_model.policy.decision import Call
from nvproxy_model.policy.generate import decider
from nvproxy_model.policy.interpret import interpret
from nvproxy_model.policy.plan import plan
from nvproxy_model.session.ports import File
from nvproxy_model.structs import every
from tests.effort import examples

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
INTERESTING = (
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
)


NOISE = 256


def _bytes_of(of: CStruct, noise: bytes) -> bytes:
    """Any bytes, with interesting values where the roles and counts are. Of the noise, which is one draw and so costs little."""
    what = plan(of)
    data = bytearray((noise * (what.size // len(noise) + 1))[: what.size])
    places = [(step.offset, step.format) for step in (*what.required, *what.fds, *what.pointers, *what.depends)]
    places += [(count.offset, count.format) for count in what.counts if count is not None]
    for index, (offset, kind) in enumerate(places):
        size = struct.calcsize(f"<{kind}")
        value = INTERESTING[noise[-1 - index % len(noise)] % len(INTERESTING)]
        data[offset : offset + size] = (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    return bytes(data)


@pytest.mark.parametrize("of", VARIANTS, ids=lambda of: f"{of.ctype}-{of.sizeof()}")
@settings(max_examples=examples(30))
@given(noise=st.binary(min_size=NOISE, max_size=NOISE), length=st.none() | st.integers(0, 100) | st.just(1 << 20))
def test_generated_equals_interpreted(of: CStruct, noise: bytes, length: int | None) -> None:
    """Eight cases of each example: a draw costs more than a decision."""
    for at in range(0, NOISE, NOISE // 8):
        turned = noise[at:] + noise[:at]
        table, strict = ("control", "alloc")[turned[0] & 1], bool(turned[0] & 2)
        call = Call("580.126.20", table, 0x1234, None)
        raw = None if length is None else _bytes_of(of, turned)[:length]
        assert decider(call, of, strict=strict)(raw, FILES) == interpret(call, of, raw, FILES, strict=strict)


def test_there_is_something_to_compare() -> None:
    assert len(VARIANTS) >= 40
