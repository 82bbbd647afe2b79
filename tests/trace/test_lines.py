"""The limit of a line wherever its bytes fall, and what stands between two traces."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvproxy_model.trace.format import SCHEMA
from nvproxy_model.trace.lines import Problems, split
from nvproxy_model.trace.reader import Reader

LIMIT = 8


def read(chunks: list[bytes]) -> tuple[list[tuple[int, bytes, bool]], list[int]]:
    problems = Problems()
    found = list(split(chunks, problems, LIMIT))
    assert all(text == f"a line of more than {LIMIT} bytes was dropped" for _, text in problems.kept)
    return found, [line for line, _ in problems.kept]


@pytest.mark.parametrize(
    ("chunks", "kept", "dropped"),
    [
        ([b"12345678\n"], [1], []),
        ([b"123456789\n"], [], [1]),
        ([b"123456", b"789\nab\n"], [2], [1]),
        ([b"123456", b"78\nab\n"], [1, 2], []),
        ([b"ab\n123456789\ncd\n"], [1, 3], [2]),
        ([b"ab\n12345", b"6789\ncd\n"], [1, 3], [2]),
        ([b"1234567", b"8", b"9", b"0\nab"], [2], [1]),
        ([b"ab\n123456789"], [1], [2]),
        ([b"ab\n1234567", b"89"], [1], [2]),
    ],
)
def test_a_line_over_the_limit(chunks: list[bytes], kept: list[int], dropped: list[int]) -> None:
    """In one chunk, over the border of two or four, at the end without a newline."""
    found, problems = read(chunks)
    assert ([number for number, _, _ in found], problems) == (kept, dropped)


@given(st.lists(st.binary(max_size=12).map(lambda data: data.replace(b"\0", b"\n")), max_size=12))
def test_lines_do_not_depend_on_the_chunks(chunks: list[bytes]) -> None:
    whole = b"".join(chunks)
    found, dropped = read(chunks)
    lines = whole.split(b"\n")
    last = len(lines)
    expected = [(n, line, n < last) for n, line in enumerate(lines, 1) if len(line) <= LIMIT and (line or n < last)]
    assert found == expected
    assert dropped == [n for n, line in enumerate(lines, 1) if len(line) > LIMIT]


Write = Callable[..., Path]
HEAD = f'{{"schema":"{SCHEMA}","driver":null}}'
OPEN = '{"k":"open","t":0,"pid":1,"tid":1,"fd":3,"ret":3,"path":"/dev/nvidiactl"}'


@pytest.mark.parametrize("records", [0, 1])
def test_a_second_header_before_the_end(records: int, write: Write) -> None:
    text = [HEAD, *[OPEN] * records, HEAD, OPEN, '{"k":"end","records":1}']
    reader = Reader(write("\n".join(text) + "\n"))
    assert len(list(reader)) == records + 1
    assert [line for line, _ in reader.problems.kept] == [records + 2]
    assert "a second header before" in reader.problems.kept[0][1]
    assert not reader.complete


def test_the_author_of_a_refusal_is_one_of_three(write: Write) -> None:
    lines = [
        OPEN.replace('"ret":3', f'"ret":-1,"err":1,"by":"{by}"') for by in ("nvproxy", "driver", "permission", "nobody")
    ]
    reader = Reader(write("\n".join([HEAD, *lines, '{"k":"end","records":3}']) + "\n"))
    assert [rec.by for rec in reader] == ["nvproxy", "driver", "permission"]
    assert [line for line, _ in reader.problems.kept] == [5]


@pytest.mark.parametrize(("value", "inside"), [("true", True), ("false", False), (None, False)])
def test_a_header_says_where_it_was_recorded(value: str | None, inside: bool, write: Write) -> None:
    head = HEAD if value is None else HEAD.replace("}", f',"inside":{value}}}')
    reader = Reader(write(f'{head}\n{OPEN}\n{{"k":"end","records":1}}\n'))
    list(reader)
    assert (reader.header.inside, reader.complete) == (inside, True)
    assert reader.header.as_json().get("inside", False) is inside
