"""docs/differences.md: each deliberate difference from nvproxy, and that the page names these tests and no others."""

from __future__ import annotations

import re
import struct

import pytest

from nvproxy_model import Policy, Why
from tests import ROOT
from tests.abi.test_abi_tables import OURS_ALONE, SLIPS
from tests.session.paged import PAGE
from tests.session.test_session_after import CLIENT, DATA, OTHER, Guest, dmabuf, made, nvos64, os_descriptor

UNKNOWN = 0x0BAD0BAD


@pytest.mark.parametrize("short", [False, True])
def test_an_unknown_client_is_answered_with_the_guests_own_bytes(short: bool) -> None:
    """NV01_EVENT_OS_EVENT: its descriptor was looked up and replaced before the client is."""
    guest = Guest()
    params = struct.pack("<IIIIQ", 0, 0, 0x79, 0, OTHER)
    guest.memory.write(0x11000, params)
    argument = nvos64(0x79, client=UNKNOWN, params=0x11000)
    if short:
        argument = argument[:24] + argument[32:36] + argument[40:44]
    _, out = guest.call(0x2B, argument)
    at = 28 if short else 40
    assert out == argument[:at] + b"\x23\0\0\0" + argument[at + 4 :]
    assert guest.memory.read(0x11000, 24) == params
    assert guest.calls == []


def test_rows_follow_the_driver() -> None:
    for table, number, version in SLIPS:
        policy = Policy.for_driver(version, "all,profiling", allow_unsupported=True)
        assert table in ("alloc", "control")
        ask = policy.decide_alloc if table == "alloc" else policy.decide_control
        assert ask(number, b"", {}).why is Why.VERSION


def test_rows_of_our_own_answer_like_unknown_numbers() -> None:
    policy = Policy.for_driver("580.159.04", "all,profiling")
    for table, number in OURS_ALONE:
        rule = policy.rules[table].get(number)
        if rule is not None and not rule.rejected and not rule.opt_in:
            continue  # a row that somebody added on purpose
        decision = (policy.decide_alloc if table == "alloc" else policy.decide_control)(number, b"", {})
        unknown = policy.unknown("alloc" if table == "alloc" else "control", 0x7777)
        assert (decision.errno, decision.status) == (unknown.errno, unknown.status)
        assert decision.why in (Why.REFUSED, Why.OPT_IN)


def test_a_failed_export_shows_no_number_of_the_host() -> None:
    guest = Guest()
    result, out = guest.call(0xD9, dmabuf(-1), made(1 << 21, 0x57))
    assert (result.errno, out[:4], out[2600:2604]) == (0, b"\xff\xff\xff\xff", b"\x57\0\0\0")


def test_pins_of_an_orphan_are_named() -> None:
    guest = Guest()
    guest.memory.map(DATA, PAGE)
    argument = os_descriptor()
    guest.call(0x27, argument[:4] + b"\x99\0\0\0" + argument[8:])
    orphan = guest.session.graph.get(CLIENT, 0x0B01)
    assert orphan is not None
    assert not orphan.deps
    result, _ = guest.call(0x29, struct.pack("<IIII", CLIENT, 0, CLIENT, 0))
    assert result.unpin == ((DATA, PAGE),)


def test_the_page_names_every_test_of_this_file() -> None:
    named = re.findall(r"`(test_\w+)`", (ROOT / "docs" / "differences.md").read_text("utf-8"))
    here = {name for name in globals() if name.startswith("test_")} - {"test_the_page_names_every_test_of_this_file"}
    assert len(named) == len(set(named))
    assert set(named) == here
