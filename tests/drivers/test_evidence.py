"""The second grade of evidence: tables that other projects made, and a user's own releases beside the shipped ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvproxy_model.drivers import evidence, facts
from nvproxy_model.drivers.facts import recorded
from nvproxy_model.tools.driver_differ import main
from tests.drivers.driver_world import git, repository, tree
from tests.drivers.parsing.test_nvoc import tree as tables

FACTS = facts.load(facts.FACTS)


def run(*arguments: str) -> int:
    """The exit status, whether the command returns it or ends with it."""
    try:
        return main(list(arguments))
    except SystemExit as error:
        return int(str(error.code))


def test_agreement_is_not_sameness(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", "615.71.09", "--json") == 2
    (release,) = json.loads(capsys.readouterr().out)["releases"]
    assert release["status"] == "agrees"
    for words in ("215 controls", "102 classes", "28 UVM commands", "virtio-nvgpu @d2b32984"):
        assert words in release["reason"]
    for words in (
        "NV00FD_CTRL_CMD_ATTACH_REMOTE_GPU 48 (40 in 610.57.04)",
        "NV2080_CTRL_CMD_GET_GPU_FABRIC_PROBE_INFO 320 (56 in 610.57.04)",
        "NV2080_CTRL_CMD_GR_GET_GLOBAL_SM_ORDER 10264 (9240 in 610.57.04)",
    ):
        assert words in release["reason"]
    assert run("check", "610.57.04", "615.71.09") == 0
    assert "1 agrees with an independent table" in capsys.readouterr().out


@pytest.mark.parametrize(("kind", "number"), [("alloc", 0xA06C), ("control", 0x3D0E), ("uvm", 0x22)])
def test_a_table_that_disagrees_is_a_difference(kind: str, number: int) -> None:
    table = evidence.independent()["615.71.09"]
    sizes = {**table.sizes, kind: {**table.sizes[kind], number: table.sizes[kind][number] + 8}}
    checked = evidence.check_independent(table._replace(sizes=sizes), FACTS.release("610.57.04"))
    assert checked.status == "different"
    (finding,) = checked.findings
    assert finding.next == finding.base + 8


def test_a_file_that_holds_no_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").write_bytes(b"{}")
    monkeypatch.setattr(evidence, "FILE", tmp_path / "x")
    evidence.independent.cache_clear()
    assert run("check", "615.71.09") == 2
    evidence.independent.cache_clear()


def test_compat_goes_by_the_model_where_it_must(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compat", "580.159.04", "580.178.04") == 0
    out = capsys.readouterr().out
    assert out.startswith("yes, as far as the model goes: ")
    assert "not in our facts, which are of" in out
    assert run("compat", "610.57.04", "615.71.09", "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert report["not_recorded"] == ["615.71.09"]
    assert {finding["name"].partition(".")[0] for finding in report["deciding"]} == {
        "NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS",
        "NV0000_CTRL_OS_UNIX_CMD_MEMACCT_GET_IMPL",
    }
    assert run("compat", "580.159.04", "580.178.99") == 2


def test_every_recorded_release_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    run("check", "--recorded", "--json")
    report = json.loads(capsys.readouterr().out)
    assert len(report["releases"]) == 207
    assert report["summary"]["compared"] == 139
    kinds = {release["version"]: release["provenance"].rpartition(" ")[0] for release in report["releases"]}
    assert kinds["610.57.04"] == kinds["610.43.03"] == "commit"
    assert set(kinds.values()) == {"", "commit", "signed tag"}
    assert kinds["595.71.05"] == "signed tag"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "own" / "facts.zlib"
    monkeypatch.setenv("NVPROXY_FACTS", str(path))
    yield path
    recorded._load.cache_clear()


def _release(version: str, nvos: str) -> dict[str, str]:
    files = tree(f"typedef struct {{ {nvos} }} NEW_STRUCT;\n", version=version)
    return files | {path: content.decode() for path, content in tables().items()}


def test_a_users_own_release_stands_beside_the_shipped_ones(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    releases = {"610.57.04": _release("610.57.04", "NvU32 a;"), "999.1": _release("999.1", "NvU32 a; NvU64 b;")}
    repo = repository(tmp_path / "r", releases)
    (repo / "version.mk").write_text("NVIDIA_VERSION = 999.2\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "999.2")
    commit = git(repo, "rev-parse", "HEAD")
    assert run("record", "--add", "999.1", "--source", str(repo)) == 0
    assert "999.1: commit" in capsys.readouterr().out
    assert main(["record", "--add", f"999.2={commit[:12]}", "--source", str(repo)]) == 0
    loaded = facts.load()
    assert loaded.versions[-2:] == ("999.1", "999.2")
    assert (loaded.parent("999.1"), loaded.parent("999.2")) == ("610.57.04", "999.1")
    assert loaded.provenance("999.2").commit == commit
    assert loaded.release("999.1").structs["NEW_STRUCT"].size == 16
    assert "NEW_STRUCT" not in loaded.release("610.57.04").structs
    assert loaded.release("610.57.04").structs["NVOS64_PARAMETERS"].size == 48
    assert "NVOS64_PARAMETERS" not in loaded.release("999.1").structs
    privileges = loaded.privileges("999.2")
    assert privileges is not None
    assert privileges.exports[0x4711].privilege == "user"
    assert 0xF80102 not in privileges.exports
    assert run("history", "NEW_STRUCT") == 0
    assert "in 2 of 209 releases" in capsys.readouterr().out
    assert run("record", "--add", "999.1", "--source", str(repo)) == 0
    assert facts.load(own).versions == ("999.2", "999.1")


@pytest.mark.parametrize(
    ("add", "message"),
    [
        (["999.9"], "no such tag"),
        (["999.2=0123456789ab"], "no commit 0123456789ab"),
        (["999.2=HEAD"], "no commit HEAD"),
        (["999.3=TIP"], "is 999.1, not 999.3"),
        (["nine=TIP"], "not the name of a release"),
        (["999.1", "999.1"], "named twice"),
    ],
)
def test_what_cannot_be_added(
    add: list[str], message: str, own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repo = repository(tmp_path / "r", {"999.1": _release("999.1", "NvU32 a;")})
    tip = git(repo, "rev-parse", "HEAD")
    arguments = [word for text in add for word in ("--add", text.replace("TIP", tip))]
    assert run("record", *arguments, "--source", str(repo)) == 2
    assert message in capsys.readouterr().err
    assert not own.exists()


def test_an_own_file_that_is_damaged_is_named(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own.parent.mkdir()
    own.write_bytes(b"not xz")
    assert run("check") == 2
    assert str(own) in capsys.readouterr().err
