"""Placement, parsing and building against a C compiler, on records that Hypothesis makes up; and on our own, byte for byte."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import construct
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvproxy_model import fields, structs, versions
from nvproxy_model.fields import CStruct, CUnion, Fd, Handle, NvP64, NvU32, OpaquePointer, Status, UserPointer
from nvproxy_model.structs.cl90cd import NV_EVENT_BUFFER_ALLOC_PARAMETERS
from tests.effort import examples

TREE = versions.load()
C_TYPES = {
    "NvU8": "unsigned char",
    "NvU16": "unsigned short",
    "NvU32": "unsigned int",
    "NvU64": "unsigned long long",
    "NvS8": "signed char",
    "NvS16": "short",
    "NvS32": "int",
    "NvS64": "long long",
    "NvBool": "unsigned char",
    "NvHandle": "unsigned int",
    "NvP64": "void *",
    "char": "char",
}
ROLES: dict[str, list[Callable[[], Any]]] = {
    "NvS32": [Fd],
    "NvHandle": [Handle, lambda: Handle(depends=True)],
    "NvP64": [OpaquePointer, lambda: UserPointer(NvU32), lambda: Fd(NvP64, null=0)],
    "NvU32": [Status],
}


class Made(NamedTuple):
    """A member that Hypothesis made: a scalar by its name, or a record; ``name`` is None for an anonymous record."""

    name: str | None
    of: str | tuple[str, tuple[Made, ...]]
    dims: tuple[int, ...]
    role: int


CODES = st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=16)
"""A record, a number a member: cheap to draw, and easy to shrink. `_decode` says what the bits mean."""


def _decode(codes: list[int]) -> tuple[str, tuple[Made, ...]]:
    """The record that the numbers spell: scalars, the start of a nested struct or union, or its end.

    Names are unique in the whole record, so that anonymous records may be among its members: one of a kind a record,
    since two of a kind in a union have one offset, which is all that names them.
    """
    rest, number = iter(codes[1:]), iter(range(1000))

    def members(depth: int) -> tuple[Made, ...]:
        made: list[Made] = []
        hidden: set[str] = set()
        for code in rest:
            what, bits = code % 16, code // 16
            if what == 15 and depth:
                break
            dims = tuple(1 + (bits >> shift) % 3 for shift in range(2, 2 + 3 * (bits % 3), 3))
            if what < len(C_TYPES):
                made.append(Made(f"m{next(number)}", sorted(C_TYPES)[what], dims, bits >> 8))
            else:
                kind = "union" if what == 12 else "struct"
                anonymous = not dims and kind not in hidden
                if anonymous:
                    hidden.add(kind)
                name = None if anonymous else f"m{next(number)}"
                made.append(Made(name, (kind, members(depth + 1)), dims, 0))
        return tuple(made) or (Made(f"m{next(number)}", "NvU8", (), 0),)

    return "union" if codes[0] % 4 == 0 else "struct", members(0)


def _ours(shape: tuple[str, tuple[Made, ...]], ctype: str | None) -> CStruct | CUnion:
    kind, members = shape
    subcons = []
    for member in members:
        of: Any
        if isinstance(member.of, str):
            roles = ROLES.get(member.of, [])
            of = roles[member.role]() if member.role < len(roles) else getattr(fields, member.of)
        else:
            of = _ours(member.of, None)
        for dim in reversed(member.dims):
            of = of[dim]
        subcons.append(member.name / of if member.name else of)
    return (CUnion if kind == "union" else CStruct)(ctype, *subcons)


def _c(shape: tuple[str, tuple[Made, ...]], tag: str = "") -> str:
    kind, members = shape
    text = f"{kind} {tag} {{ "
    for member in members:
        of = C_TYPES[member.of] if isinstance(member.of, str) else _c(member.of)
        text += f"{of} {member.name or ''}{''.join(f'[{dim}]' for dim in member.dims)}; "
    return text + "}"


def _questions(record: CStruct | CUnion, tag: str, path: str = "", base: int = 0) -> Iterator[tuple[str, int]]:
    """What to ask the compiler, and our answer: every member's offset, at the first element of an array."""
    for member in record.members:
        nested = isinstance(member.element, (CStruct, CUnion))
        anonymous = member.name.startswith("<")
        inner = path if anonymous else path + member.name + "[0]" * len(member.dims)
        if not anonymous:
            yield f"__builtin_offsetof({tag}, {inner})", base + member.offset
        if nested:
            yield from _questions(member.element, tag, inner if anonymous else inner + ".", base + member.offset)


def _by_libclang(declarations: str, questions: list[str], _: Path) -> list[int]:
    import clang.cindex as ci

    text = f"{declarations}\nenum {{ {', '.join(f'Q{i} = {q}' for i, q in enumerate(questions))} }};\n"
    unit = ci.Index.create().parse("made.c", args=["-x", "c", "-std=c11"], unsaved_files=[("made.c", text)])
    assert not [d for d in unit.diagnostics if d.severity >= ci.Diagnostic.Error]
    enum = list(unit.cursor.get_children())[-1]
    return [constant.enum_value for constant in enum.get_children()]


def _by_cc(declarations: str, questions: list[str], folder: Path) -> list[int]:
    source, program = folder / "made.c", folder / "made"
    source.write_text(
        f"#include <stdio.h>\n{declarations}\nstatic const unsigned long answers[] = {{ {', '.join(questions)} }};\n"
        'int main(void) { for (unsigned i = 0; i < sizeof answers / sizeof *answers; i++) printf("%lu\\n", answers[i]); }\n'
    )
    subprocess.run(["cc", "-std=gnu11", "-w", "-O0", "-o", program, source], check=True)
    return [int(line) for line in subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()]


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(_by_libclang, id="libclang"),
        pytest.param(
            _by_cc, id="cc", marks=pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler on this machine")
        ),
    ],
)
@settings(max_examples=examples(30), deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn=st.lists(CODES, min_size=20, max_size=40))
def test_records_are_placed_as_a_compiler_places_them(
    ask: Callable[[str, list[str], Path], list[int]], drawn: list[list[int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Size, alignment and every offset of a batch of made-up records, in one compilation."""
    declarations, asked = [], []
    for index, shape in enumerate(map(_decode, drawn)):
        tag, record = f"{shape[0]} R{index}", _ours(shape, f"R{index}")
        declarations.append(_c(shape, f"R{index}") + ";")
        asked += [(f"sizeof({tag})", record.sizeof()), (f"_Alignof({tag})", record.align), *_questions(record, tag)]
    answers = ask("\n".join(declarations), [question for question, _ in asked], tmp_path_factory.mktemp("made"))
    assert list(zip([q for q, _ in asked], answers, strict=True)) == asked


def _bare(record: CStruct | CUnion) -> CStruct | CUnion:
    """The same record without a role anywhere."""
    members = []
    for member in record.members:
        of = _bare(member.element) if isinstance(member.element, (CStruct, CUnion)) else member.element
        for dim in reversed(member.dims):
            of = of[dim]
        members.append(member.name / of)
    return type(record)(record.ctype, *members)


def _same_bytes(record: CStruct | CUnion, seed: int) -> None:
    data = random.Random(seed).randbytes(record.sizeof())
    parsed = record.parse(data)
    assert record.build(parsed) == data
    assert parsed == _bare(record).parse(data)
    leaves = [(path, at, member) for path, at, member in record.walk() if "[]" not in path and not member.dims]
    for path, at, member in leaves[:6]:
        *parents, name = path.split(".")
        changed = record.parse(data)
        holder = changed
        for parent in parents:
            holder = holder[parent]
        new = bytes(byte ^ 0x55 for byte in data[at : at + member.size])
        holder[name] = member.subcon.parse(new)
        assert record.build(changed) == data[:at] + new + data[at + member.size :], path


@given(codes=CODES, seed=st.integers(0, 2**32))
def test_made_records_keep_their_bytes(codes: list[int], seed: int) -> None:
    """Padding included; roles change nothing; a changed leaf changes its own bytes alone, inside unions too."""
    _same_bytes(_ours(_decode(codes), "R"), seed)


OWN = {id(v): v for r in structs.every() for n in TREE.values() if r.exists(n) for v in [r.at(n)]}


@pytest.mark.parametrize("record", OWN.values(), ids=lambda record: f"{record.ctype}-{record.sizeof()}")
def test_our_records_keep_their_bytes(record: CStruct | CUnion) -> None:
    for seed in range(3):
        _same_bytes(record, seed)


@pytest.mark.parametrize("ask", [lambda record: record, lambda record: record.construct])
def test_a_declaration_is_a_construct_among_others(ask: Callable[[CStruct], Any]) -> None:
    record = CStruct("PAIR", "small" / fields.NvU8, "fds" / Fd()[2])
    both = construct.Struct("head" / construct.Byte, "pairs" / construct.Array(2, ask(record)))
    parsed = both.parse(bytes(range(1 + 2 * 12)))
    assert [pair.fds[1] for pair in parsed.pairs] == [0x0C0B0A09, 0x18171615]
    assert both.build(parsed) == bytes(range(1 + 2 * 12))
    assert isinstance(ask(record), construct.Struct)
    assert construct.GreedyRange(ask(record)).parse(bytes(36)) == [record.parse(bytes(12))] * 3
    assert (ask(record) >> construct.Byte).parse(bytes(12) + b"\x07")[1] == 7
    assert construct.Sequence(construct.Byte, ask(record)).sizeof() == 13
    assert (construct.Struct("a" / construct.Byte) + ask(record)).parse(b"\x01\x02" + bytes(11)).small == 2
    assert (record.sizeof(), record.field("fds").subcon.sizeof(), record.construct.sizeof()) == (12, 8, 12)
    with pytest.raises(AttributeError, match="nothing"):
        _ = NvU32.nothing


@given(st.binary(max_size=80))
def test_short_bytes_are_an_answer(data: bytes) -> None:
    """Fewer bytes than the struct raise construct's own error and nothing else; more are left alone."""
    record = NV_EVENT_BUFFER_ALLOC_PARAMETERS
    if len(data) < record.sizeof():
        with pytest.raises(construct.StreamError):
            record.parse(data)
    else:
        assert record.build(record.parse(data)) == data[: record.sizeof()]
