"""Release trees, capability names."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from nvproxy_model import (
    DefinitionError,
    Policy,
    UnknownDriverVersion,
    UnsupportedDriverVersion,
    Why,
    abi,
    caps,
    rules,
    versions,
)
from nvproxy_model.caps import Caps
from nvproxy_model.followed import LATER, is_pending
from tests import ROOT

TREE = versions.load()


def test_ancestry_not_numbers() -> None:
    assert TREE["570.195.03"].parent is TREE["570.172.08"]
    assert not TREE["575.51.02"].descends_from("570.195.03")
    assert TREE["575.51.02"].descends_from("570.133.20")
    assert not TREE["545.23.06"].descends_from("535.129.03")


def test_the_table() -> None:
    content = json.loads(lzma.decompress((ROOT / "tests" / "data" / "nvproxy_abi.json.xz").read_bytes()))
    gvisor = [TREE[name] for name, _ in content["nodes"]]
    assert [node.name for node in gvisor if node.later is not None] == []
    assert (len(gvisor), sum(node.supported for node in gvisor)) == (39, 24)
    assert sorted(node.name for node in TREE.values() if is_pending(node.later)) == [
        "580.167.08",
        "580.173.10",
        "580.178.04",
        "620.32.00",
        "620.47.00",
        "620.51.00",
    ]
    assert TREE.latest.name == "620.51.00"


def test_the_derived_table_is_the_tables() -> None:
    """`python -m nvproxy_model.tools.pages --docs` writes it."""
    assert versions.DERIVED.read_text() == versions.derived()
    read = versions.load(ROOT / "driver_versions.yaml")
    assert [(*map(str, (n, n.parent)), n.supported, n.sha256, n.later) for n in TREE.values()] == [
        (*map(str, (n, n.parent)), n.supported, n.sha256, n.later) for n in read.values()
    ]


@pytest.mark.parametrize("derived", [None, "", '{"crc32": 0, "releases": {}}'])
def test_a_derived_table_of_another_text_is_left_alone(
    derived: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "DERIVED", tmp_path / "driver_versions.json")
    monkeypatch.setattr(versions, "_LOADED", {})
    if derived is not None:
        versions.DERIVED.write_text(derived)
    assert list(versions.load()) == list(TREE)


def test_three_states() -> None:
    assert Policy.for_driver("580.126.20").version.supported
    with pytest.raises(UnsupportedDriverVersion, match="opt in"):
        Policy.for_driver("595.71.05")
    assert Policy.for_driver("595.71.05", allow_unsupported=True).version.name == "595.71.05"
    with pytest.raises(UnknownDriverVersion, match=r"570\.195\.03 and 575\.51\.02"):
        Policy.for_driver("570.211.01", allow_unsupported=True)


@pytest.mark.parametrize(
    "text",
    ["", "580", "580.126", "580.126.20.1", "5x0.1.2", "580.126.20\n", "²80.1.2", "580. 126.20", "1" * 5000 + ".1"],
)
def test_versions_that_are_none(text: str) -> None:
    with pytest.raises(UnknownDriverVersion):
        TREE.find(text)


def test_numbers_as_go_reads_them() -> None:
    assert TREE.find("550.090.012", allow_unsupported=True).name == "550.90.12"
    assert TREE.find("latest") is TREE.latest


def test_what_is_later_is_in_the_table_of_later_commits() -> None:
    used = {node.later for node in TREE.values()} | {row.later for rows in abi.TABLES.values() for row in rows}
    assert used - {None} == set(LATER) - {"1117a51c"}  # a struct's, not a row's
    with pytest.raises(DefinitionError, match="no entry 'nowhere'"):
        versions.Tree({"2.1": {"parent": None, "supported": True, "later": "nowhere"}})
    with pytest.raises(DefinitionError, match="no entry 'nowhere'"):
        rules.uvm(1, "X", Caps.COMPUTE, None, later="nowhere")


def test_rows_that_were_only_seen_wait() -> None:
    waiting = Policy.for_driver("580.159.04", "all,profiling").decide_alloc(0xC797, bytes(16), {})
    assert (waiting.why, waiting.status) == (Why.PENDING, 0x22)
    assert "seen at 58dbfe45" in waiting.reason
    assert Policy.for_driver("580.159.04", "all,profiling", pending=True).decide_alloc(0xC797, bytes(16), {}).allowed
    assert Policy.for_driver("580.159.04", "all,profiling").decide_alloc(0xB1CC, bytes(4), {}).allowed  # merged


def test_a_child_before_its_parent() -> None:
    with pytest.raises(DefinitionError, match="must stand before"):
        versions.Tree({"2.1": {"parent": "1.1", "supported": True}})


def test_names_in_bit_order() -> None:
    assert str(caps.from_string(" utility ,compute,,compute")[0]) == "compute,utility"
    assert str(Caps.FABRIC_IMEX_MGMT) == "fabric-imex-mgmt"
    with pytest.raises(ValueError, match="fabric-imex-management"):
        caps.from_string("compute,fabric-imex-management")
    with pytest.raises(ValueError, match="Compute"):
        caps.from_string("Compute")


def test_all_is_a_flag_and_never_profiling() -> None:
    assert caps.from_string("all,profiling") == (Caps.PROFILING, True)
    assert caps.resolve("all,profiling") == caps.ALL_CONTAINER | Caps.PROFILING
    assert not caps.resolve("all") & Caps.PROFILING
    with pytest.raises(ValueError, match="ngx"):
        caps.resolve("ngx")


def test_container_flags_skip_what_only_the_sandbox_knows() -> None:
    assert caps.container_flags(caps.resolve("all,profiling")) == ("--compute", "--graphics", "--utility", "--video")


@pytest.mark.parametrize(
    ("requested", "allowed", "granted"),
    [
        (None, "utility,compute", "compute,utility"),
        ("", "utility", "utility"),
        ("all", "all,profiling", "compute,graphics,utility,video,profiling"),
        ("all,ngx", "compute", "compute"),
        ("compute", "compute,video", "compute"),
    ],
)
def test_grants(requested: str | None, allowed: str, granted: str) -> None:
    assert str(caps.grant(requested, allowed)) == granted


def test_more_than_allowed() -> None:
    with pytest.raises(ValueError, match="video"):
        caps.grant("compute,video", "compute")


def test_white_space_is_gos() -> None:
    """unicode.IsSpace of Go 1.22, written out; Python also strips 0x1c to 0x1f, which Go does not."""
    spaces = "\t\n\v\f\r\x20\x85\xa0\u1680\u2000\u2005\u200a\u2028\u2029\u202f\u205f\u3000"
    for space in spaces:
        assert caps.from_string(f"{space}compute{space},{space}") == (Caps.COMPUTE, False)
    for other in "\x1c\x1d\x1e\x1f\u200b\u2060\ufeff\x00":
        with pytest.raises(ValueError, match="driver capability"):
            caps.from_string(f"{other}compute")
