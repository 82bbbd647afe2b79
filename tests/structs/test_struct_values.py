"""Structs by the names of their fields: every layout of every struct, against what the headers of its release say."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvproxy_model import File, UnknownDriverVersion, structs, versions
from nvproxy_model.drivers import facts
from nvproxy_model.fields import CStruct, CUnion, NvU8, NvU16, NvU32, Scalar
from nvproxy_model.structs.cl90cd import NV_EVENT_BUFFER_ALLOC_PARAMETERS
from nvproxy_model.structs.nvos import NVOS54_PARAMETERS
from nvproxy_model.structs.uvm_ioctl import (
    UVM_CREATE_RANGE_GROUP_PARAMS,
    UVM_REGISTER_CHANNEL_PARAMS,
    UVM_UNREGISTER_CHANNEL_PARAMS,
)
from nvproxy_model.versions import DriverVersion

TREE = versions.load()
HEADERS = facts.load()


def _layouts() -> Iterator[tuple[CStruct | CUnion, DriverVersion]]:
    """Every layout of every struct once, with the struct as it is imported and a release that has it."""
    for record in structs.every():
        seen: set[int] = set()
        for node in filter(record.exists, TREE.values()):
            if id(record.at(node)) not in seen:
                seen.add(id(record.at(node)))
                yield record, node


Layout = tuple[CStruct | CUnion, DriverVersion | None]
LAYOUTS: list[Layout] = list(_layouts())
SMALL = [(record, node) for record, node in LAYOUTS if node is not None and record.at(node).sizeof() <= 512]
"""What Hypothesis can draw every byte of."""
PAIR = CStruct("PAIR", "small" / NvU8, "big" / NvU32[2])
EITHER = CUnion("EITHER", "word" / NvU32, "halves" / NvU16[2], "pair" / PAIR)
HOLDER = CStruct("HOLDER", "tag" / NvU8, "either" / EITHER, "rows" / NvU8[4][2], "pairs" / PAIR[3])
SYNTHETIC: list[Layout] = [(HOLDER, None), (EITHER, None)]


def test_no_field_has_the_name_of_an_argument() -> None:
    assert len(LAYOUTS) > 190
    assert not [record for record, node in LAYOUTS if "driver" in {member.name for member in record.at(node).members}]


@pytest.mark.parametrize("node", [node for node in TREE.values() if node.name in HEADERS.versions], ids=str)
def test_a_field_is_where_the_headers_have_it(node: DriverVersion) -> None:
    """Each field of each struct, set to all ones, is the bytes that the release's own headers give it, and no others."""
    for record in filter(lambda record: record.exists(node), structs.every()):
        header = HEADERS.release(node.name).structs[record.ctype_at(node)]
        assert len(record.make(driver=node.name)) == header.size
        for field in header.fields:
            if field.base[0] in "up" and not field.dims:
                ones = (1 << 8 * field.size) - 1
                want = bytes(field.offset) + b"\xff" * field.size + bytes(header.size - field.offset - field.size)
                assert record.make(driver=node, **{field.name: ones}) == want, f"{record.ctype}.{field.name}"
                assert record.read(want, driver=node)[field.name] == ones


def test_the_newest_layout_is_the_newest_release_s() -> None:
    for record in structs.every():
        newest = max(filter(record.exists, TREE.values()), key=lambda node: versions.numbers(node.name))
        assert record.layout().fields == record.at(newest).layout().fields, record


def test_one_layout_reaches_all_others() -> None:
    for record, node in LAYOUTS:
        for start in {id(each): each for each in map(record.at, filter(record.exists, TREE.values()))}.values():
            assert start.make(driver=node) == record.at(node).make()
            assert start.make() == bytes(start.sizeof())


def _plain(parsed: Any) -> Any:
    """What construct reads, as `read` gives it."""
    if isinstance(parsed, dict):
        return {
            name: _plain(value) for name, value in parsed.items() if name not in ("_io", "_raw") and "_pad" not in name
        }
    return [_plain(value) for value in parsed] if isinstance(parsed, list) else parsed


def _lists(read: Any) -> Any:
    """What `read` gives, with the bytes of arrays as the numbers that construct has."""
    if isinstance(read, dict):
        return {name: _lists(value) for name, value in read.items()}
    return [_lists(value) for value in read] if isinstance(read, (list, bytes)) else read


def _unsigned(value: Any) -> Any:
    """With no char signed, in an array or not."""
    if isinstance(value, dict):
        return {name: _unsigned(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_unsigned(each) for each in value]
    return value & 0xFF if -129 < value < 0 else value


@pytest.mark.parametrize("raw", [bytes(range(256)), b"\xff\xfe\xfd", b"\x80\0\1"], ids=["counting", "high", "mixed"])
def test_there_and_back_for_every_layout(raw: bytes) -> None:
    for record, node in [*LAYOUTS, *SYNTHETIC]:
        here = record if node is None else record.at(node)
        data = (raw * (here.sizeof() // len(raw) + 1))[: here.sizeof()]
        values = here.read(data)
        made = record.make(driver=node, **values)
        assert here.read(made) == values
        assert record.edit(data, driver=node, **values) == data  # padding stays
        assert record.edit(made, driver=node) == made


@given(st.data(), st.sampled_from([*SMALL, *SYNTHETIC * 8]))
def test_there_and_back(data: st.DataObject, which: Layout) -> None:
    """Against construct's own reading too; a field that is edited changes alone."""
    record, node = which
    here = record if node is None else record.at(node)
    size = here.sizeof()
    raw = data.draw(st.binary(min_size=size, max_size=size))
    values = here.read(raw)
    assert _unsigned(_lists(values)) == _unsigned(_plain(here.parse(raw)))
    assert here.read(here.make(**values)) == values
    assert here.edit(raw, **values) == raw
    name, zero = data.draw(st.sampled_from(list(values))), here.read(bytes(size))
    assert here.edit(bytes(size), **{name: values[name]}) == here.make(**{name: values[name]})
    if isinstance(here, CStruct):
        assert here.read(here.edit(raw, **{name: zero[name]})) == {**values, name: zero[name]}


def _scalars() -> Iterator[tuple[CStruct, str, Scalar]]:
    for record, node in LAYOUTS:
        for member in record.at(node).members:
            if isinstance(record, CStruct) and isinstance(member.element, Scalar) and not member.dims:
                yield record.at(node), member.name, member.element


SCALARS = list(_scalars())


@given(st.sampled_from(SCALARS), st.integers(-(1 << 70), 1 << 70) | st.integers(-300, 300))
def test_a_value_stands_as_it_is_or_is_an_error(which: tuple[CStruct, str, Scalar], value: int) -> None:
    record, name, scalar = which
    bits, signed = 8 * scalar.sizeof(), scalar.base.startswith("s")
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if low <= value <= high:
        assert record.read(record.make(**{name: value}))[name] == value
    else:
        says = re.escape(f"{record.ctype}.{name} = {value}: {scalar.ctype} holds {low} to {high}")
        with pytest.raises(ValueError, match=says):
            record.make(**{name: value})


class Flag(enum.IntFlag):
    ONE = 1


def test_make_read_edit() -> None:
    buffer = NV_EVENT_BUFFER_ALLOC_PARAMETERS
    made = buffer.make(driver=None, notificationHandle=7, flags=Flag.ONE)
    assert made == bytes(40) + b"\7" + bytes(15) + b"\1" + bytes(15)
    assert buffer.read(made)["notificationHandle"] == 7
    edited = buffer.edit(bytearray(made), notificationHandle=0, hSubDevice=0xCAF00001)
    assert {name: value for name, value in buffer.read(memoryview(edited)).items() if value} == {
        "flags": 1,
        "hSubDevice": 0xCAF00001,
    }


def test_arrays_and_records_inside() -> None:
    made = HOLDER.make(tag=1, rows=[b"\1\2", (3,)], pairs=[{"small": 5, "big": [6]}, PAIR.make(big=(7, 8))])
    values = HOLDER.read(made)
    assert values["rows"] == [b"\1\2\0\0", b"\3\0\0\0"]
    assert values["pairs"][0] == {"small": 5, "big": [6, 0]}
    assert values["pairs"][1] == {"small": 0, "big": [7, 8]}
    again = HOLDER.edit(made, pairs=[{"small": 9}])  # of an array the rest is zero, of a record it stays
    assert HOLDER.read(again)["pairs"] == [{"small": 9, "big": [6, 0]}, *[{"small": 0, "big": [0, 0]}] * 2]


def test_a_union_takes_what_agrees() -> None:
    assert EITHER.make(word=0x00020001, halves=[1, 2]) == EITHER.make(halves=[1, 2]) == EITHER.make(word=0x20001)
    with pytest.raises(ValueError, match=r"^HOLDER.either.halves\[0\]: another member of the union sets these bytes"):
        HOLDER.make(either={"word": 7, "halves": [1, 2]})


WRONG: list[tuple[Any, type[Exception], str]] = [
    (lambda: HOLDER.make(tagg=1), TypeError, "^HOLDER has no field 'tagg'; did you mean tag[?]$"),
    (lambda: HOLDER.make(zzz=1), TypeError, "^HOLDER has no field 'zzz'; it has tag, either, rows, pairs$"),
    (
        lambda: HOLDER.edit(HOLDER.make(), pairs=[{}, {"Small": 1}]),
        TypeError,
        r"HOLDER.pairs\[1\] has no.*did you mean small",
    ),
    (lambda: HOLDER.make(tag=256), ValueError, "^HOLDER.tag = 256: NvU8 holds 0 to 255$"),
    (lambda: HOLDER.make(tag=-1), ValueError, "NvU8 holds 0 to 255"),
    (lambda: HOLDER.make(tag=1.0), TypeError, r"^HOLDER.tag: want an int \(NvU8\); got 1.0"),
    (lambda: HOLDER.make(tag=File("uvm", 3)), TypeError, "want an int.*got File"),
    (lambda: HOLDER.make(tag=None), TypeError, "got None"),
    (lambda: HOLDER.make(rows=7), TypeError, "HOLDER.rows: want a list of at most 2 elements; got 7"),
    (lambda: HOLDER.make(rows=b"12"), TypeError, "HOLDER.rows: want a list of at most 2"),
    (lambda: HOLDER.make(rows=[b"12345"]), ValueError, r"HOLDER.rows\[0\]: 5 elements; it has 4"),
    (lambda: HOLDER.make(rows=["1234"]), TypeError, r"HOLDER.rows\[0\]: want bytes or a list of at most 4"),
    (lambda: HOLDER.make(rows=[[1, 2, 300]]), ValueError, r"HOLDER.rows\[0\]\[2\] = 300: NvU8 holds"),
    (lambda: HOLDER.make(pairs=[1]), TypeError, r"HOLDER.pairs\[0\]: want a mapping of PAIR's fields"),
    (lambda: HOLDER.make(pairs=[b"1"]), ValueError, "PAIR has 12 bytes, not 1"),
    (lambda: HOLDER.read(b"1"), ValueError, f"HOLDER has {HOLDER.sizeof()} bytes, not 1"),
    (lambda: HOLDER.read("text"), TypeError, "HOLDER: want its .* bytes, not an object of type str"),
    (lambda: HOLDER.edit(bytes(3)), ValueError, "not 3"),
    (lambda: NVOS54_PARAMETERS.make(driver=580), TypeError, "driver=580: want a release's name"),
    (lambda: NVOS54_PARAMETERS.make(driver="580.1"), UnknownDriverVersion, "nearest known"),
    (
        lambda: UVM_CREATE_RANGE_GROUP_PARAMS.make(driver="610.43.02"),
        ValueError,
        r"^UVM_CREATE_RANGE_GROUP_PARAMS: driver 610.43.02 has none; it is in \S+ to 595\.\S+$",
    ),
    (
        lambda: UVM_UNREGISTER_CHANNEL_PARAMS.make(gpuUuid={}),
        TypeError,
        r"has no field 'gpuUuid' here; with driver=\S+ to 580\.\S+ it has$",
    ),
    (
        lambda: UVM_REGISTER_CHANNEL_PARAMS.make(gpuUuid={"uuid": bytes(17)}),
        ValueError,
        "gpuUuid.uuid: 17 elements; it has 16",
    ),
]


@pytest.mark.parametrize(("call", "error", "says"), WRONG)
def test_a_mistake_names_the_field(call: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as raised:
        call()
    assert "\n" not in str(raised.value)


ANYTHING = st.recursive(
    st.none() | st.integers() | st.binary() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "uuid"]), inner, max_size=2),
    max_leaves=4,
)


@given(st.data(), st.sampled_from([*LAYOUTS, *SYNTHETIC * 8]), ANYTHING)
def test_any_value_is_taken_or_an_error(data: st.DataObject, which: Layout, value: Any) -> None:
    here = which[0].at(which[1]) if which[1] else which[0]
    member = data.draw(st.sampled_from(here.members))
    with suppress(TypeError, ValueError):
        made = here.make(**{member.name: value})
        assert here.read(made)[member.name] == here.read(here.edit(made, **{member.name: value}))[member.name]
        assert len(made) == here.sizeof()
