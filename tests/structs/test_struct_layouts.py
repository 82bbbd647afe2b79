"""Our structs against what headers say: the recorded facts of every release, and layouts that gcc confirmed."""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nvproxy_model import structs, versions
from nvproxy_model.drivers import facts
from nvproxy_model.fields import CStruct, CUnion, Fd, OpaquePointer, Role, Status, UserPointer
from nvproxy_model.layout import Layout
from nvproxy_model.versions import DriverVersion
from tests import DATA

TREE = versions.load()
RECORDED = facts.load()
CHECKABLE = [node for node in TREE.values() if node.name in RECORDED.versions]


def read(name: str) -> Any:
    return json.loads(lzma.decompress((DATA / name).read_bytes()))


CHECKED = read("nvproxy_structs.json.xz")
TINYGRAD = read("tinygrad_structs.json.xz")


def _variants() -> Iterator[tuple[DriverVersion, CStruct | CUnion]]:
    for record in structs.every():
        for node in TREE.values():
            if record.exists(node):
                yield node, record.at(node)


def _shape(layout: Layout) -> Any:
    """All of a layout but the names of records: headers know some by a tag, we by the typedef."""
    fields = [(f.name, f.offset, f.size, f.type, f.base, f.dims, f.record and _shape(f.record)) for f in layout.fields]
    return layout.kind, layout.size, layout.align, fields


def test_the_facts_cover_the_tree() -> None:
    assert len(CHECKABLE) >= 29
    assert len(structs.every()) > 140


@pytest.mark.parametrize("node", CHECKABLE, ids=str)
def test_every_struct_is_the_header_s(node: DriverVersion) -> None:
    """Names, offsets, sizes, types and dimensions of all members, nested ones too; a struct exists where a header has it."""
    headers = RECORDED.release(node.name).structs
    for record in structs.every():
        name = record.ctype_at(node)
        assert record.exists(node) == (name in headers), name
        if name in headers:
            assert _shape(record.at(node).layout()) == _shape(headers[name]), name


def _spans(record: CStruct) -> dict[int, tuple[int, str]]:
    return {at: (member.size, member.element.base) for path, at, member in record.walk() if "[]" not in path}


@pytest.mark.parametrize("go", sorted(CHECKED["structs"]))
def test_every_struct_that_nvproxy_types_agrees_with_it(go: str) -> None:
    """nvproxy's Go structs were compared with gcc's reading of the headers; ours equal them at both ends of that span."""
    opaque = re.compile(r"\[\d+\](byte|(?!uint|Handle)\w+)")  # a union as bytes, an array of structs
    known = {name: record for record in structs.every() for name in record.ctypes}
    want = CHECKED["structs"][go]
    for name, (first, last, _) in want["names"].items():
        for version in {first, last} & set(TREE):
            record = known[name].at(TREE[version])
            assert (record.sizeof(), record.align) == (want["size"], want["align"])
            if isinstance(record, CUnion):
                continue
            spans = _spans(record)
            for path, offset, size, kind in want["leaves"]:
                if not opaque.fullmatch(kind):
                    assert spans[offset][0] == size, f"{name}.{path}"
                    assert (spans[offset][1] == "ptr") == (kind == "P64"), f"{name}.{path}"


def test_every_type_of_nvproxy_s_is_ours() -> None:
    """Each Go struct stands for structs of ours, or is a part of one of them."""
    known = {name for record in structs.every() for name in record.ctypes}
    parts = {
        "NVOS32AllocSize",  # NVOS32_PARAMETERS.data.AllocSize
        "NV_CHANNEL_ALLOC_PARAMS_V610",  # no public release has it; see below
        "PCIInfo",  # nv_pci_info_t
        "nv00f8Map",  # NV00F8_ALLOCATION_PARAMETERS.map
    }
    for go, want in CHECKED["structs"].items():
        assert go in parts or (want["names"].keys() or {go}) <= known, go


@pytest.mark.parametrize(
    ("name", "version", "go"),
    [
        ("NV_CHANNEL_ALLOC_PARAMS", "610.43.02", "NV_CHANNEL_ALLOC_PARAMS_V610"),
        ("nv_pci_info_t", "580.126.20", "PCIInfo"),
    ],
)
def test_what_no_header_confirms_agrees_with_nvproxy(name: str, version: str, go: str) -> None:
    record = next(r for r in structs.every() if r.ctype == name).at(TREE[version])
    want = CHECKED["structs"][go]
    assert (record.sizeof(), record.align) == (want["size"], want["align"])
    assert {offset: size for offset, (size, _) in _spans(record).items()} == {o: s for _, o, s, _ in want["leaves"]}


@pytest.mark.parametrize(
    ("version", "nearest"), [("570.86.16", "570.86.15"), ("580.105.08",) * 2, ("610.43.03", "610.43.02")]
)
def test_another_reading_of_the_headers_agrees(version: str, nearest: str) -> None:
    """tinygrad's generated tables: sizes, members, offsets, which structs are gone; its 610 is newer than the public sources."""
    theirs, ours = TINYGRAD[version]["structs"], TREE[nearest]
    once = TINYGRAD["580.105.08"]["structs"]
    compared = 0
    for record in structs.every():
        name = record.ctype_at(ours)
        if name in theirs and record.exists(ours):
            size, offsets = theirs[name]
            assert (record.at(ours).sizeof(), {m.name: m.offset for m in record.at(ours).members}) == (size, offsets), (
                name
            )
            compared += 1
        elif name in theirs or name in once:
            assert record.exists(ours) == (name in theirs), name
    assert compared > 60


def test_no_pointer_without_a_meaning() -> None:
    for node, record in _variants():
        for path, _, member in record.walk():
            if member.element.base == "ptr":
                assert isinstance(member.role, (Fd, OpaquePointer, UserPointer)), f"{record.ctype}.{path} at {node}"


def test_no_descriptor_without_a_role() -> None:
    """By name, so that a struct that is added cannot forget it. NV0005's is called data: nvproxy's own roles list it."""
    named = re.compile(r"(?i)(fd|devDescriptor|capDescriptor|pOsEvent|notificationHandle)$")
    for node, record in _variants():
        for path, _, member in record.walk():
            if named.search(path):
                assert isinstance(member.role, Fd), f"{record.ctype}.{path} at {node}"


@pytest.mark.parametrize(
    ("fact", "role"), [("frontend_fd", Fd), ("pos_event", Fd), ("status", Status), ("info_list", UserPointer)]
)
def test_roles_are_nvproxy_s(fact: str, role: type[Role]) -> None:
    """A struct for which nvproxy has an accessor of a role has exactly one field with that role."""
    known = {name: record for record in structs.every() for name in record.ctypes}
    for go in CHECKED["roles"][fact]:
        for name in CHECKED["structs"][go]["names"] or [go]:
            fields = [path for path, _, member in known[name].walk() if isinstance(member.role, role)]
            assert len(fields) == 1, f"{name}: {fields}"


def test_a_layout_is_one_object() -> None:
    """`at` interns: two releases share a variant exactly when the struct has the same name and the same members in both."""
    for record in structs.every():
        found: dict[int, tuple[str | None, Any]] = {}
        for node in filter(record.exists, TREE.values()):
            variant = record.at(node)
            assert record.at(node) is variant
            assert variant.at(node) is variant
            found[id(variant)] = (variant.ctype, variant.layout())
        assert len(set(found.values())) == len(found), record


def test_the_list_of_headers_is_the_folder() -> None:
    folder = Path(structs.__file__).parent
    assert list(structs.HEADERS) == sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
