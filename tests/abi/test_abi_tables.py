"""The four tables of every release against nvproxy's own, entry by entry, and against the headers of every release."""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import yaml

from nvproxy_model import DefinitionError, abi, rules, structs, versions
from nvproxy_model.abi import constants
from nvproxy_model.caps import Caps
from nvproxy_model.drivers import facts
from nvproxy_model.drivers.release import control_struct
from nvproxy_model.fields import CStruct, Fd, Handle, OpaquePointer, Scalar, UserPointer
from nvproxy_model.rules import Rule, active
from nvproxy_model.versions import DriverVersion
from tests import DATA, ROOT

TREE = versions.load()
NODES = list(TREE.values())
RECORDED = facts.load()
CHECKABLE = [node for node in NODES if node.name in RECORDED.versions]
TABLES = {"frontend": abi.FRONTEND, "uvm": abi.UVM, "control": abi.CONTROL, "alloc": abi.ALLOC}
ROWS = [row for rows in TABLES.values() for row in rows]


def read(name: str) -> Any:
    return json.loads(lzma.decompress((DATA / name).read_bytes()))


class Fact(NamedTuple):
    """One entry of nvproxy's tables; ``nodes`` are the releases, by their place in the tree's file, that have it."""

    table: str
    number: int
    name: str
    caps: str
    struct: str | None
    size: int | None
    handler: str
    nodes: list[int]


ABI = read("nvproxy_abi.json.xz")
FACTS = [Fact(*row) for row in ABI["rows"]]

DEVIATIONS = yaml.safe_load((ROOT / "nvproxy_model/abi/known_deviations.yaml").read_text())
OURS_ALONE = {(entry["table"], entry["number"]): entry["why"] for entry in DEVIATIONS["ours_alone"]}
SLIPS = {(entry["table"], entry["number"], entry["version"]): entry["why"] for entry in DEVIATIONS["slips"]}
STRUCT_NAMES = {(entry["table"], entry["number"]): entry["why"] for entry in DEVIATIONS["struct_names"]}


def test_every_row_names_its_struct_with_the_module_that_defines_it() -> None:
    for row in ROWS:
        if row.header == "nvtypes":
            assert isinstance(row.params, Scalar)
            assert row.params.ctype == row.struct
        elif row.header is not None:
            assert isinstance(row.params, CStruct)
            assert (structs.home(str(row.struct)), row.params.ctype) == (f"structs/{row.header}.py", row.struct)


@pytest.mark.parametrize(
    "place", ["nvos.NVOS99_PARAMETERS", "cl90ce.NV_EVENT_BUFFER", "nvos.CStruct", ".NVOS54_PARAMETERS"]
)
def test_a_struct_that_no_module_defines_is_an_error_when_the_row_is_used(place: str) -> None:
    row = rules.alloc(0x90CD, "NV_EVENT_BUFFER", Caps.PROFILING, place)
    for use in (
        lambda: row.params,
        lambda: row.params_at(TREE["580.126.20"]),
        lambda: row.struct_at(TREE["580.126.20"]),
    ):
        with pytest.raises(DefinitionError, match=re.escape(place)):
            use()


def facts_at(node: DriverVersion) -> dict[tuple[str, int], Fact]:
    """nvproxy's entries; a release that it does not list is held to those of its nearest listed ancestor."""
    listed = [version for version, _ in ABI["nodes"]]
    place = listed.index(next(name for name in node.lineage if name in listed))
    return {(fact.table, fact.number): fact for fact in FACTS if place in fact.nodes}


def ours_at(node: DriverVersion) -> dict[tuple[str, int], Rule]:
    return {(name, number): row for name, rows in TABLES.items() for number, row in active(rows, node).items()}


class Kind(NamedTuple):
    """What a row does, read off its roles; nvproxy's handlers in these terms stand in `HANDLERS`."""

    handler: str | None = None
    fds: tuple[Any, ...] = ()
    pointers: tuple[Any, ...] = ()
    depends: tuple[Any, ...] = ()
    required: tuple[str, ...] = ()
    opaque: tuple[str, ...] = ()
    rejected: bool = False


def kind(row: Rule, node: DriverVersion) -> Kind:
    params = row.params_at(node)
    if not isinstance(params, CStruct):
        return Kind(row.handler, rejected=row.rejected)
    roles = [(path, member.role) for path, _, member in params.walk() if member.role is not None]
    return Kind(
        row.handler,
        tuple((r.file, r.null, r.negative, r.refuse) for _, r in roles if isinstance(r, Fd)),
        tuple(
            (r.mode, r.null, r.empty, r.refuse, r.late, r.limit, r.to.sizeof(), isinstance(r.count, tuple))
            for _, r in roles
            if isinstance(r, UserPointer) and r.to is not None
        ),
        tuple((path, r.null) for path, r in roles if isinstance(r, Handle) and r.depends),
        tuple(path for path, r in roles if isinstance(r, Handle) and r.required),
        tuple(
            name
            for _, r in roles
            if isinstance(r, OpaquePointer)
            for name in ("null_only", "cleared")
            if getattr(r, name)
        ),
        row.rejected,
    )


FRONTEND_FD = (("frontend", None, False, None),)
INVALID = constants.NV_ERR_INVALID_ARGUMENT
MIB = constants.RMAPI_PARAM_COPY_MAX_PARAMS_SIZE


def pointer(
    size: int, *, mode: str = "inout", null: str = "copy", empty: str = "refuse", **rest: Any
) -> tuple[Any, ...]:
    known = {"refuse": INVALID, "late": False, "limit": MIB, "square": False} | rest
    return (mode, null, empty, known["refuse"], known["late"], known["limit"], size, known["square"])


def depends(*names: str, null: tuple[int, ...] = (0,)) -> tuple[Any, ...]:
    return tuple((name, null) for name in names)


PEER_IDS = pointer(4, mode="out", null="forward", square=True)
STRING = pointer(1, mode="out", null="forward", late=True, refuse=None)
CHANNEL = Kind(depends=depends("hContextShare", "hVASpace"))
HANDLERS = {
    "ctrlClientSystemGetBuildVersion": Kind("get_build_version", pointers=(STRING, STRING, STRING)),
    "ctrlClientSystemGetP2PCaps": Kind(pointers=(PEER_IDS,)),
    "ctrlClientSystemGetP2PCapsV550": Kind(pointers=(PEER_IDS, PEER_IDS)),
    "ctrlDebugReadMemory": Kind(pointers=(pointer(1, mode="out", null="judge", empty="forward", limit=1 << 30),)),
    "ctrlDevFIFOGetChannelList": Kind(pointers=(pointer(4, refuse=None), pointer(4, refuse=None))),
    "ctrlDevGetCaps": Kind(pointers=(pointer(1, mode="out"),)),
    "ctrlGetNvU32List": Kind(pointers=(pointer(4, null="forward"),)),
    "ctrlGpuExecRegOps": Kind(pointers=(pointer(32, null="forward"),)),
    "ctrlGpuGetIDInfo": Kind(opaque=("cleared",)),
    "ctrlHasFrontendFD": Kind(fds=FRONTEND_FD),
    "ctrlIoctlHasInfoList": Kind(pointers=(pointer(8, empty="forward"),)),
    "ctrlMemoryMulticastFabricAttachGPU": Kind("in_only", fds=FRONTEND_FD),
    "ctrlRegisterVASpace": Kind("register_va_space", depends=depends("hVASpace")),
    "ctrlSubdevFIFODisableChannels": Kind(opaque=("null_only",)),
    "frontendExportToDMABufFD": Kind("export_to_dmabuf_fd", fds=(("dma-buf", None, True, None),)),
    "frontendIoctlBytes": Kind(),
    "frontendIoctlHasFD": Kind("os_event", fds=FRONTEND_FD),
    "frontendIoctlSimple": Kind(),
    "frontendIoctlSimpleNoStatus": Kind(),
    "frontendRegisterFD": Kind("in_only", fds=FRONTEND_FD),
    "rmAlloc": Kind("alloc", pointers=(pointer(4, null="forward", refuse=None),)),
    "rmAllocChannel": CHANNEL,
    "rmAllocChannelV570": CHANNEL,
    "rmAllocChannelV610": CHANNEL,
    "rmAllocChannelGroup": Kind(depends=depends("hVASpace")),
    "rmAllocContextDMA": Kind(depends=depends("hMemory")),
    "rmAllocContextDMA2": Kind("alloc_context_dma2"),
    "rmAllocContextShare": Kind(depends=depends("hVASpace")),
    "rmAllocEventBuffer": Kind(
        fds=(("frontend", 0, False, None),),
        depends=depends("hBufferHeader", "hRecordBuffer", "hVardataBuffer"),
        required=("hBufferHeader",),
    ),
    "rmAllocEventOSEvent": Kind(fds=FRONTEND_FD),
    "rmAllocIMEXSession": Kind(fds=(("open-only", None, False, None), *FRONTEND_FD)),
    "rmAllocMemory": Kind("alloc_memory", fds=FRONTEND_FD),
    "rmAllocMemoryVirtual": Kind(depends=depends("hVASpace", null=(0, 0xFFFFFFFF))),
    "rmAllocMulticastFabric": Kind(fds=(("frontend", 0, False, None),)),
    "rmAllocNoParams": Kind(),
    "rmAllocRootClient": Kind("root_client"),
    "rmAllocSMDebuggerSession": Kind(depends=depends("hClass3dObject")),
    "rmAllocSimple": Kind(),
    "rmControl": Kind("control"),
    "rmControlSimple": Kind(),
    "rmDupObject": Kind("dup_object"),
    "rmFree": Kind("free"),
    "rmIdleChannels": Kind(pointers=(pointer(4, empty="forward", refuse=None, late=True),) * 3),
    "rmMapMemory": Kind("map_memory", fds=FRONTEND_FD),
    "rmNumaInfo": Kind(rejected=True),
    "rmVidHeapControl": Kind("vid_heap_control", pointers=(pointer(8, null="forward", refuse=None),)),
    "uvmInitialize": Kind("uvm_initialize"),
    "uvmIoctlHasFrontendFD": Kind(fds=(("frontend", None, True, None),)),
    "uvmIoctlNoParams": Kind(),
    "uvmIoctlSimple": Kind(),
    "uvmMMInitialize": Kind(fds=(("uvm", None, False, INVALID),)),
}


MOVED = {"615.15.00": "610.57.04", "620.06.00": "615.62.00"}
"""Nodes whose parent gVisor changed after the followed revision; the nearest one that the revision has."""
GREW = {("alloc", 0xA06C): "615.71.09"}
"""Rows whose struct changed after it, and where."""


def test_the_facts_are_of_this_tree() -> None:
    listed = {version for version, _ in ABI["nodes"]}
    assert listed <= {node.name for node in NODES if node.later is None}
    for version, parent in ABI["nodes"]:
        above = next((name for name in TREE[version].lineage[1:] if name in listed), None)
        assert above == MOVED.get(version, parent)
    assert {fact.handler for fact in FACTS} == set(HANDLERS)


@pytest.mark.parametrize("node", NODES, ids=str)
def test_the_tables_are_nvproxy_s(node: DriverVersion) -> None:
    """Numbers, names, capabilities, structs and sizes, what each handler does; every difference is named above."""
    ours, theirs = ours_at(node), facts_at(node)
    slips = {(table, number) for table, number, version in SLIPS if version == node.name}
    assert theirs.keys() - ours.keys() == slips
    assert {key for key in ours.keys() - theirs.keys() if ours[key].later is None} <= OURS_ALONE.keys()
    # The facts were taken from the followed revision with this model's CHANGE applied.
    assert {ours[key].later for key in theirs if key in ours} <= {None, "14005", "13994"}
    for key, row in ours.items():
        if key not in theirs:
            continue
        fact = theirs[key]
        assert (row.name, ",".join(row.caps.names)) == (fact.name, fact.caps), row
        if key not in STRUCT_NAMES:
            assert row.struct_at(node) == fact.struct, row
        params = row.params_at(node)
        if fact.size is not None and fact.handler != "frontendIoctlBytes":
            assert params is not None, row
            assert params.sizeof() == fact.size or node.descends_from(GREW.get(key, "")), row
        assert kind(row, node) == HANDLERS[fact.handler], row
        assert (params is None) >= (fact.handler in ("rmAllocNoParams", "uvmIoctlNoParams", "rmNumaInfo"))


def test_every_named_difference_is_one() -> None:
    newest = ours_at(TREE["620.06.00"])
    assert set(OURS_ALONE) <= newest.keys() - facts_at(TREE["620.06.00"]).keys()
    for table, number, version in SLIPS:
        assert (table, number) in facts_at(TREE[version])
        assert (table, number) not in ours_at(TREE[version])


@pytest.mark.parametrize("node", NODES, ids=str)
def test_nothing_is_lost_on_the_way_down(node: DriverVersion) -> None:
    """A number that the parent has is gone only where nvproxy deletes it, or where a named slip has the row end."""
    if node.parent is None:
        return
    lost = ours_at(node.parent).keys() - ours_at(node).keys()
    deleted = facts_at(node.parent).keys() - facts_at(node).keys()
    slips = {(table, number) for table, number, version in SLIPS if version == node.name}
    assert lost == deleted | (slips & ours_at(node.parent).keys())
    for table, number in lost:
        ended = [row for row in TABLES[table] if row.number == number and node.name in row.until]
        assert len(ended) == 1, (table, number)


@pytest.mark.parametrize("node", CHECKABLE, ids=str)
def test_the_headers_confirm_every_row(node: DriverVersion) -> None:
    """The name has the number, the struct exists, and a control's struct is the one that its header derives the number from."""
    release = RECORDED.release(node.name)
    for (table, number), row in ours_at(node).items():
        if table == "control" and number in abi.UNPUBLISHED:
            assert row.name not in release.constants
            continue
        assert release.constants.get(row.name) == number, row
        struct = row.struct_at(node)
        if struct not in (None, "NvHandle", "NvU32"):
            assert struct in release.structs, row
        derived = control_struct(release, row.name) if table == "control" else None
        if derived is not None:
            assert struct is not None, row
            assert release.structs[struct] == release.structs[derived], row


@pytest.mark.parametrize("node", CHECKABLE, ids=str)
def test_what_passes_unexamined_holds_nothing_to_examine(node: DriverVersion) -> None:
    """Structs that rows know by name only have no pointer at that release, and no field that is named like a descriptor."""
    layouts = RECORDED.release(node.name).structs
    named = re.compile(r"(?i)(fd|descriptor|osevent|notificationhandle)$")
    for row in ours_at(node).values():
        struct = row.struct_at(node)
        if row.params is None and struct in layouts:
            found = [leaf.path for leaf in layouts[struct].leaves() if leaf.base == "ptr" or named.search(leaf.path)]
            assert not found, row


@pytest.mark.parametrize(
    ("version", "nearest"), [("570.86.16", "570.86.15"), ("580.105.08",) * 2, ("610.43.03", "610.43.02")]
)
def test_another_reading_of_the_headers_confirms_numbers(version: str, nearest: str) -> None:
    """tinygrad's generated constants, which go beyond the public sources with 610."""
    theirs = read("tinygrad_structs.json.xz")[version]["constants"]
    rows = [row for row in ours_at(TREE[nearest]).values() if row.name in theirs]
    assert len(rows) > 200
    assert [row.name for row in rows if theirs[row.name] != row.number] == []


DEPRECATED_SINCE = {
    "NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION": "535.104.05",
    "NV0080_CTRL_CMD_MSENC_GET_CAPS": "555.42.02",
    "NV2080_CTRL_CMD_BUS_GET_INFO": "555.42.02",
    "NV2080_CTRL_CMD_FB_GET_INFO": "555.42.02",
}
"""Controls with buffers that from there on another file copies: rmapi_deprecated_control.c."""
EMBEDDED_FORGOTTEN = {
    ("NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS", version): ("busEgmPeerIds",)
    for version in ("550.40.07", "550.54.14", "555.42.02")
}
"""User pointers that these releases write through without a copy (client_resource.c); 550.90.07 put them into the list."""


@pytest.mark.parametrize("node", CHECKABLE, ids=str)
def test_the_driver_s_own_list_of_embedded_pointers_agrees(node: DriverVersion) -> None:
    """embedded_param_copy.c names, for each control whose buffers the driver copies, the very fields that are UserPointers here."""
    embedded = RECORDED.release(node.name).embedded
    assert len(embedded) > 30
    for row in active(abi.CONTROL, node).values():
        params = row.params_at(node)
        fields = params.walk() if isinstance(params, CStruct) else ()
        ours = tuple(path for path, _, member in fields if isinstance(member.role, UserPointer))
        if row.name in embedded:
            assert ours == embedded[row.name] + EMBEDDED_FORGOTTEN.get((row.name, node.name), ()), row
        elif ours:
            assert node.descends_from(DEPRECATED_SINCE[row.name]), row


def _sorted_runs() -> Iterator[tuple[str, list[int]]]:
    from nvproxy_model.abi import (
        alloc,
        control_client,
        control_device,
        control_engine,
        control_memory,
        control_subdevice,
    )

    yield "frontend", [row.number for row in abi.FRONTEND]
    yield "uvm", [row.number for row in abi.UVM]
    yield "alloc", [row.number for row in alloc.ALLOC]
    for module in (control_client, control_device, control_engine, control_memory, control_subdevice):
        rows = next(value for name, value in vars(module).items() if isinstance(value, tuple) and name.isupper())
        yield module.__name__, [row.number for row in rows]


def test_rows_stand_in_the_order_of_their_numbers() -> None:
    for name, numbers in _sorted_runs():
        assert numbers == sorted(numbers), name


def test_every_row_is_used_and_every_version_known() -> None:
    for row in ROWS:
        assert {*row.since, *row.until} <= set(TREE), row
        assert any(row.active(node) for node in NODES), row
        assert row.caps or row.rejected, row
        assert isinstance(row.caps, Caps)
        assert bool(row.why) >= (row.rejected or row.opt_in), row
    for record in structs.every():
        assert any(record.exists(node) for node in NODES), record


def test_a_struct_lives_as_long_as_its_rows() -> None:
    """No row names a struct at a release whose headers do not define it."""
    for node in NODES:
        for row in ours_at(node).values():
            if isinstance(row.params, CStruct):
                assert row.params.exists(node), (row, node)


def test_the_ends_of_the_table_have_nvproxy_s_counts() -> None:
    """24 frontend, 31 UVM, 220 control and 101 class numbers, and the event buffer's five controls and two classes."""
    numbers = {table: {fact.number for fact in FACTS if fact.table == table} for table in TABLES}
    assert {table: len(found) for table, found in numbers.items()} == {
        "frontend": 24,
        "uvm": 31,
        "control": 225,
        "alloc": 103,
    }


NVPROXY = read("nvproxy_constants.json.xz")["constants"]
CONSTANTS = {name: value for name, value in vars(constants).items() if name.isupper() and isinstance(value, int)}


@pytest.mark.parametrize("node", CHECKABLE, ids=str)
def test_constants_are_the_headers(node: DriverVersion) -> None:
    recorded = RECORDED.release(node.name).constants
    wrong = {name: value for name, value in CONSTANTS.items() if recorded.get(name, value) != value}
    assert not wrong


def test_every_constant_is_confirmed_by_somebody() -> None:
    newest = RECORDED.release(CHECKABLE[-1].name).constants
    for name, value in CONSTANTS.items():
        assert name in newest or name in NVPROXY or name.endswith(("_SHIFT", "_MASK")), name
        assert NVPROXY.get(name, value) == value, name
    for row in ROWS:
        assert CONSTANTS.get(row.name, row.number) == row.number, row
