"""gVisor's tables against recorded driver facts: right trees of our own, and each way to be wrong."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nvproxy_model.drivers import facts
from nvproxy_model.drivers.gvisor.checkout import read
from nvproxy_model.drivers.gvisor.layouts import compare_layouts
from nvproxy_model.drivers.gvisor.parity import KINDS, NOTES, Parity, compare, release_name
from nvproxy_model.layout import Field, Layout
from nvproxy_model.tools.driver_differ import main
from tests.drivers import driver_world
from tests.drivers.gvisor.gvisor_trees import BARE, MODERN, NVGPU, write
from tests.schemas import document

KNOWN_AT_ALL = {"535.104.05", "545.23.06", "580.105.08", "590.44.01", "590.48.01"}


@pytest.fixture(scope="module")
def recorded() -> facts.Facts:
    return facts.load()


def parity(root: Path, recorded: facts.Facts) -> Parity:
    nvproxy = read(root)
    releases = {v: recorded.release(tag) for v in nvproxy.versions if (tag := release_name(v, recorded.versions))}
    return compare(nvproxy, releases)


def found(report: Parity) -> set[tuple[str, str]]:
    return {(finding.kind, finding.name) for finding in report.findings}


def without_union(report: Parity) -> set[tuple[str, str]]:
    """The tree's NVOS32AllocSize is gVisor's own, 8 bytes short since 550.40.07: one known finding."""
    return found(report) - {("union-member-differs", "NVOS32AllocSize")}


def test_a_right_tree(tmp_path: Path, recorded: facts.Facts) -> None:
    report = parity(write(tmp_path), recorded)
    assert without_union(report) == set()
    assert [(f.kind, f.name, f.versions) for f in report.notes if f.kind == "number-unnamed"] == [
        ("number-unnamed", "control UNKNOWN_CONTROL_COMMAND_80028B", ("535.104.05", "580.105.08"))
    ]
    assert {(v.version, v.status, v.rows, v.structs) for v in report.versions} == {
        ("535.104.05", "same", 9, 7),
        ("580.105.08", "different", 9, 7),
        ("590.44.01", "different", 8, 7),
        ("590.48.01", "different", 8, 7),
    }


def test_the_member_of_the_union_that_grew(tmp_path: Path, recorded: facts.Facts) -> None:
    """NVOS32_PARAMETERS.data.AllocSize has 120 bytes since 550.40.07; the struct's own size does not tell."""
    report = parity(write(tmp_path), recorded)
    sizes = [(f.base, f.next, f.versions) for f in report.findings if f.detail == "NVOS32_PARAMETERS.AllocSize: size"]
    assert sizes == [(112, 120, ("580.105.08", "590.44.01", "590.48.01"))]
    right = NVGPU.replace(
        "CtagOffset      uint32\n}", "CtagOffset      uint32\n\tNumaNode        int32\n\tPad1 [4]byte\n}"
    )
    report = parity(write(tmp_path / "b", nvgpu=right), recorded)
    assert [f.versions for f in report.findings if f.detail.endswith("size")] == [("535.104.05",)]


@pytest.mark.parametrize(
    ("go", "old", "new", "expected"),
    [
        (NVGPU, "NV_ESC_RM_FREE = 0x29", "NV_ESC_RM_FREE = 0x28", {("number-differs", "frontend NV_ESC_RM_FREE")}),
        (NVGPU, "HObjectOld    Handle\n", "HObjectOld    uint32\n", {("handle-differs", "frontend NV_ESC_RM_FREE")}),
        (NVGPU, "HObjectOld    Handle\n", "Pad [4]byte\n", {("field-missing", "frontend NV_ESC_RM_FREE")}),
        (NVGPU, "HObjectOld    Handle\n", "HObjectOld [2]uint16\n", {("handle-differs", "frontend NV_ESC_RM_FREE")}),
        (
            NVGPU,
            "HObjectOld    Handle\n",
            "HObjectOld    Handle\n\tMore uint32\n",
            {("size-differs", "frontend NV_ESC_RM_FREE"), ("field-extra", "frontend NV_ESC_RM_FREE")},
        ),
        (
            NVGPU,
            "Status        uint32\n}\n\ntype Ioctl",
            "Status [2]uint16\n}\n\ntype Ioctl",
            {("type-differs", "frontend NV_ESC_RM_FREE")},
        ),
        (NVGPU, "CtlFD int32", "CtlFD uint32", {("sign-differs", "frontend NV_ESC_REGISTER_FD")}),
        (NVGPU, "SubDeviceID uint32", "Other uint32", set()),  # a note only
        (
            MODERN,
            '"nv_ioctl_register_fd_t"',
            '"nv_ioctl_registerfd_t"',
            {("struct-missing", "frontend NV_ESC_REGISTER_FD")},
        ),
        (
            MODERN,
            '"NV2080_CTRL_CMD_GPU_GET_ID"',
            '"NV2080_CTRL_CMD_GPU_FETCH_ID"',
            {("name-missing", "control NV2080_CTRL_CMD_GPU_GET_ID")},
        ),
        (MODERN, "UVM_FREE_PARAMS], compUtil", "UVM_FREE_PARAMS_V590], compUtil", {("handler-struct", "uvm UVM_FREE")}),
        (
            MODERN,
            "uvmHandler(uvmIoctlSimple[nvgpu.UVM_FREE_PARAMS_V590], compUtil)",
            "uvmHandler(uvmIoctlSimple[nvgpu.UVM_FREE_PARAMS_V590], nvconf.CapVideo)",
            set(),  # the flip is a note
        ),
        (
            MODERN,
            'nvgpu.UVM_DEINITIALIZE: simpleIoctlInfo("UVM_DEINITIALIZE"),',
            "",
            {("rows-unmatched", "uvm UVM_DEINITIALIZE")},
        ),
    ],
)
def test_each_way_to_be_wrong(
    tmp_path: Path, recorded: facts.Facts, go: str, old: str, new: str, expected: set[tuple[str, str]]
) -> None:
    assert old in go
    changed = go.replace(old, new, 1)
    root = write(tmp_path, changed) if go is MODERN else write(tmp_path, nvgpu=changed)
    assert without_union(parity(root, recorded)) == expected


def test_notes(tmp_path: Path, recorded: facts.Facts) -> None:
    nvgpu = NVGPU.replace("SubDeviceID uint32", "Other uint32")
    version = MODERN.replace("UVM_FREE_PARAMS_V590], compUtil)", "UVM_FREE_PARAMS_V590], nvconf.CapVideo)")
    version = version.replace(
        "delete(abi.controlCmd, nvgpu.UNKNOWN_CONTROL_COMMAND_80028B)",
        "delete(abi.controlCmd, nvgpu.NV2080_CTRL_CMD_GPU_GET_ID)",
    )
    version = version.replace(
        "delete(info.ControlInfos, nvgpu.UNKNOWN_CONTROL_COMMAND_80028B)",
        "delete(info.ControlInfos, nvgpu.NV2080_CTRL_CMD_GPU_GET_ID)",
    )
    report = parity(write(tmp_path, version, nvgpu), recorded)
    notes = {(f.kind, f.name, f.detail, f.versions[0]) for f in report.notes}
    assert ("caps-flip", "uvm UVM_FREE", "+video -compute -utility (parent 580.105.08)", "590.44.01") in notes
    assert (
        "row-dropped",
        "control NV2080_CTRL_CMD_GPU_GET_ID",
        "the driver still has NV2080_CTRL_CMD_GPU_GET_ID",
        "590.44.01",
    ) in notes
    assert (
        "name-differs",
        "alloc NV20_SUBDEVICE_0",
        "NV2080_ALLOC_PARAMETERS (NV2080_ALLOC_PARAMETERS): at 0",
        "535.104.05",
    ) in notes


def test_a_simple_struct_that_holds_a_pointer(tmp_path: Path, recorded: facts.Facts) -> None:
    """NV0000_CTRL_GPU_GET_ID_INFO_PARAMS.szName is an NvP64: as a simple control it would leak a guest's address."""
    version = MODERN.replace("GPU_GET_ID_INFO_V2", "GPU_GET_ID_INFO")
    nvgpu = NVGPU.replace("NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2 = 0x205", "NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2X = 0x205")
    report = parity(write(tmp_path, version, nvgpu), recorded)
    simple = [f for f in report.findings if f.kind == "simple-pointer"]
    assert [(f.name, f.versions[0], len(f.versions)) for f in simple] == [
        ("control NV0000_CTRL_CMD_GPU_GET_ID_INFO", "535.104.05", 4)
    ]
    assert "szName" in simple[0].detail


@pytest.mark.parametrize(
    ("kind", "name", "number"),
    [("simple-fd", "OS_UNIX_EXPORT_OBJECT_TO_FD", 0x3D05), ("simple-pid", "SET_SUB_PROCESS_ID", 0x901)],
)
def test_a_simple_struct_that_holds(tmp_path: Path, recorded: facts.Facts, kind: str, name: str, number: int) -> None:
    version = MODERN.replace("NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2", f"NV0000_CTRL_CMD_{name}")
    version = version.replace("NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS", f"NV0000_CTRL_{name}_PARAMS")
    nvgpu = NVGPU.replace("NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2 = 0x205", f"NV0000_CTRL_CMD_{name} = {number:#x}")
    report = parity(write(tmp_path, version, nvgpu), recorded)
    assert (kind, f"control NV0000_CTRL_CMD_{name}") in found(report)


def test_an_entry_at_a_version_where_the_driver_lacks_it(tmp_path: Path, recorded: facts.Facts) -> None:
    version = MODERN.replace("NV2080_CTRL_CMD_GPU_GET_ID", "NV0000_CTRL_CMD_GPU_ASYNC_ATTACH_ID")
    version = version.replace("NV2080_CTRL_GPU_GET_ID_PARAMS", "NV0000_CTRL_GPU_ASYNC_ATTACH_ID_PARAMS")
    nvgpu = NVGPU.replace(
        "NV2080_CTRL_CMD_GPU_GET_ID         = 0x20800142", "NV0000_CTRL_CMD_GPU_ASYNC_ATTACH_ID = 0x289"
    )
    report = parity(write(tmp_path, version, nvgpu), recorded)
    missing = {(f.kind, f.versions) for f in report.findings if "ASYNC_ATTACH" in f.name}
    assert missing == {("name-missing", ("535.104.05",)), ("struct-missing", ("535.104.05",))}


def test_a_misspelt_struct_gets_the_name_that_was_meant(tmp_path: Path, recorded: facts.Facts) -> None:
    version = MODERN.replace('"NV2080_CTRL_GPU_GET_ID_PARAMS"', '"NV0080_CTRL_GR_GET_CAPS_PARAMS_V2"')
    report = parity(write(tmp_path, version), recorded)
    details = {f.detail for f in report.findings if f.kind == "struct-missing"}
    assert details == {
        "NV0080_CTRL_GR_GET_CAPS_PARAMS_V2 is not defined; did you mean NV0080_CTRL_GR_GET_CAPS_V2_PARAMS?"
    }


def test_constants_beside_the_tables(tmp_path: Path, recorded: facts.Facts) -> None:
    more = {"pkg/abi/nvgpu/more.go": "package nvgpu\nconst UVM_MAX_GPUS = 32\nconst NV_MAX_DEVICES = 33\n"}
    report = parity(write(tmp_path, more=more), recorded)
    constants = {
        (f.name, f.detail, f.base, f.next, f.versions) for f in report.findings if f.kind == "constant-differs"
    }
    assert constants == {
        ("NV_MAX_DEVICES", "value", 33, 32, ("535.104.05", "580.105.08", "590.44.01", "590.48.01")),
        (
            "UVM_MAX_GPUS",
            "value; 32 is the driver's UVM_MAX_GPUS_V1",
            32,
            256,
            ("580.105.08", "590.44.01", "590.48.01"),
        ),
    }


P2P = """
type NV503B_BAR1_P2P_DMA_INFO struct {
	DmaAddress uint64
	DmaSize    uint64
}

type NV503B_ALLOC_PARAMETERS struct {
	HSubDevice, HPeerSubDevice                         Handle
	SubDevicePeerIDMask, PeerSubDevicePeerIDMask       uint32
	MailboxBar1Addr                                    uint64
	MailboxTotalSize, Flags                            uint32
	SubDeviceEgmPeerIDMask, PeerSubDeviceEgmPeerIDMask uint32
	L2pBar1P2PDmaInfo, P2lBar1P2PDmaInfo               NV503B_BAR1_P2P_DMA_INFO
}
"""
P2P_V590 = """
type NV503B_ALLOC_PARAMETERS_V590 struct {
	NV503B_ALLOC_PARAMETERS
	L2pFabricP2PInfo, P2lFabricP2PInfo uint64
}
"""


def test_types_beside_the_tables_by_their_variant(tmp_path: Path, recorded: facts.Facts) -> None:
    """NV503B_ALLOC_PARAMETERS grew at 590.44.01, and no row of the tree names it."""
    report = parity(write(tmp_path, nvgpu=NVGPU + P2P), recorded)
    assert {
        (f.kind, f.base, f.next, f.versions) for f in report.findings if f.name == "NV503B_ALLOC_PARAMETERS" and f.base
    } == {("size-differs", 72, 88, ("590.44.01", "590.48.01"))}
    assert without_union(parity(write(tmp_path / "b", nvgpu=NVGPU + P2P + P2P_V590), recorded)) == set()


def test_before_rows_named_structs(tmp_path: Path, recorded: facts.Facts) -> None:
    """January 2024: names come from Go types and from the controls' rule; the rest is listed."""
    report = parity(write(tmp_path, BARE, caps=None), recorded)
    assert without_union(report) == set()
    assert sorted({f.name for f in report.notes if f.kind == "no-struct-named"}) == [
        "control 0x80028b",
        "frontend NV_ESC_RM_FREE",
    ]
    bad = NVGPU.replace("Length   uint64", "Length   uint32")
    assert ("field-extra", "uvm UVM_FREE") in found(parity(write(tmp_path / "b", BARE, bad, caps=None), recorded))


def test_a_version_without_public_source(tmp_path: Path, recorded: facts.Facts) -> None:
    report = parity(write(tmp_path, MODERN.replace("580, 105, 8,", "580, 173, 2,")), recorded)
    row = next(v for v in report.versions if v.version == "580.173.02")
    assert (row.status, row.reason) == ("not-checkable", "no public source of this release")


def test_versions_as_the_driver_spells_them() -> None:
    assert release_name("550.100", ["550.100"]) == "550.100"
    assert release_name("550.67.00", ["550.67"]) == "550.67"
    assert release_name("550.68.00", ["550.67"]) is None


def _layout(*fields: Field, size: int) -> Layout:
    return Layout("S", "struct", size, 8, fields)


def test_a_hidden_member_in_padding() -> None:
    """bAllowMmap of the dma-buf export took a byte of padding at 580: neither size nor any old offset tells."""
    driver = _layout(
        Field("a", 0, 1, "NvU8", "u8"),
        Field("bAllowMmap", 1, 1, "NvBool", "u8"),
        Field("b", 4, 4, "NvU32", "u32"),
        size=8,
    )
    go = _layout(
        Field("A", 0, 1, "uint8", "u8"),
        Field("Pad0", 1, 3, "byte", "u8", (3,)),
        Field("B", 4, 4, "uint32", "u32"),
        size=8,
    )
    assert [(d.kind, d.next) for d in compare_layouts(go, driver)] == [("field-missing", 1)]


def test_a_pointer_on_one_side_only() -> None:
    go, driver = _layout(Field("P", 0, 8, "uint64", "u64"), size=8), _layout(Field("p", 0, 8, "NvP64", "ptr"), size=8)
    assert [d.kind for d in compare_layouts(go, driver)] == ["pointer-differs"]
    assert [d.kind for d in compare_layouts(driver, go)] == ["pointer-differs"]


_CTYPES = {
    "NvU8": "u8",
    "NvU16": "u16",
    "NvU32": "u32",
    "NvS32": "s32",
    "NvU64": "u64",
    "NvP64": "ptr",
    "NvHandle": "u32",
}
_GOTYPES = {
    "NvU8": "uint8",
    "NvU16": "uint16",
    "NvU32": "uint32",
    "NvS32": "int32",
    "NvU64": "uint64",
    "NvP64": "P64",
    "NvHandle": "Handle",
}
_members = st.lists(
    st.tuples(st.sampled_from(list(_CTYPES)), st.lists(st.integers(1, 4), max_size=2)), min_size=1, max_size=8
)


def _both(members: list[tuple[str, list[int]]]) -> tuple[Layout, Layout]:
    """The same struct as gVisor and as the driver would declare it."""
    go, driver, offset = [], [], 0
    for number, (kind, dims) in enumerate(members):
        width = 8 if _CTYPES[kind] == "ptr" else int(_CTYPES[kind][1:]) // 8
        padded = -(-offset // width) * width
        if padded != offset:
            go.append(Field(f"Pad{number}", offset, padded - offset, "byte", "u8", (padded - offset,)))
        size = width * math.prod(dims)
        go.append(Field(f"F{number}", padded, size, _GOTYPES[kind], _CTYPES[kind], tuple(dims)))
        driver.append(Field(f"f{number}", padded, size, kind, _CTYPES[kind], tuple(dims)))
        offset = padded + size
    size = -(-offset // 8) * 8
    return Layout("S", "struct", size, 8, tuple(go)), Layout("S", "struct", size, 8, tuple(driver))


@given(_members)
def test_equal_structs_have_no_difference(members: list[tuple[str, list[int]]]) -> None:
    go, driver = _both(members)
    assert list(compare_layouts(go, driver)) == []


@given(_members, st.data())
def test_every_change_of_a_member_is_found(members: list[tuple[str, list[int]]], data: st.DataObject) -> None:
    """A member that is gone, that moved, or that is of another kind -- but for bytes, which may stand for anything."""
    go, driver = _both(members)
    index = data.draw(st.integers(0, len(driver.fields) - 1))
    field = driver.fields[index]
    how = data.draw(st.sampled_from(["gone", "moved", "pointer", "sign", "handle"]))
    fields = list(driver.fields)
    if how == "gone":
        del fields[index]
    elif how == "moved":
        fields[index] = field._replace(offset=field.offset + max(8, field.size))
    elif how == "pointer":
        base, kind = ("u64", "NvU64") if field.base == "ptr" else ("ptr", "NvP64")
        fields[index] = field._replace(base=base, type=kind)
    elif how == "sign":
        assume(field.base in ("u16", "u32", "u64", "s32"))
        fields[index] = field._replace(base=("s" if field.base[0] == "u" else "u") + field.base[1:])
    else:
        assume(field.base == "u32")
        fields[index] = field._replace(type="NvU32" if field.type == "NvHandle" else "NvHandle")
    assert [d for d in compare_layouts(go, driver._replace(fields=tuple(fields))) if d.kind not in NOTES]


def test_every_kind_is_explained() -> None:
    assert set(KINDS) >= NOTES
    assert all(KINDS.values())


# The command.


def test_exit_statuses_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right = NVGPU[: NVGPU.index("type NVOS32AllocSize")]
    assert main(["gvisor", str(write(tmp_path / "same", nvgpu=right)), "--json"]) == 0
    report = document(capsys.readouterr().out)
    assert (report["schema"], report["verdict"], report["findings"], report["unread"]) == (
        "nvproxy-differ/gvisor/1",
        "same",
        [],
        [],
    )
    assert report["summary"]["same"] == 4
    assert main(["gvisor", str(write(tmp_path / "different")), "--json"]) == 1
    report = document(capsys.readouterr().out)
    assert [f["base"] for f in report["findings"] if f["detail"].endswith("size")] == [112]
    assert (
        main(["gvisor", str(write(tmp_path / "unread", MODERN.replace("// CHANGES", "for {\n}"), right)), "--json"])
        == 2
    )
    report = document(capsys.readouterr().out)
    assert (report["verdict"], [u["why"] for u in report["unread"]]) == (
        "unknown",
        ["a statement of kind for_statement"],
    )
    nothing = re.sub(r"v(5\d\d)_", r"w\1_", re.sub(r"ABI\(5(\d\d),", r"ABI(1,", MODERN))
    assert main(["gvisor", str(write(tmp_path / "none", nothing, right))]) == 2
    text = capsys.readouterr().out
    assert "verdict: unknown" in text
    assert "0 of 4 versions" in text


def test_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gvisor", str(write(tmp_path)), "--notes"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(
        line.startswith(
            "union-member-differs  NVOS32AllocSize: NVOS32_PARAMETERS.AllocSize: size (gvisor 112, driver 120)"
        )
        for line in lines
    )
    assert any(line.startswith("number-unnamed ") for line in lines)
    assert lines[-1].startswith("verdict: different: 2 findings, ")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["/nonexistent"], "/nonexistent: not a directory"),
        ([""], "an empty name"),
        (["{root}", "--rev", "x"], "neither a gVisor checkout"),
        (["{root}", "--against", "model", "--source", "x"], "--source"),
        (["{root}", "--source", "/nonexistent"], "/nonexistent"),
    ],
)
def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str) -> None:
    root = str(write(tmp_path))
    with pytest.raises(SystemExit) as ended:
        main(["gvisor", *(argument.format(root=root) for argument in arguments)])
    assert ended.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert complaint in captured.err
    assert captured.err.count("\n") == 1


def test_text_from_the_tree_cannot_drive_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    version = MODERN.replace('"NV2080_CTRL_GPU_GET_ID_PARAMS"', '"NV2080\x1b[31m\u202e"')
    assert main(["gvisor", str(write(tmp_path, version))]) == 1
    text = capsys.readouterr().out
    assert "NV2080\\x1b[31m\\u202e is not defined" in text
    assert "\x1b" not in text


def test_driver_sources_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tree of headers in which the freed object is gone from NVOS00_PARAMETERS."""
    headers = driver_world.tree(
        "#define NV01_MEMORY_SYSTEM (0x3e)\n"
        "typedef struct { NvHandle hRoot; NvHandle hObjectParent; NvU32 status; } NVOS00_PARAMETERS;",
        "580.105.08",
    )
    source = driver_world.write(tmp_path / "driver", headers)
    assert main(["gvisor", str(write(tmp_path / "gvisor")), "--source", str(source), "--json"]) == 1
    report = document(capsys.readouterr().out)
    assert report["summary"] == {
        "versions": 4,
        "same": 0,
        "different": 1,
        "not-checkable": 3,
        "findings": len(report["findings"]),
        "notes": len(report["notes"]),
        "unread": 0,
    }
    kinds = {(f["kind"], f["detail"]) for f in report["findings"] if f["name"] == "frontend NV_ESC_RM_FREE"}
    assert ("size-differs", "NVOS00_PARAMETERS (NVOS00_PARAMETERS): size") in kinds
    assert ("handle-differs", "NVOS00_PARAMETERS (NVOS00_PARAMETERS): HObjectOld at 8, the driver's status") in kinds


def test_against_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    version = MODERN.replace("feHandler(rmFree, compUtil)", "feHandler(rmFree, nvconf.CapVideo)")
    nvgpu = NVGPU.replace("UVM_FREE         = 34", "UVM_FREE         = 35")
    assert main(["gvisor", str(write(tmp_path, version, nvgpu)), "--against", "model", "--json"]) == 1
    report = document(capsys.readouterr().out)
    by_name = {(f["kind"], f["name"]): f for f in report["findings"]}
    assert by_name["caps-differ", "frontend NV_ESC_RM_FREE"]["next"] == "compute,utility"
    assert by_name["model-lacks", "uvm UVM_FREE"]["base"] == 35
    assert by_name["gvisor-lacks", "uvm UVM_FREE"]["next"] == 34
    assert by_name["gvisor-lacks", "frontend NV_ESC_RM_CONTROL"]["versions"] == [
        "535.104.05",
        "580.105.08",
        "590.44.01",
        "590.48.01",
    ]
    assert not [f for f in report["findings"] if f["kind"] in ("layout-differs", "struct-differs")]
    bad = NVGPU.replace("SubDeviceID uint32", "SubDeviceID uint64")
    assert main(["gvisor", str(write(tmp_path / "b", nvgpu=bad)), "--against", "model", "--json"]) == 1
    report = document(capsys.readouterr().out)
    assert {f["name"] for f in report["findings"] if f["kind"] == "layout-differs"} == {"alloc NV20_SUBDEVICE_0"}
