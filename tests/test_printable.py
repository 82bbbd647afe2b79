"""What a terminal acts on never leaves raw, whatever the text was."""

from __future__ import annotations

import json
import unicodedata

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvproxy_model.printable import escaped_json, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/dev/nvidia0", "/dev/nvidia0"),
        ("a\x1b[31mb", r"a\x1b[31mb"),
        ("a\x9b31mb", r"a\x9b31mb"),
        ("left\u202eright", r"left\u202eright"),
        ("\u2066isolate\u2069", r"\u2066isolate\u2069"),
        ("line\nbreak\ttab\x7f", r"line\nbreak\ttab\x7f"),
        ("para\u2029graph", r"para\u2029graph"),
        ("\ud800", r"\ud800"),
        ("Größe µs 中", "Größe µs 中"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_examples(text: str, shown: str) -> None:
    assert printable(text) == shown


def acts(text: str) -> bool:
    return any(char not in " \n" and unicodedata.category(char)[0] not in "LNPSM" for char in text)


@given(st.text(st.characters(codec=None)))
def test_nothing_that_acts_is_left(text: str) -> None:
    assert not acts(printable(text))
    assert "\n" not in printable(text)


@given(st.recursive(st.text(st.characters(codec="utf-8")) | st.integers(0, 1 << 60), st.lists))
def test_a_document_keeps_its_values(value: object) -> None:
    document = escaped_json(orjson.dumps({"value": value}, option=orjson.OPT_APPEND_NEWLINE))
    assert not acts(document.decode())
    assert json.loads(document) == {"value": value}
