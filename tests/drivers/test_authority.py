"""Who may call what, over the releases and over the chips."""

from __future__ import annotations

import pytest

from nvproxy_model import versions
from nvproxy_model.drivers import authority, facts
from nvproxy_model.drivers.names import ever

FACTS = facts.load(facts.FACTS)
TREE = versions.load()


@pytest.mark.parametrize(
    ("release", "table", "number", "name", "words"),
    [
        (
            "610.57.04",
            "control",
            0xF80102,
            "NV00F8_CTRL_CMD_DESCRIBE",
            "any user since 545.23.06; administrators only (CAP_SYS_ADMIN in the first user namespace) from 525.53; "
            "before that kernel clients only",
        ),
        ("535.129.03", "control", 0x20800309, None, "not exported"),
        ("545.29.06", "control", 0x20800309, None, "any user since 545.29.06; before that not exported"),
        ("610.57.04", "control", 0x80028B, None, "not exported"),
        (
            "550.40.07",
            "control",
            0x801B01,
            "NV0080_CTRL_CMD_MSENC_GET_CAPS",
            "not exported, a deprecated form that the driver converts first since 550.40.07; before that any user",
        ),
        (
            "595.71.05",
            "control",
            0x208001B2,
            None,
            "any user since 565.57.01; not exported from 550.40.07; the driver itself only from 535.86.10; "
            "before that not exported",
        ),
        ("610.57.04", "alloc", 0xB1CC, None, "any user since 565.57.01; before that not exported"),
        ("610.57.04", "alloc", 0x41, None, "any user"),
    ],
)
def test_a_privilege_in_words(release: str, table: str, number: int, name: str | None, words: str) -> None:
    said = authority.ask(FACTS, release, table, number, name)
    assert said is not None
    assert said.words == words


@pytest.mark.parametrize(
    ("number", "chips"),
    [
        (0xC797, "GA102, GA103, GA104, GA106, GA107"),
        (0xC9C0, "Ada"),
        (0xB1CC, "Turing and later"),
        (0x41, "every chip"),
        (0xC697, "GA100"),
    ],
)
def test_chips_in_words(number: int, chips: str) -> None:
    said = authority.ask(FACTS, "610.57.04", "alloc", number, None)
    assert said is not None
    assert authority.chips_in_words(said.chips, said.all_chips) == chips
    early = authority.ask(FACTS, "570.86.15", "alloc", number, None)
    assert early is not None
    assert authority.chips_in_words(early.chips, early.all_chips) is None


def test_sizes_come_from_the_headers() -> None:
    said = authority.ask(FACTS, "610.57.04", "control", 0x208001A3, None)
    assert said is not None
    assert (said.struct, said.size, said.handle) == (
        "NV2080_CTRL_CMD_GET_GPU_FABRIC_PROBE_INFO_PARAMS",
        56,
        "Subdevice",
    )
    none = authority.ask(FACTS, "610.57.04", "control", 0x20800145, None)
    assert none is not None
    assert (none.struct, none.size, none.privilege) == (None, 0, "user")
    assert authority.ask(FACTS, "610.57.04", "uvm", 0x21, None) is None


def test_what_no_row_has_foretells_the_next_reports() -> None:
    """Classes that gVisor has open, and controls that it added later, were in these lists at the release before."""
    found = FACTS.privileges("610.57.04")
    assert found is not None
    node = TREE["610.57.04"]
    classes = {m.number: m.name for m in authority.classes_without_row(found, node)}
    assert classes[0xCED0] == "NVCED0_VIDEO_NVJPG"
    assert classes[0xCDCD] == "TRACE_DEVICE_EVENT"
    on = {m.number for m in authority.classes_without_row(found, node, "GB20B")}
    assert 0xCED0 in on
    assert 0xCED0 not in {m.number for m in authority.classes_without_row(found, node, "GH100")}
    controls = authority.controls_without_row(found, node, lambda number: ever().name("control", number))
    assert len(controls) > 300
    assert all(found.exports[m.number].privilege == "user" for m in controls)
    assert [rule.name for rule, _ in authority.administrator_rows(found, node)] == [
        "NV2080_CTRL_CMD_CE_GET_LCE_SHIM_INFO"
    ]
    imex = {rule.number for rule, _ in authority.administrator_rows(found, TREE["620.06.00"])}
    assert {0x2080309D, 0x208030A0, 0x208030A1, 0x208030A2} <= imex


def test_changes_of_a_privilege() -> None:
    changes = authority.changes(FACTS, "control", 0xF80102, "NV00F8_CTRL_CMD_DESCRIBE")
    assert [(c.version, c.before, c.privilege) for c in changes] == [
        ("515.43.04", None, "kernel"),
        ("525.53", "kernel", "administrator"),
        ("545.23.06", "administrator", "user"),
    ]


def test_a_release_without_facts_is_answered_by_its_nearest_ancestor() -> None:
    assert authority.recorded_for(FACTS, TREE["620.51.00"]) == "610.57.04"
    assert authority.recorded_for(FACTS, TREE["580.178.04"]) == "580.159.04"
