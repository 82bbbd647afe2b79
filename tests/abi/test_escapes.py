"""Escape numbers and their structs, against the recorded headers of every release and against the table's rows."""

from __future__ import annotations

import pytest

from nvproxy_model import abi
from nvproxy_model.abi import escapes
from nvproxy_model.abi.windows import NV2081_BINAPI, RM_GSS_LEGACY_MASK, WINDOWS, window, windows
from nvproxy_model.drivers import facts
from nvproxy_model.fields import CStruct
from nvproxy_model.rules import Rule

FACTS = facts.load()


@pytest.mark.parametrize("name", sorted(escapes.NUMBERS))
def test_a_number_is_the_headers_in_every_release(name: str) -> None:
    values = {value for _, value in FACTS.runs("constants", name) if value is not None}
    assert values == {escapes.NUMBERS[name]}


def test_every_escape_of_the_headers_is_here() -> None:
    named = {name for name in FACTS.names("constants") if name.startswith("NV_ESC_")}
    assert named == set(escapes.NUMBERS)


@pytest.mark.parametrize("rule", abi.FRONTEND, ids=lambda rule: rule.name)
def test_a_row_takes_the_struct_that_the_driver_gives_it(rule: Rule) -> None:
    assert escapes.NAMES[rule.number] == rule.name
    named = rule.params.ctypes if isinstance(rule.params, CStruct) else (rule.struct,)
    if rule.name != "NV_ESC_ATTACH_GPUS_TO_FD" and rule.struct is not None:
        assert set(named) <= set(escapes.ARGUMENTS[rule.number])


def test_the_windows_and_their_order() -> None:
    assert window(0x20800000 | RM_GSS_LEGACY_MASK) == WINDOWS[0] == "RM_GSS_LEGACY_MASK"
    assert window(NV2081_BINAPI << 16 | 1) == WINDOWS[1]
    assert windows(NV2081_BINAPI << 16 | RM_GSS_LEGACY_MASK) == WINDOWS
    assert windows(0x20800101) == windows(-1) == windows(1 << 32 | RM_GSS_LEGACY_MASK) == ()
