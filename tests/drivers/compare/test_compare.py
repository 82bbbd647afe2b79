"""Classes of change, each from two headers that differ in one thing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvproxy_model.drivers.compare.findings import (
    CLASSES,
    KINDS,
    Comparison,
    compare_layouts,
    compare_releases,
    entries,
    verdict,
)
from nvproxy_model.drivers.parsing.headers import extract
from nvproxy_model.drivers.parsing.scan import SDK
from nvproxy_model.drivers.release import Release
from nvproxy_model.layout import Field, Layout
from tests.drivers.driver_world import TYPES
from tests.effort import examples


def release(text: str, control: str = "") -> Release:
    files = {f"{SDK}/nvtypes.h": TYPES, f"{SDK}/nvos.h": f'#include "nvtypes.h"\n{text}', f"{SDK}/ctrl/c.h": control}
    return extract({path: content.encode() for path, content in files.items() if content})


def changes(
    base: str, following: str, control: tuple[str, str] = ("", "")
) -> list[tuple[str, str, str, object, object]]:
    compared = compare_releases(release(base, control[0]), release(following, control[1]), fds={"S": {"notify"}})
    return [(f.kind, f.class_, f.name, f.base, f.next) for f in compared.findings]


def struct(body: str) -> str:
    return f"typedef struct S {{ {body} }} S;"


CASES = {
    "same": ("NvU32 a;", "NvU32 a;", []),
    "comments": ("NvU32 a;", "NvU32 /* words */ a;", []),
    "typedef spelling": ("NvU32 a;", "NvHandle a;", [("field-retyped", "cosmetic", "S.a", "NvU32", "NvHandle")]),
    "grown": (
        "NvU32 a;",
        "NvU32 a; NvU32 b;",
        [("size-changed", "grew", "S", 4, 8), ("field-added", "grew", "S.b", None, "NvU32")],
    ),
    "shrunk": (
        "NvU32 a; NvU32 b;",
        "NvU32 a;",
        [("size-changed", "shrank", "S", 8, 4), ("field-removed", "removed", "S.b", "NvU32", None)],
    ),
    "moved at the same size": (
        "NvU64 x; NvU32 size; NvU32 a; NvU32 b;",
        "NvU64 x; NvU64 size; NvU32 a; NvU32 b;"[:-9],
        [
            ("field-resized", "resized-in-place", "S.size", 4, 8),
            ("field-moved", "moved-same-size", "S.a", 12, 16),
            ("field-removed", "removed", "S.b", "NvU32", None),
        ],
    ),
    "swapped": (
        "NvU32 a; NvU32 b;",
        "NvU32 b; NvU32 a;",
        [("field-moved", "moved-same-size", "S.a", 0, 4), ("field-moved", "moved-same-size", "S.b", 4, 0)],
    ),
    "resized and moved": (
        "NvU8 a; NvU8 b; NvU8 c[6];",
        "NvU8 a; NvU8 x; NvU16 b; NvU32 c;",
        [
            ("field-resized", "resized-and-moved", "S.b", 1, 2),
            ("field-moved", "resized-and-moved", "S.b", 1, 2),
            ("field-resized", "resized-and-moved", "S.c", 6, 4),
            ("field-moved", "resized-and-moved", "S.c", 2, 4),
            ("field-added", "replaced", "S.x", None, "NvU8"),
        ],
    ),
    "renamed": ("NvU32 a; NvU8 t;", "NvU32 a; NvU8 u;", [("field-renamed", "renamed", "S.u", "t", "u")]),
    "pointer gained": ("NvU64 a;", "NvP64 a;", [("field-retyped", "pointer-gained", "S.a", "NvU64", "NvP64")]),
    "pointer lost": (
        "NvP64 a; NvU64 b;",
        "NvU64 a; NvU64 b;",
        [("field-retyped", "pointer-lost", "S.a", "NvP64", "NvU64")],
    ),
    "pointer removed": (
        "NvP64 a; NvU64 b[1];",
        "NvU64 b[2];",
        [
            ("field-resized", "resized-and-moved", "S.b", 8, 16),
            ("field-moved", "resized-and-moved", "S.b", 8, 0),
            ("field-removed", "pointer-lost", "S.a", "NvP64", None),
        ],
    ),
    "fd gained": (
        "NvU64 a;",
        "NvU64 a; NvU64 notify;",
        [
            ("size-changed", "grew", "S", 8, 16),
            ("field-added", "fd-gained", "S.notify", None, "NvU64"),
        ],
    ),
    "sign": ("NvU32 a;", "NvS32 a;", [("field-retyped", "type-changed", "S.a", "NvU32", "NvS32")]),
    "shape": ("NvU8 a[4][2];", "NvU8 a[8];", [("field-retyped", "type-changed", "S.a", "NvU8[4][2]", "NvU8[8]")]),
    "bool in padding": (
        "NvU32 a; NvU64 b;",
        "NvU32 a; NvBool c; NvU64 b;",
        [("field-added", "added-in-padding", "S.c", None, "NvBool")],
    ),
    "a member that fills a hole exactly": (
        "NvU32 a; NvU64 b;",
        "NvU32 a; NvU32 c; NvU64 b;",
        [("field-added", "added-in-padding", "S.c", None, "NvU32")],
    ),
    "a member that fills the padding at the end": (
        "NvU64 b; NvU32 a;",
        "NvU64 b; NvU32 a; NvU32 c;",
        [("field-added", "added-in-padding", "S.c", None, "NvU32")],
    ),
    "only the alignment": (
        "NvU64 a; NvU64 b;",
        "NvU64 a NV_ALIGN_BYTES(16); NvU64 b;",
        [("field-retyped", "type-changed", "S", 8, 16)],
    ),
    "a member that came to stand in a union, and has another size": (
        "NvU32 x; NvU64 z;",
        "union { NvU64 x; NvU8 y; } u; NvU64 z;",
        [
            ("field-removed", "removed", "S.x", "NvU32", None),
            ("field-added", "replaced", "S.u", None, "<union>"),
            ("field-added", "replaced", "S.u.x", None, "NvU64"),
            ("field-added", "replaced", "S.u.y", None, "NvU8"),
        ],
    ),
    "a member of a union on one side only": (
        "union { NvU32 x; NvU64 y; }; NvU64 z;",
        "NvU64 x; NvU64 z;",
        [
            ("field-resized", "resized-in-place", "S.x", 4, 8),
            ("field-removed", "removed", "S.<union@0>.y", "NvU64", None),
        ],
    ),
    "union member grown": (
        "NvU32 k; union { NvU8 x[4]; NvU8 y[16]; } u;",
        "NvU32 k; union { NvU8 x[8]; NvU8 y[16]; } u;",
        [("field-resized", "union-grown", "S.u.x", 4, 8)],
    ),
    "union grown": (
        "NvU32 k; union { NvU8 x[4]; NvU64 y; } u;",
        "NvU32 k; union { NvU8 x[4]; NvU64 y; NvU8 z[16]; } u;",
        [
            ("size-changed", "grew", "S", 16, 24),
            ("field-resized", "union-grown", "S.u", 8, 16),
            ("field-added", "grew", "S.u.z", None, "NvU8"),
        ],
    ),
    "moved into an anonymous union": (
        "NvS32 x;",
        "union { NvS32 x, y; };",
        [("field-added", "added-in-padding", "S.<union@0>.y", None, "NvS32")],
    ),
    "anonymous union of other members": (
        "union { int a; float b; };",
        "union { int a; unsigned c; };",
        [
            ("field-removed", "removed", "S.<union@0>.b", "float", None),
            ("field-added", "replaced", "S.<union@0>.c", None, "unsigned int"),
        ],
    ),
    "anonymous union moved": (
        "NvU32 a; union { NvU32 x; };",
        "NvU32 a; NvU32 b; union { NvU32 x; };",
        [
            ("size-changed", "grew", "S", 8, 12),
            ("field-moved", "moved", "S.<union@8>.x", 4, 8),
            ("field-added", "grew", "S.b", None, "NvU32"),
        ],
    ),
    "alignment": (
        "NvU64 a;",
        "NvU64 a NV_ALIGN_BYTES(16); NvU64 b;",
        [("size-changed", "grew", "S", 8, 16), ("field-added", "grew", "S.b", None, "NvU64")],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_changes_of_a_struct(case: str) -> None:
    base, following, expected = CASES[case]
    assert changes(struct(base), struct(following)) == expected


def test_checkout_path_and_typedef_style_are_no_difference() -> None:
    assert changes("typedef struct { NvU32 a; } S;", "\n\n\ntypedef struct { NvU32 a; } S;") == []


def test_structs_come_go_and_change_their_names() -> None:
    base = "typedef struct { NvU32 a; NvU32 b; } OLD; typedef struct { NvU32 z; } GONE;"
    following = "typedef struct { NvU32 a; NvU32 b; } NEW; typedef struct { NvU8 y; } FRESH;"
    assert changes(base, following) == [
        ("struct-added", "added", "FRESH", None, 1),
        ("struct-removed", "removed", "GONE", 4, None),
        ("struct-added", "renamed", "NEW", None, 8),
        ("struct-removed", "renamed", "OLD", 8, None),
    ]


def command(name: str, number: int) -> str:
    struct_name = name.replace("_CTRL_CMD_", "_CTRL_") + "_PARAMS"
    return f'#define {name} ({number:#x}U) /* finn: Evaluated from "(X << 8) | {struct_name}_MESSAGE_ID" */\n'


A, B, C = "NV2080_CTRL_CMD_FB_A", "NV2080_CTRL_CMD_FB_B", "NV2080_CTRL_CMD_FB_C"
PARAMS = "typedef struct { NvU32 a; NvU32 b; } %s;\n"


@pytest.mark.parametrize(
    ("base", "following", "expected"),
    [
        (
            command(A, 0x20801301),
            command(A, 0x20801302),
            [("constant-changed", "renumbered", A, 0x20801301, 0x20801302)],
        ),
        (
            command(A, 0x20801301) + command(B, 0x20801302),
            command(A, 0x20801302) + command(B, 0x20801303),
            [
                ("constant-changed", "number-reused", A, 0x20801301, 0x20801302),
                ("constant-changed", "renumbered", B, 0x20801302, 0x20801303),
            ],
        ),
        (
            command(A, 0x20801301),
            command(B, 0x20801301),
            [
                ("constant-removed", "number-reused", A, 0x20801301, None),
                ("constant-added", "number-reused", B, None, 0x20801301),
            ],
        ),
        (
            command(A, 0x20801301),
            command(A, 0x20809301),
            [("constant-changed", "window-entered", A, 0x20801301, 0x20809301)],
        ),
        (
            command(A, 0x20809301),
            command(A, 0x20801301),
            [("constant-changed", "window-left", A, 0x20809301, 0x20801301)],
        ),
        ("", command(A, 0x20818001), [("constant-added", "window-entered", A, None, 0x20818001)]),
        ("", command(A, 0x20801301), [("constant-added", "added", A, None, 0x20801301)]),
        (command(A, 0x20801301), "", [("constant-removed", "removed", A, 0x20801301, None)]),
        # A new command takes an old number, while the old command lives on under another.
        (
            PARAMS % "NV2080_CTRL_FB_A_PARAMS" + command(A, 0x20801301),
            PARAMS % "NV2080_CTRL_FB_A_PARAMS"
            + command(A, 0x20801302)
            + PARAMS % "NV2080_CTRL_FB_B_PARAMS"
            + command(B, 0x20801301),
            [
                ("struct-added", "added", "NV2080_CTRL_FB_B_PARAMS", None, 8),
                ("constant-changed", "renumbered", A, 0x20801301, 0x20801302),
                ("constant-added", "number-reused", B, None, 0x20801301),
            ],
        ),
        # A command moves to a number that an alias has, and keeps.
        (
            command(A, 0x20801301) + command(B, 0x20801302),
            command(A, 0x20801302) + command(B, 0x20801302),
            [("constant-changed", "renumbered", A, 0x20801301, 0x20801302)],
        ),
        ("#define LIMIT 4\n", "#define LIMIT 5\n", [("constant-changed", "renumbered", "LIMIT", 4, 5)]),
        # A number that is not a command's may be anything; a command without a parameter struct is one by its name.
        (
            "#define LIMIT 0x20801301\n",
            "#define LIMIT 0x20809301\n",
            [("constant-changed", "renumbered", "LIMIT", 0x20801301, 0x20809301)],
        ),
        (
            f"#define {A} 0x20801301\n",
            f"#define {A} 0x20809301\n",
            [("constant-changed", "window-entered", A, 0x20801301, 0x20809301)],
        ),
        (
            "#define MY_CTRL_CMD_LIMIT 0x20801301\n",
            "#define MY_CTRL_CMD_LIMIT 0x20809301\n",
            [("constant-changed", "renumbered", "MY_CTRL_CMD_LIMIT", 0x20801301, 0x20809301)],
        ),
        ("enum E { ONE = 1 };", "enum E { ONE = 2 };", [("constant-changed", "enum-moved", "ONE", 1, 2)]),
        (
            "#define MASK (-1)\n",
            "#define MASK 0xffffffffffffffff\n",
            [("constant-changed", "renumbered", "MASK", -1, 2**64 - 1)],
        ),
    ],
)
def test_changes_of_numbers(base: str, following: str, expected: list[object]) -> None:
    assert changes("", "", (base, following)) == expected


@pytest.mark.parametrize(
    ("base", "following", "details"),
    [
        (
            command(A, 0x20801301),
            command(B, 0x20801301),
            [f"0x20801301 is now {B}", f"0x20801301 was {A}"],
        ),
        ("#define LIMIT 9\n", "#define LIMIT 10\n", ["9, then 0xa"]),
        ("#define LIMIT 10\n", "", ["LIMIT was 0xa"]),
        ("", "#define LIMIT 9\n", ["LIMIT = 9"]),
    ],
)
def test_details_of_numbers(base: str, following: str, details: list[str]) -> None:
    found = compare_releases(release("", base), release("", following)).findings
    assert [finding.detail for finding in found] == details


def test_a_command_under_a_new_name_with_the_same_parameters_is_renamed() -> None:
    old = PARAMS % "NV2080_CTRL_FB_A_PARAMS" + command(A, 0x20801301)
    new = PARAMS % "NV2080_CTRL_FB_B_PARAMS" + command(B, 0x20801301)
    found = compare_releases(release("", old), release("", new)).findings
    assert {(f.name, f.class_) for f in found if f.kind.startswith("constant")} == {(A, "renamed"), (B, "renamed")}


@pytest.mark.parametrize(
    ("base", "following", "expected"),
    [
        ("NvU32 a;", "NvU32 a;", "none"),
        ("NvU32 a;", "NvV32 a;", "cosmetic"),
        ("NvU32 a; NvU64 b;", "NvV32 a; NvBool c; NvU64 b;", "additive"),
        ("NvU32 a; NvU64 b;", "NvU32 a; NvU64 b; NvU32 c;", "breaking"),
        ("NvU32 a;", "NvS32 a;", "breaking"),
    ],
)
def test_verdicts(base: str, following: str, expected: str) -> None:
    compared = compare_releases(release(struct(base)), release(struct(following)))
    assert compared.verdict == expected
    assert compared.different == (expected in ("additive", "breaking"))


@pytest.mark.parametrize("members", [1, 2])
def test_a_struct_under_another_name_is_a_rename_unless_it_is_one_scalar(members: int) -> None:
    body = "".join(f"NvU32 m{number}; " for number in range(members))
    one, other = (f"typedef struct {{ {body}}} {name};" for name in ("OLD", "NEW"))
    found = compare_releases(release(one), release(other)).findings
    expected = {"renamed"} if members > 1 else {"removed", "added"}
    assert {(f.name, f.kind) for f in found} == {("OLD", "struct-removed"), ("NEW", "struct-added")}
    assert {f.class_ for f in found} == expected


def test_a_pointer_in_padding_is_not_additive() -> None:
    base, following = struct("NvU32 a; NvU64 b; NvU8 c[8] NV_ALIGN_BYTES(8);"), struct("NvU32 a; NvU64 b; NvU8 c[8]; ")
    assert compare_releases(release(base), release(following)).verdict == "none"
    fields = (Field("a", 0, 4, "NvU32", "u32"), Field("b", 16, 8, "NvU64", "u64"))
    old = Layout("S", "struct", 24, 8, fields)
    new = Layout("S", "struct", 24, 8, (*fields, Field("p", 8, 8, "NvP64", "ptr")))
    found = compare_layouts("S", old, new)
    assert [f.class_ for f in found] == ["pointer-gained"]
    assert verdict(found) == "breaking"


def scalars() -> st.SearchStrategy[list[tuple[int, int]]]:
    return st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(0, 3)), min_size=1, max_size=8)


def layout_of(rows: list[tuple[int, int]]) -> Layout:
    """A struct as C lays it out; the second number of a row picks a type of that width."""
    fields, end, align = [], 0, 1
    for number, (size, which) in enumerate(rows):
        offset = -(-end // size) * size
        base = ("u", "s", "u", "u")[which] + str(8 * size)
        base = "ptr" if size == 8 and which == 3 else base
        fields.append(Field(f"f{number}", offset, size, f"{base}_t", base))
        end, align = offset + size, max(align, size)
    return Layout("S", "struct", -(-end // align) * align, align, tuple(fields))


@settings(max_examples=examples(150))
@given(one=scalars(), other=scalars())
def test_no_difference_is_silent_and_every_finding_is_well_formed(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    a, b = layout_of(one), layout_of(other)
    found = compare_layouts("S", a, b)
    assert (found == []) == (a == b)
    assert compare_layouts("S", a, layout_of(one)) == []
    for finding in found:
        assert finding.kind in KINDS
        assert finding.class_ in CLASSES
        assert finding.name.startswith("S")
        assert set(finding.as_json()) == {"kind", "name", "detail", "base", "next", "class"}
    back = compare_layouts("S", b, a)
    assert {f.name for f in found if f.kind == "field-added"} == {f.name for f in back if f.kind == "field-removed"}


def test_entries_walk_arrays_of_records_once() -> None:
    found = release(struct("struct { NvU32 a; struct { NvU8 b; } c[2]; } d[3][4];")).structs["S"]
    assert [(e.path, e.offset, e.field.size) for e in entries(found)] == [
        ("d", 0, 96),
        ("d[][].a", 0, 4),
        ("d[][].c", 4, 2),
        ("d[][].c[].b", 4, 1),
    ]


def test_a_comparison_of_nothing_counts_nothing() -> None:
    compared = compare_releases(release(""), release(""), {"ABSENT"}, {"ABSENT"})
    assert isinstance(compared, Comparison)
    assert (compared.structs, compared.constants, compared.findings) == (0, 0, ())
