"""What `place` prints for a release that differs can be pasted: it is Python, and its members have the release's sizes."""

from __future__ import annotations

from typing import Any

import pytest

from nvproxy_model import fields, structs, versions
from nvproxy_model.drivers import facts
from nvproxy_model.drivers.compare import model
from nvproxy_model.drivers.compare.check import check_release
from nvproxy_model.drivers.compare.placement import struct_edits
from nvproxy_model.layout import Field, Layout
from tests import ROOT

FACTS = facts.load()
NODES = [node for node in versions.load().values() if node.parent is not None and node.name in FACTS.versions]


def namespace() -> dict[str, Any]:
    known = {name: getattr(fields, name) for name in fields.__all__}
    return known | {record.ctype: record for record in structs.every()}


@pytest.mark.parametrize("node", NODES, ids=str)
def test_what_each_release_needed_can_be_pasted(node: versions.DriverVersion) -> None:
    assert node.parent is not None
    release = FACTS.release(node.name)
    names = namespace()
    layout: Layout | None = None
    for line in struct_edits(node.name, check_release(release, node.parent.name), release):
        if line.startswith("# "):
            file, _, struct = line[2:].partition(": ")
            struct = struct.partition(",")[0]
            if file.startswith("structs/") and struct:
                assert f'"{struct}"' in (ROOT / file).read_text()
                layout = release.structs[struct]
        elif not line.startswith(" "):
            exec(line, names)
        elif not line.lstrip().startswith("#"):
            versioned = eval(line.strip().partition(",  #")[0].rstrip(","), names)
            (member,) = versioned.members
            assert layout is not None
            if versioned.first:
                assert versioned.first == (node.name,)
                new = next(field for field in layout.fields if field.name == member.name)
                assert fields.CStruct("S", member).sizeof() >= new.size
            else:
                assert versioned.last == (node.name,)


def test_a_new_record_is_defined_and_an_anonymous_one_is_written_in_place() -> None:
    base = FACTS.release("580.105.08")
    old = base.structs["UVM_FREE_PARAMS"]
    inner = Layout(
        "NEW_INNER", "struct", 16, 8, (Field("pList", 0, 8, "NvP64", "ptr"), Field("id", 8, 8, "NvU8", "u8", (8,)))
    )
    union = Layout("<union>", "union", 4, 4, (Field("a", 0, 4, "NvU32", "u32"), Field("h", 0, 4, "NvHandle", "u32")))
    extra = (
        Field("inner", 24, 32, "NEW_INNER", "record", (2,), inner),
        Field("<union@56>", 56, 4, "<union>", "record", (), union),
    )
    grown = Layout(old.name, "struct", 64, 8, (*old.fields, *extra))
    release = type(base)("580.999", 1, {**base.structs, old.name: grown}, base.constants, params=base.params)
    lines = list(struct_edits("580.999", check_release(release, "580.105.08"), release))
    assert lines == [
        "# structs/uvm_ioctl.py: UVM_FREE_PARAMS, 24 -> 64 bytes",
        'NEW_INNER = CStruct("NEW_INNER", "pList" / OpaquePointer(), "id" / NvU8[8])',
        '    since("580.999", "inner" / NEW_INNER[2]),  # after rmStatus',
        '    since("580.999", CUnion(None, "a" / NvU32, "h" / Handle())),  # after inner',
    ]
    names = namespace()
    exec(lines[1], names)
    assert names["NEW_INNER"].layout().size == 16
    assert model.SCALARS
