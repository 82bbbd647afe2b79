"""Extraction against a C compiler: layouts of random nested structs, values of random macros."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from nvproxy_model.drivers.compare.findings import entries
from nvproxy_model.drivers.facts import load
from nvproxy_model.drivers.parsing.headers import extract
from nvproxy_model.drivers.parsing.scan import SDK
from nvproxy_model.drivers.release import Wanted
from nvproxy_model.drivers.render.declaration import declaration, holes, picture
from nvproxy_model.layout import Layout
from tests.drivers.driver_world import TYPES
from tests.effort import examples

CC = shutil.which("gcc") or shutil.which("cc")
needs_compiler = pytest.mark.skipif(CC is None, reason="SKIPPED, NOT PROVED: no C compiler on this machine")

SCALARS = [
    "NvU8",
    "NvU16",
    "NvU32",
    "NvU64",
    "NvS32",
    "NvBool",
    "NvHandle",
    "NvP64",
    "char",
    "int",
    "NvU8 *",
    "float",
    "double",
]


@st.composite
def members(draw: st.DrawFn, depth: int, prefix: str) -> list[str]:
    """Declarations of a record's members; anonymous records are among them."""
    lines = []
    for number in range(draw(st.integers(1, 5))):
        name = f"{prefix}{number}"
        dims = "".join(f"[{draw(st.integers(1, 4))}]" for _ in range(draw(st.integers(0, 2))))
        align = draw(st.sampled_from(["", "", "", " NV_ALIGN_BYTES(8)"]))
        if depth and draw(st.integers(0, 3)) == 0:
            kind = draw(st.sampled_from(["struct", "union"]))
            inner = " ".join(draw(members(depth - 1, name + "_")))
            lines.append(
                f"{kind} {{ {inner} }};" if draw(st.booleans()) else f"{kind} {{ {inner} }} {name}{dims}{align};"
            )
        else:
            lines.append(f"{draw(st.sampled_from(SCALARS))} {name}{dims}{align};")
    return lines


@st.composite
def headers(draw: st.DrawFn) -> str:
    text = []
    for number in range(draw(st.integers(3, 8))):
        body = " ".join(draw(members(2, "m")))
        style = draw(st.integers(0, 2))
        kind = draw(st.sampled_from(["struct", "struct", "union"]))
        head, name = ("", "") if style == 2 else ("typedef ", f" R{number}")
        text.append(f"{head}{kind}{'' if style == 1 else f' R{number}'} {{ {body} }}{name};")
    return "\n".join(text)


def compiled(text: str, layouts: dict[str, Layout], folder: Path) -> dict[str, int]:
    """What the C compiler says of every size and offset that the layouts name."""
    assert CC is not None
    lines = [TYPES, text, "#include <stddef.h>\n#include <stdio.h>", "int main(void) {"]
    for name, layout in layouts.items():
        subject = name if f"}} {name};" in text else f"{layout.kind} {name}"
        lines.append(f'printf("{name} %zu\\n{name}! %zu\\n", sizeof({subject}), _Alignof({subject}));')
        for entry in entries(layout):
            plain = entry.key.replace("[]", "[0]")
            lines.append(f'printf("{name}.{entry.key} %zu\\n", offsetof({subject}, {plain}));')
            lines.append(f'printf("{name}.{entry.key}# %zu\\n", sizeof((({subject} *)0)->{plain}));')
    lines.append("return 0; }")
    source = folder / "probe.c"
    source.write_text("\n".join(lines))
    subprocess.run([CC, "-std=gnu11", "-w", "-o", str(folder / "probe"), str(source)], check=True, capture_output=True)
    output = subprocess.run([str(folder / "probe")], check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in (line.rsplit(" ", 1) for line in output.splitlines())}


@needs_compiler
@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(text=headers())
def test_layouts_are_the_compilers(text: str, tmp_path: Path) -> None:
    release = extract({f"{SDK}/nvtypes.h": TYPES.encode(), f"{SDK}/nvos.h": f'#include "nvtypes.h"\n{text}'.encode()})
    layouts = {name: layout for name, layout in release.structs.items() if name.startswith("R")}
    assert layouts
    truth = compiled(text, layouts, tmp_path)
    said: dict[str, int] = {}
    for name, layout in layouts.items():
        said[name], said[f"{name}!"] = layout.size, layout.align
        for entry in entries(layout):
            said[f"{name}.{entry.key}"] = entry.offset
            said[f"{name}.{entry.key}#"] = entry.field.size
    assert said == truth
    some = Wanted(frozenset(layouts), frozenset())
    again = extract(
        {f"{SDK}/nvtypes.h": TYPES.encode(), f"{SDK}/nvos.h": f'#include "nvtypes.h"\n{text}'.encode()}, some
    )
    assert dict(again.structs) == layouts


@needs_compiler
@settings(max_examples=examples(10), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@example(values=[0xFFFFFFFF])
@example(values=[0xFFFFFFFF, -1])
@given(values=st.lists(st.integers(-(2**63), 2**64 - 1), min_size=1, max_size=30))
def test_constants_are_the_compilers(values: list[int], tmp_path: Path) -> None:
    assert CC is not None

    def spelled(value: int) -> str:
        if value == -(2**63):
            return "(-0x7fffffffffffffff - 1)"
        return f"{value:#x}ULL" if value >= 2**63 else f"({value})" if value % 2 else f"({value:#x})"

    text = "".join(f"#define M{n} {spelled(value)}\n" for n, value in enumerate(values))
    text += '#define RANGE 31:0\n#define TEXT "t"\n#define EMPTY\n#define CALL(x) x\n#define OTHER M0\n#define SUM (M0 ? 3 : 4)\n'
    text += "typedef enum { E0, E1 = 7, E2 } E;\nenum { ANONYMOUS = 2 };\n"
    source = f'#include "nvtypes.h"\n{text}'.encode()
    files = {f"{SDK}/nvtypes.h": TYPES.encode(), f"{SDK}/nvos.h": source}
    release = extract(files)
    found = {name: value for name, value in release.constants.items() if name not in ("T",)}
    expected = {f"M{n}": value for n, value in enumerate(values)}
    expected |= {"OTHER": values[0], "SUM": 3 if values[0] else 4, "E0": 0, "E1": 7, "E2": 8, "ANONYMOUS": 2}
    assert found == expected
    assert dict(release.enums) == {"E0": "E", "E1": "E", "E2": "E", "ANONYMOUS": ""}
    some = extract(files, Wanted(frozenset(), frozenset([*expected, "RANGE", "TEXT", "ABSENT"])))
    assert dict(some.constants) == expected
    assert dict(some.enums) == dict(release.enums)
    checks = "".join(f'_Static_assert((M{n}) == {spelled(v)}, "");' for n, v in enumerate(values))
    (tmp_path / "v.c").write_text(text + checks)
    subprocess.run([CC, "-std=gnu11", "-w", "-fsyntax-only", str(tmp_path / "v.c")], check=True, capture_output=True)


@needs_compiler
@pytest.mark.parametrize("version", ["515.43.04", "595.45.04"])
def test_declarations_of_every_struct_compile_to_the_recorded_layout(version: str, tmp_path: Path) -> None:
    """A C compiler checks the assertions that each declaration carries: thousands of layouts, none of them ours."""
    assert CC is not None
    release = load().release(version)
    texts = []
    for number, (name, layout) in enumerate(sorted(release.structs.items())):
        body = declaration(layout).partition("\n\n")[2]
        # Tags may repeat, and a field may be named like a typedef: each stands in a function of its own.
        texts.append(f"void f{number}(void) {{ /* {name} */\n{body}}}\n")
    assert len(texts) > 2000
    source = tmp_path / "all.c"
    source.write_text("#include <assert.h>\n#include <stddef.h>\n#include <stdint.h>\n" + "".join(texts))
    done = subprocess.run(
        [CC, "-std=gnu11", "-w", "-fsyntax-only", str(source)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[:2000]


def test_holes_and_members_cover_every_struct_exactly() -> None:
    release = load().release("595.45.04")
    for layout in release.structs.values():
        if layout.kind == "struct" and not any(":" in field.type for field in layout.fields):
            pieces = sorted([(f.offset, f.size) for f in layout.fields if f.size] + list(holes(layout)))
            assert sum(size for _, size in pieces) == layout.size, layout.name


def test_a_picture_shows_holes_at_every_depth() -> None:
    layout = load().release("580.105.08").structs["NVOS32_PARAMETERS"]
    gaps = {path: (offset, size) for path, offset, size, field in picture(layout) if field is None}
    assert gaps["(hole)"] == (18, 2)
    assert gaps["data.AllocSize.(hole)"] == (156, 4)
