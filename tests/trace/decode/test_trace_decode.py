"""Every call of the real traces by name and field; what cannot be known is said and counted; nothing fails on bytes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvproxy_model.layout import Field, Layout
from nvproxy_model.trace import format as fmt
from nvproxy_model.trace.decode import decoder as decoder_module
from nvproxy_model.trace.decode.catalog import Catalog, is_bits
from nvproxy_model.trace.decode.decoder import NO_LAYOUT, NOT_RECORDED, Decoder, _flags
from nvproxy_model.trace.decode.layouts import changes, partial, reader, through_construct
from nvproxy_model.trace.reader import Reader

# Per trace: calls without a public layout, calls of which nothing was recorded.
NOT_KNOWN = {
    "cuda-vmm-1": (4, 0),
    "cuda-vmm-2": (4, 0),
    "cupy": (14, 0),
    "event-buffer-chain": (0, 0),
    "ncu-1": (38, 0),
    "ncu-2": (14, 0),
    "nsys-gpuctxsw-1": (3, 0),
    "nsys-gpuctxsw-2": (13, 0),
    "nsys-gpuctxsw-3": (3, 0),
    "nsys-gpuctxsw-4": (14, 2),
    "nsys-gpuctxsw-5": (13, 0),
    "nsys-gpuctxsw-6": (14, 2),
    "nvidia-smi": (11, 0),
    "nvidia-smi-q": (73, 0),
    "nvml-events": (0, 0),
    "torch-matmul": (14, 0),
}
NO_HEADER = {0x20803406, 0x20810108, 0x20810110, 0x20810111}
"""Numbers of the traces that no public header has, beside the legacy window's."""


def record(**fields: Any) -> fmt.Record:
    base = {
        "k": "ioctl",
        "t": 0,
        "tid": 1,
        "fd": 3,
        "ret": 0,
        "dev": "/dev/nvidiactl",
        "req": "0xc020462a",
        "kind": "control",
        "key": "0x102",
    }
    return fmt.record({**base, **fields}, 1)


def plain(value: Any) -> Any:
    """construct's containers as dicts and lists, without the bookkeeping."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if not key.startswith("_")}
    return [plain(item) for item in value] if isinstance(value, list) else value


def test_the_nearest_public_facts_are_named(catalog: Catalog) -> None:
    assert catalog.notes == []
    assert Catalog("580.173.02").notes == [
        "driver 580.173.02 has no public source: the recorded facts of 580.159.04 stand for it"
    ]
    assert (
        Catalog("570.211.01")
        .notes[0]
        .startswith("driver 570.211.01 is not in driver_versions.yaml: the rules of 570.195.03")
    )
    assert Catalog("580.126.20").notes == []


@pytest.mark.parametrize("kept", [0, 20_000, 1 << 30])
def test_a_line_is_the_record_whatever_is_remembered(
    kept: int, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "three.jsonl.gz"
    path.write_bytes((Path(__file__).parents[2] / "data" / "traces" / "nsys-gpuctxsw-2.jsonl.gz").read_bytes() * 3)
    plain = Decoder(catalog)
    want = [orjson.dumps(plain.record(rec)) + b"\n" for rec in Reader(path)]
    monkeypatch.setattr(decoder_module, "_KEPT", kept)
    decoder = Decoder(catalog)
    for _ in range(2):
        assert [decoder.line(rec) for rec in Reader(path)] == want
    assert plain.counts
    assert decoder.counts == {what: 2 * count for what, count in plain.counts.items()}
    lines = sum(len(said) + sum(map(len, line.pieces[::2])) for said, line in decoder._lines.items())
    assert lines + sum(len(part.text) for part in decoder._parts.values()) <= kept


def test_what_is_remembered_counts_with_bytes_that_no_field_has(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call may bring far more bytes than its struct has fields for."""
    monkeypatch.setattr(decoder_module, "_KEPT", 1 << 20)
    decoder = Decoder(catalog)
    for n in range(70):
        decoder.line(record(key="0x2080012b", par0=(n.to_bytes(4, "little") + bytes(1 << 16)).hex()))
    held = [data for _, *key in decoder._parts for data in key if data is not None]
    assert held
    assert sum(map(len, held)) <= 1 << 20


def test_every_call_is_decoded_as_far_as_public_facts_go(trace: Path, catalog: Catalog) -> None:
    decoder = Decoder(catalog)
    nameless = set()
    truncated = 0
    for rec in Reader(trace):
        obj = decoder.record(rec)
        orjson.dumps(obj)
        notes = obj.get("notes", [])
        truncated += sum(note.startswith("truncated") for note in notes)
        for part in ("arg", "params"):
            if part in obj and obj[part]["struct"] is not None:
                assert "unknown" not in obj[part], obj
                assert "fields" in obj[part]
        if rec.k == "ioctl" and obj["name"] is None:
            nameless.add(rec.key)
        if NO_LAYOUT in notes:
            assert rec.key & 0x8000 or rec.key in NO_HEADER
        assert not any(
            said in note for note in notes for said in ("bytes were recorded", "paramsSize says", "its bytes")
        )
    assert nameless <= NO_HEADER | {number for number in nameless if number & 0x8000}
    name = trace.name.split(".")[0]
    assert (decoder.counts[NO_LAYOUT], decoder.counts[NOT_RECORDED]) == NOT_KNOWN[name]
    assert truncated == (1 if name == "nvidia-smi-q" else 0)
    if truncated:
        assert decoder.counts["truncated at 65536 of 67396"] == 1


def test_the_fast_reader_agrees_with_construct_on_every_struct(trace: Path, catalog: Catalog) -> None:
    """The slower of the two is construct: each struct's distinct bytes once, a few of each."""
    seen: Counter[int] = Counter()
    constructs: dict[int, Any] = {}
    compared = 0
    for rec in Reader(trace):
        if rec.k != "ioctl":
            continue
        for shape, data in (
            (catalog.outer(rec), rec.top),
            (catalog.shape(rec.kind, rec.key) if rec.par0 is not None else None, rec.par),
        ):
            if (
                shape is None
                or data is None
                or len(data) < shape.size
                or seen[id(shape)] >= (1 if shape.size > 2000 else 4)
            ):
                continue
            seen[id(shape)] += 1
            constructs.setdefault(id(shape), through_construct(shape.layout))
            assert shape.read(data) == plain(constructs[id(shape)].parse(data)), shape.name
            compared += 1
    assert compared >= 20


def test_an_event_buffer_with_its_roles(traces: dict[str, Path], catalog: Catalog) -> None:
    decoder = Decoder(catalog)
    rec = next(rec for rec in Reader(traces["event-buffer-chain"]) if rec.key == 0x90CD)
    obj = decoder.record(rec)
    params = obj["params"]
    assert obj["name"] == "NV_EVENT_BUFFER"
    assert params["struct"] == "NV_EVENT_BUFFER_ALLOC_PARAMETERS"
    assert params["modelled"]
    assert params["roles"]["notificationHandle"] == "fd"
    assert params["roles"]["hBufferHeader"] == "handle"
    assert params["roles"]["bufferHeader"] == "opaque"
    assert params["fields"]["recordSize"] == 0x20
    assert set(params["fields"]) == {field.name for field in catalog.shape("alloc", 0x90CD).layout.fields}  # type: ignore[union-attr]


def test_only_changed_fields_stand_after_the_call(traces: dict[str, Path], catalog: Catalog) -> None:
    rec = next(rec for rec in Reader(traces["nvidia-smi"]) if rec.kind == "control" and rec.key == 0x21B)
    obj = Decoder(catalog).record(rec)
    assert obj["params"]["struct"] == "NV0000_CTRL_GPU_GET_PCI_INFO_PARAMS"
    assert obj["params"]["fields"] == {"gpuId": 6, "domain": 0, "bus": 0, "slot": 0}
    assert obj["params"]["changed"] == {"slot": 6}


def test_structs_are_found_by_message_id_then_by_name(catalog: Catalog) -> None:
    # Structs that the naming rule alone would miss: their headers derive the number from another name's MESSAGE_ID.
    by_id = {
        name: struct
        for name, struct in catalog.release.params.items()
        if struct not in (name.replace("_CTRL_CMD_", "_CTRL_", 1) + "_PARAMS",)
    }
    checked = 0
    for name, struct in by_id.items():
        number = catalog.release.constants[name]
        if (
            struct in catalog.release.structs
            and catalog.name("control", number) == name
            and number not in catalog.rules("control")
        ):
            assert catalog.shape("control", number).name == struct  # type: ignore[union-attr]
            checked += 1
    assert checked > 20
    for number in (0x2080016D, 0x2080017B, 0x906F0101):
        assert "_CMD_" not in (catalog.name("control", number) or "")
        assert catalog.shape("control", number) is not None
    assert catalog.shape("alloc", 0xC639).name == "NVC639_ALLOCATION_PARAMETERS"  # type: ignore[union-attr]


def test_a_number_that_was_reused_has_the_name_of_its_release() -> None:
    assert (Catalog("570.211.01").name("control", 0x20801358) or "").endswith("INFOROM_SUPPORT")
    assert (Catalog("575.51.02").name("control", 0x20801358) or "").endswith("STATUS")


def test_values_are_named_where_headers_define_them(trace: Path, catalog: Catalog) -> None:
    """Every name stands for the value beside it: one constant, or bits that add up."""
    decoder = Decoder(catalog)
    for rec in Reader(trace):
        obj = decoder.record(rec)
        for part in (obj[name] for name in ("arg", "params") if "names" in obj.get(name, {})):
            for path, name in part["names"].items():
                values = []
                for side in ("changed", "fields"):
                    value: Any = part.get(side, {})
                    for step in path.split("."):
                        value = value.get(step) if isinstance(value, dict) else None
                    values.append(value)
                parts = [
                    int(word, 16) if word.startswith("0x") else catalog.release.constants[word]
                    for word in name.split("|")
                ]
                assert sum(parts) in values, (path, name)


def test_enumerations_flags_and_what_is_neither(catalog: Catalog) -> None:
    def names(struct: str, field: str) -> Any:
        layout = catalog.release.structs[struct]
        leaf = next(leaf for leaf in layout.leaves() if leaf.path == field)
        return catalog.named_values(leaf, struct)

    action = names("NV2080_CTRL_EVENT_SET_NOTIFICATION_PARAMS", "action")
    assert action[1] == "NV2080_CTRL_EVENT_SET_NOTIFICATION_ACTION_SINGLE"
    flags = names("NV0050_CTRL_MEMSET_PARAMS", "flags")
    assert is_bits(flags)
    assert _flags(0x15, flags) == "NV0050_CTRL_MEMSET_FLAGS_ASYNC|NV0050_CTRL_MEMSET_FLAGS_PIPELINED|0x10"
    # These are numbers within bit ranges: 1 stands for four things.
    assert names("NVOS33_PARAMETERS", "flags") is None
    assert names("NV0073_CTRL_SYSTEM_GET_NUM_HEADS_PARAMS", "flags") is None


def test_xfer_is_unwrapped_once(catalog: Catalog) -> None:
    inner = bytes(range(32))
    wrapper = (0x2A).to_bytes(4, "little") + (32).to_bytes(4, "little") + (0x7000).to_bytes(8, "little")
    obj = Decoder(catalog).record(
        record(req="0xc01046d3", kind="fe", key="0xd3", top0=wrapper.hex(), bufs=[[8, inner.hex()]])
    )
    assert obj["via_xfer"]["name"] == "NV_ESC_RM_CONTROL"
    assert obj["via_xfer"]["arg"]["struct"] == "NVOS54_PARAMETERS"
    assert obj["via_xfer"]["arg"]["fields"]["cmd"] == 0x0B0A0908
    nested = (0xD3).to_bytes(4, "little") + wrapper[4:]
    obj = Decoder(catalog).record(record(req="0xc01046d3", kind="fe", key="0xd3", top0=nested.hex()))
    assert "a wrapper inside a wrapper: the driver refuses it" in obj["notes"]


def test_attach_gpus_takes_any_number_of_ids(catalog: Catalog) -> None:
    for size, ids in ((128, 32), (4, 1), (6, 1)):
        obj = Decoder(catalog).record(record(req=hex(0xC00046D4 | size << 16), kind="fe", key="0xd4", top0="00" * size))
        assert len(obj["arg"]["fields"]["gpu_ids"]) == ids


def test_lying_sizes_are_notes(catalog: Catalog) -> None:
    top = (
        (1).to_bytes(4, "little") * 2
        + (0x102).to_bytes(4, "little")
        + bytes(4)
        + (0x7000).to_bytes(8, "little")
        + (8).to_bytes(4, "little")
        + bytes(4)
    )
    size = catalog.shape("control", 0x102).size  # type: ignore[union-attr]
    for recorded, said in (
        (8, f"is {size} bytes, 8 were recorded"),
        (size, f"paramsSize says 8, NV0000_CTRL_SYSTEM_GET_CPU_INFO_PARAMS is {size} bytes"),
    ):
        obj = Decoder(catalog).record(record(top0=top.hex(), par0="01" * recorded))
        assert any(said in note for note in obj["notes"]), obj["notes"]
    obj = Decoder(catalog).record(record(top0=top.hex(), par0="01" * (size + 3)))
    assert obj["params"]["unknown"] == 3
    obj = Decoder(catalog).record(record(key="0x103", top0=top.hex()))
    assert "the record says 0x103, its bytes 0x102" in obj["notes"]


def test_without_bytes_the_command_is_said_to_be_unknown(catalog: Catalog) -> None:
    obj = Decoder(catalog).record(record(kind="fe", key="0x2a"))
    assert obj["name"] == "NV_ESC_RM_CONTROL"
    assert obj["notes"] == ["not recorded", "the command is in the argument, which this trace does not hold"]


@given(
    st.sampled_from(["fe", "control", "alloc", "uvm", "other"]),
    st.sampled_from([0x2A, 0x2B, 0xD3, 0xD4, 0xC8, 0x102, 0x101, 0x90CD, 0x80, 0x1B, 0x4C, 0x20800102, 0xFFFFFFFF]),
    st.sampled_from([0xC020462A, 0xC030462B, 0xC020462B, 0xC01046D3, 0xC08046D4, 0xC90046C8, 0x1B, 0]),
    st.none() | st.binary(max_size=200),
    st.none() | st.binary(max_size=200),
    st.none() | st.binary(max_size=700),
    st.none() | st.binary(max_size=700),
    st.integers(0, 7),
)
def test_no_bytes_make_it_fail(
    kind: str, key: int, req: int, top0: Any, top1: Any, par0: Any, par1: Any, fl: int
) -> None:
    fields = {"top0": top0, "top1": top1, "par0": par0, "par1": par1}
    hexed = {name: data.hex() for name, data in fields.items() if data is not None}
    obj = Decoder(_CATALOG).record(record(kind=kind, key=hex(key), req=hex(req), fl=fl, **hexed))
    json.loads(orjson.dumps(obj))


_CATALOG = Catalog("580.159.04")

_BASES = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "s8": 1, "s16": 2, "s32": 4, "s64": 8, "ptr": 8}


@st.composite
def layouts(draw: st.DrawFn, depth: int = 2) -> Layout:
    """Records as C would lay them out, with gaps, unions, arrays of records and of more than one dimension."""
    kind = draw(st.sampled_from(["struct", "struct", "union"]))
    fields, end, size = [], 0, 0
    for index in range(draw(st.integers(1, 4))):
        dims = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
        count = 1
        for n in dims:
            count *= n
        record = draw(layouts(depth - 1)) if depth and draw(st.booleans()) else None
        base = "record" if record is not None else draw(st.sampled_from(sorted(_BASES)))
        width = record.size if record is not None else _BASES[base]
        offset = 0 if kind == "union" else end + draw(st.integers(0, 2))
        ctype = "char" if base == "s8" and draw(st.booleans()) else "T"
        fields.append(Field(f"f{index}", offset, width * count, ctype, base, dims, record))
        end = offset + width * count
        size = max(size, end)
    return Layout("R", kind, size + draw(st.integers(0, 2)), 1, tuple(fields))


@given(layouts(), st.data())
def test_generated_readers_agree_with_construct_on_any_layout(layout: Layout, data: st.DataObject) -> None:
    raw = data.draw(st.binary(min_size=layout.size, max_size=layout.size + 3))
    assert reader(layout)(raw) == plain(through_construct(layout).parse(raw))


@given(layouts(), st.data())
def test_short_bytes_give_the_fields_that_are_whole(layout: Layout, data: st.DataObject) -> None:
    raw = data.draw(st.binary(min_size=layout.size, max_size=layout.size))
    cut = data.draw(st.integers(0, layout.size))
    whole = reader(layout)(raw)
    for name, value in partial(layout, raw[:cut]).items():
        if isinstance(value, dict):
            assert value.keys() <= whole[name].keys()
        else:
            assert value == whole[name]
    assert partial(layout, raw) == whole


@given(layouts(), st.data())
def test_changes_are_what_differs(layout: Layout, data: st.DataObject) -> None:
    size = layout.size
    before, after = (reader(layout)(data.draw(st.binary(min_size=size, max_size=size))) for _ in range(2))
    assert changes(before, before) == {}
    assert bool(changes(before, after)) == (before != after)


@pytest.mark.parametrize("text", ["", "banana", "580", "580.1.2.3", "\x1b[2J"])
def test_a_driver_that_is_no_version_is_refused(text: str) -> None:
    from nvproxy_model.errors import UnknownDriverVersion

    with pytest.raises(UnknownDriverVersion):
        Catalog(text)
