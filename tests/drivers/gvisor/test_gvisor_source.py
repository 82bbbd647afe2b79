"""The Go reader: constants against values worked out by Python, layouts against a C compiler, hostile files."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvproxy_model.drivers.gvisor.checkout import read_package_files
from nvproxy_model.drivers.gvisor.gosource import GoPackage, Unreadable
from nvproxy_model.errors import SourceError
from tests.effort import examples

CC = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def package(text: str, **imports: GoPackage) -> GoPackage:
    result = GoPackage("p", {"p.go": ("package p\n" + text).encode()}, imports)
    result.read_all()
    return result


def value(expression: str, before: str = "") -> int | str:
    return package(f"{before}\nconst X = {expression}\n").constant("X").value


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0x3e", 0x3E),
        ("0b101", 5),
        ("0o17", 15),
        ("017", 15),
        ("05", 5),
        ("1_000", 1000),
        ("'F'", 0x46),
        (r"'\n'", 10),
        ("uint32('F')", 0x46),
        ("1 << 4 | 1", 17),
        ("^0", -1),
        ("^uint8(1)", 0xFE),
        ("7 &^ 2", 5),
        ("-7 / 2", -3),  # Go truncates, Python floors
        ("-7 % 2", -1),
        ("(2 + 3) * 4", 20),
        ("Other + 1", 8),
        ("1 * 1024 * 1024", 1 << 20),
        ('"NO_DRIVER"', "NO_DRIVER"),
        ("`raw`", "raw"),
    ],
)
def test_expression(expression: str, expected: int | str) -> None:
    assert value(expression, "const Other = 7") == expected


def test_iota_repeats_the_expression_and_the_type() -> None:
    go = package(
        "type T uint16\nconst (\n\tA T = 1 << iota\n\tB\n\t_\n\tD\n\n\tn int = iota\n)\n"
        "const (\n\tE, F = iota, 10 * iota\n\tG, H\n)"
    )
    found = {name: go.constant(name) for name in go.constant_names}
    assert {name: constant.value for name, constant in found.items()} == {
        "A": 1,
        "B": 2,
        "D": 8,
        "n": 4,
        "E": 0,
        "F": 0,
        "G": 1,
        "H": 10,
    }
    assert found["D"].type == "T"
    assert not go.unread


@pytest.mark.parametrize(
    "expression",
    [
        "1 << 1000000000",
        "1 << 1000000000000000000000",
        "1 / 0",
        "1 % 0",
        "X",
        "Missing",
        "f(1, 2)",
        "uint8(256)",
        "int8(128)",
        "1.5",
        "len(x)",
        "9" * 600,
        "-true << 600",
    ],
)
def test_what_is_no_constant_is_reported(expression: str) -> None:
    go = package(f"const X = {expression}\nconst Y = 2")
    assert [item.what for item in go.unread] == ["X"]
    assert go.unread[0].where == "p.go:2"
    assert go.constant("Y").value == 2


def test_products_do_not_grow_without_end() -> None:
    lines = ["const A0 = 1 << 500"] + [f"const A{n} = A{n - 1} * A{n - 1}" for n in range(1, 40)]
    assert len(package("\n".join(lines)).unread) == 39


_numbers = st.integers(0, 1 << 40).map(str)


def _binary(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds("({} {} {})".format, children, st.sampled_from(["+", "-", "*", "&", "|", "^"]), children)


@given(st.recursive(_numbers, _binary, max_leaves=12))
def test_expressions_as_python_has_them(expression: str) -> None:
    assert value(expression) == eval(expression)


# Layouts, against a C compiler.

_SCALARS = {
    "uint8": "unsigned char",
    "int16": "short",
    "uint32": "unsigned",
    "int64": "long",
    "uint64": "unsigned long",
    "P64": "unsigned long",
}


@st.composite
def _structs(draw: st.DrawFn) -> list[tuple[str, list[tuple[str, str, tuple[int, ...]]]]]:
    """Structs by name, each of scalars, arrays, and earlier structs."""
    structs: list[tuple[str, list[tuple[str, str, tuple[int, ...]]]]] = []
    for number in range(draw(st.integers(1, 6))):
        kinds = [*_SCALARS, *(name for name, _ in structs)]
        members = draw(
            st.lists(st.tuples(st.sampled_from(kinds), st.lists(st.integers(1, 5), max_size=2)), min_size=1, max_size=6)
        )
        structs.append((f"S{number}", [(f"F{i}", kind, tuple(dims)) for i, (kind, dims) in enumerate(members)]))
    return structs


@pytest.mark.skipif(CC is None, reason="SKIPPED, NOT TESTED: Go layouts against C; no C compiler")
@settings(max_examples=examples(25))
@given(_structs())
def test_layouts_as_a_c_compiler_has_them(structs: list[tuple[str, list[tuple[str, str, tuple[int, ...]]]]]) -> None:
    go, c, lines = ["type P64 uint64"], ["#include <stdio.h>", "#include <stddef.h>"], []
    for name, members in structs:
        go.append(f"type {name} struct {{")
        c.append(f"struct {name} {{")
        lines.append(f'printf("{name} %zu %zu\\n", sizeof(struct {name}), _Alignof(struct {name}));')
        for field, kind, dims in members:
            go.append(f"\t{field} {''.join(f'[{d}]' for d in dims)}{kind}")
            c.append(f"  {_SCALARS.get(kind, f'struct {kind}')} {field}{''.join(f'[{d}]' for d in dims)};")
            lines.append(
                f'printf("{name}.{field} %zu %zu\\n", offsetof(struct {name}, {field}), sizeof(((struct {name} *)0)->{field}));'
            )
        go.append("}")
        c.append("};")
    assert CC is not None
    text = "\n".join([*c, "int main(void) {", *lines, "return 0; }"])
    program = Path(os.environ.get("TMPDIR", "/tmp")) / f"nvproxy-model-go-{os.getpid()}"
    try:
        subprocess.run(
            [CC, "-O0", "-x", "c", "-", "-o", program], input=text, text=True, check=True, capture_output=True
        )
        expected = subprocess.run([program], text=True, check=True, capture_output=True).stdout
    finally:
        program.unlink(missing_ok=True)
    parsed = package("\n".join(go))
    assert not parsed.unread
    found = []
    for name, _ in structs:
        layout = parsed.layout(name)
        found.append(f"{name} {layout.size} {layout.align}")
        found += [f"{name}.{field.name} {field.offset} {field.size}" for field in layout.fields]
    assert "\n".join(found) + "\n" == expected


def test_types_of_members() -> None:
    nvgpu = package(
        "type P64 uint64\ntype Handle struct {\n\tVal uint32\n}\ntype NvUUID [16]uint8\nconst N = 4\ntype S struct {\n"
        "\tInner\n\tA, B uint16\n\tU [N]NvUUID\n\tP P64\n\tH [N / 2]Handle\n\t_ [4]byte\n\tRaw *uint8\n}\n"
        "type Inner struct {\n\tX int64\n}"
    )
    layout = nvgpu.layout("S")
    shown = [(f.name, f.offset, f.size, f.type, f.base, f.dims) for f in layout.fields]
    assert shown == [
        ("Inner", 0, 8, "Inner", "record", ()),
        ("A", 8, 2, "uint16", "u16", ()),
        ("B", 10, 2, "uint16", "u16", ()),
        ("U", 12, 64, "NvUUID", "u8", (4, 16)),
        ("P", 80, 8, "P64", "ptr", ()),
        ("H", 88, 8, "Handle", "u32", (2,)),
        ("_", 96, 4, "byte", "u8", (4,)),
        ("Raw", 104, 8, "*uint8", "ptr", ()),
    ]
    assert (layout.size, layout.align) == (112, 8)


@pytest.mark.parametrize(
    "body",
    [
        "x []byte",
        "x string",
        "x map[int]int",
        "x func()",
        "x interface{}",
        "x T",
        "x [2]T",
        "x other.Y",
        "x [-1]byte",
        "x [1 << 40]byte",
        "x Missing",
    ],
)
def test_members_without_a_shared_layout_are_reported(body: str) -> None:
    go = package(f"type T struct {{\n\t{body}\n}}\ntype Good struct {{\n\tA uint8\n}}")
    assert [item.what for item in go.unread] == ["T"]
    assert go.layout("Good").size == 1


def test_an_explosion_of_members_is_refused() -> None:
    lines = ["type T0 struct {\n\tA uint8\n}"]
    lines += [f"type T{n} struct {{\n\tA T{n - 1}\n\tB T{n - 1}\n}}" for n in range(1, 50)]
    go = package("\n".join(lines))
    assert 25 < len(go.unread) < 45


def test_two_declarations_of_one_name_are_reported() -> None:
    go = package("const A = 1\nconst A = 2\ntype T struct {\n\tx uint8\n}\ntype T struct {\n\tx uint16\n}")
    assert sorted(item.what for item in go.unread) == ["A", "T"]


def test_text_that_is_no_go_is_reported() -> None:
    assert package("const A = 1\ntype T struct {{{ ???\n").unread


@given(st.binary(max_size=300))
def test_any_bytes_never_raise(data: bytes) -> None:
    GoPackage("p", {"p.go": data}).read_all()


@given(
    st.lists(
        st.sampled_from(
            [
                "const ",
                "type ",
                "T",
                " struct {",
                "}",
                "(",
                ")",
                "\n",
                "=",
                "iota",
                "[",
                "]",
                "1",
                "<<",
                "x uint8",
                '"',
                "`",
                "nvgpu.",
            ]
        ),
        max_size=40,
    )
)
def test_scrambled_go_never_raises(words: list[str]) -> None:
    package("".join(words))


def test_deep_nesting_is_no_crash() -> None:
    assert package(f"const A = {'(' * 20000}1{')' * 20000}").unread
    assert package(f"type T struct {{\n\tx {'[1]' * 20000}byte\n}}").unread


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.go").write_text("package p")
    (tmp_path / "a_test.go").write_text("package p")
    (tmp_path / "notes.txt").write_text("x")
    assert list(read_package_files(tmp_path)) == ["a.go"]
    (tmp_path / "b.go").symlink_to("/dev/zero")
    with pytest.raises(SourceError, match=r"b\.go"):
        read_package_files(tmp_path)
    (tmp_path / "b.go").unlink()
    os.mkfifo(tmp_path / "c.go")
    with pytest.raises(SourceError, match=r"c\.go: not a regular file"):
        read_package_files(tmp_path)
    (tmp_path / "c.go").unlink()
    with (tmp_path / "d.go").open("wb") as file:
        file.truncate(5 << 20)
    with pytest.raises(SourceError, match=r"d\.go: not a regular file of at most 4 MiB"):
        read_package_files(tmp_path)
    for name in "defgh":
        with (tmp_path / f"{name}.go").open("wb") as file:
            file.truncate(4 << 20)
    with pytest.raises(SourceError, match="more than 16 MiB of Go files"):
        read_package_files(tmp_path)


def test_a_constant_of_another_package() -> None:
    other = package("const A = 5\ntype T uint16")
    go = package("const B = other.A + 1\ntype S struct {\n\tx [other.A]other.T\n}", other=other)
    assert go.constant("B").value == 6
    assert go.layout("S").size == 10
    with pytest.raises(Unreadable):
        go.constant("C")
