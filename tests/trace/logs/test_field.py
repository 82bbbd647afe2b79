"""Logs as people have them (tests/data/field): each file's calls, whatever its wrapping, and what of it could not be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nvproxy_model.trace.lines import TraceError
from nvproxy_model.trace.logs.kinds import Import
from tests import ROOT

FIELD = ROOT / "tests" / "data" / "field"
CTL = "/dev/nvidiactl"


def read(*names: str) -> tuple[list[dict[str, Any]], Import]:
    source = Import(*(FIELD / name for name in names))
    return list(source), source


def call(record: dict[str, Any]) -> tuple[Any, ...]:
    """What a record says, without what differs between two wrappings of one log: times and process numbers."""
    return tuple(sorted((key, value) for key, value in record.items() if key not in ("t", "d", "pid", "tid")))


WRAPPED = [
    *("m-compose.log", "m-crlf.log", "m-grepn.log", "m-journal.log", "m-json.log", "m-jsonarray.log", "m-jsonk8s.log"),
    *("m-kubectl.log", "m-utf16.log", "m.log.gz"),
]


@pytest.mark.parametrize("name", WRAPPED)
def test_a_sandbox_log_in_every_wrapping(name: str) -> None:
    records, source = read(name)
    assert (source.kind, source.problems.count, source.inside) == ("nvproxy-log", 0, True)
    assert [(r["kind"], r["key"], r["refused"], r["by"], r["ret"], r["fd"], r["dev"]) for r in records] == [
        ("control", "0x20803504", "handler is undefined", "nvproxy", 0, 3, CTL),
        ("alloc", "0x90cd", "missing capability", "nvproxy", 0, 3, CTL),
    ]
    assert not any("status" in r for r in records), "no status is invented"
    assert [r["d"] for r in records] == [20731, 21739]


def test_warnings_alone() -> None:
    records, _ = read("m-warnonly.log")
    assert [(r["kind"], r["key"], r["by"], r.get("ret")) for r in records] == [
        ("control", "0x20803504", "nvproxy", None),
        ("alloc", "0x90cd", "nvproxy", None),
    ]


def test_wordings_of_2023() -> None:
    records, source = read("oldera.log")
    assert not source.problems.count
    assert [(r["kind"], r["key"], r["req"], r["by"], r["ret"], r["err"]) for r in records] == [
        ("control", "0x3d05", "0xc020462a", "nvproxy", -1, 22),
        ("uvm", "0x22", "0x22", "nvproxy", -1, 22),
    ]


def test_every_wording() -> None:
    records, source = read("wordings.log")
    assert not source.problems.count
    assert [(r["kind"], r["key"], r.get("by"), r.get("status")) for r in records] == [
        ("uvm", "0x25", "nvproxy", None),
        ("fe", "0x32", "nvproxy", None),
        ("alloc", "0xc7c0", "nvproxy", None),
        ("control", "0x20801230", "nvproxy", None),
        ("control", "0x20800102", "driver", "0x56"),
        ("fe", "0x27", "nvproxy", "0x2e"),
        ("fe", "0x4a", "nvproxy", None),
    ]


def test_a_wording_that_nobody_knows_is_shown() -> None:
    records, source = read("newest.log")
    assert [(r["kind"], r["key"], r["status"], r.get("by")) for r in records] == [
        ("control", "0x20803504", "0x56", None)
    ]
    assert [line for line, _ in source.problems.kept] == [2]
    said = "the moon is not in a supported phase for command 0x2080"
    assert source.problems.kept[0][1] == f"nvproxy said something that is not understood: {said!r}"


def test_the_driver_that_the_log_names() -> None:
    records, source = read("driver.log")
    assert (len(records), source.driver) == (1, "580.126.20")


def test_runsc_s_own_lines() -> None:
    records, source = read("11069b.log")
    assert not source.problems.count
    assert [(r["k"], r.get("path") or r["dev"], r["fd"], r["ret"], r.get("err"), r.get("by")) for r in records] == [
        ("open", CTL, 3, 3, None, None),
        ("ioctl", CTL, 3, 0, None, None),
        ("open", "/dev/nvidia0", -1, -1, 1, "permission"),
    ]


@pytest.mark.parametrize("name", ["journal-cut.log", "trunc.log", "trunc2.log"])
def test_a_torn_number_is_not_a_number(name: str) -> None:
    records, source = read(name)
    assert records == []
    assert source.problems.kept[0][0] == 1
    assert "cut" in source.problems.kept[0][1]


STYLES = [
    *("s-T.txt", "s-f-o-t.txt", "s-fr.txt", "s-grepn.txt", "s-i.txt", "s-indent.txt", "s-journal.txt", "s-k.txt"),
    *("s-kubectl.txt", "s-mdquote.txt", "s-n.txt", "s-pidcomm.txt", "s-pidcomm2.txt", "s-r.txt", "s-t-date.txt"),
    *("s-ttt-f-o.txt", "s-utf16.txt", "s-wide.txt"),
]


@pytest.mark.parametrize("name", STYLES)
def test_strace_in_every_style(name: str) -> None:
    plain, _ = read("s-base.txt")
    records, source = read(name)
    assert (source.kind, source.problems.count) == ("strace", 0)
    assert [call(r) for r in records] == [call(r) for r in plain]
    assert len(records) == 8
    if "4711" in (FIELD / name).read_text("utf-8", "replace"):
        assert {r["pid"] for r in records} == {4711}


@pytest.mark.parametrize(
    ("name", "times"),
    [
        ("s-f-o-t.txt", [1000 * at for at in range(8)]),
        ("s-ttt-f-o.txt", [1000 * at for at in range(8)]),
        ("s-r.txt", [1000 * at * (at + 1) // 2 for at in range(8)]),
        ("s-t-date.txt", [0] * 8),
    ],
)
def test_times_are_nanoseconds_since_the_first(name: str, times: list[int]) -> None:
    assert [r["t"] for r in read(name)[0]] == times


OTHERS = {
    "s-Xraw.txt": ["open", "0xd2", "0x2b", "open", "0x30000001", "0x25"],
    "s-Xverbose.txt": ["open", "0xd2", "open", "0x25"],
    "s-ansi.txt": ["0x2a"],
    "s-old-open.txt": ["open", "0xd2", "0x2b"],
    "s-openpad.txt": ["open", "0x30000001", "0x25", "open", "0xd2"],
    "s-resumed.txt": ["open", "open", "0x2b", "0x2a", "0x2a"],
    "s-w.txt": ["0xd2"],
    "s-yy.txt": ["open", "0xd2", "0x25", "0xc9"],
    "strace-N.txt": ["open", "0x2a", "0x2b"],
    "strace71-N.txt": ["open", "0x2a", "0x2b", "0x1", "0x25", "0xc0106d00", "close", "0x2a"],
    "s-words.txt": ["open", "0x2a"],
    "s-ancient.txt": ["open", "0xc8", "0xca"],
}


@pytest.mark.parametrize("name", OTHERS)
def test_strace_in_other_shapes(name: str) -> None:
    records, source = read(name)
    assert (source.kind, source.problems.count) == ("strace", 0)
    assert [r.get("key", r["k"]) for r in records] == OTHERS[name]


def test_a_deleted_node_is_its_device() -> None:
    assert read("s-yy.txt")[0][-1]["dev"] == "/dev/nvidia0"


@pytest.mark.parametrize(("name", "whole"), [("strace-v-307.txt", False), ("strace-v-307-s4096.txt", True)])
def test_the_bytes_that_v_prints(name: str, whole: bool) -> None:
    records, source = read(name)
    assert not source.problems.count
    assert [(r["kind"], r["key"], r.get("status")) for r in records if r["k"] == "ioctl"] == [
        ("control", "0x3d05", "0x56"),
        ("control", "0x20803801", "0x0"),
        ("alloc", "0x90cd", "0x22" if whole else None),
    ]
    control, alloc = records[1], records[3]
    assert bytes.fromhex(control["top0"])[8:12] == (0x3D05).to_bytes(4, "little")
    assert bytes.fromhex(control["top1"])[28:32] == (0x56).to_bytes(4, "little")
    assert len(bytes.fromhex(alloc["top0"])) == (48 if whole else 32)


def test_requests_of_other_drivers_are_named_for_what_they_are() -> None:
    records, source = read("s-foreign.txt")
    assert not source.problems.count
    assert [(r["k"], r.get("kind"), r.get("path") or r.get("dev")) for r in records] == [
        (k, kind, dev)
        for dev in ("/dev/nvidia-modeset", "/dev/dri/renderD128", "/dev/dxg")
        for k, kind in (("open", None), ("ioctl", "other"))
    ]


@pytest.mark.parametrize(("name", "code"), [("s-eperm.txt", 1), ("s-enoent.txt", 2), ("s-eacces.txt", 13)])
def test_opens_that_fail(name: str, code: int) -> None:
    assert {(r["k"], r["ret"], r["err"], r["by"]) for r in read(name)[0]} == {("open", -1, code, "permission")}


@pytest.mark.parametrize("order", [("s-ff.4711", "s-ff.4712"), ("s-ff.4712", "s-ff.4711")])
def test_one_file_a_thread(order: tuple[str, str]) -> None:
    records, source = read(*order)
    assert not source.problems.count
    assert [(r["pid"], r["tid"], r.get("key", r["k"]), r.get("dev")) for r in records] == [
        (4711, 4711, "open", None),
        (4711, 4712, "0x2a", CTL),
        (4711, 4711, "open", None),
        (4711, 4712, "0xc9", "/dev/nvidia0"),
    ]


def test_one_file_a_thread_without_times() -> None:
    records, source = read("s-ffn.4711", "s-ffn.4712")
    assert len(records) == 4
    assert "strace-log-merge" in source.problems.kept[0][1]


def test_a_summary_is_not_a_log() -> None:
    with pytest.raises(TraceError, match="strace -c"):
        read("s-c.txt")


def test_the_sniffer_of_2024() -> None:
    records, source = read("sniffer2024.txt")
    assert (source.kind, source.problems.count) == ("ioctl-sniffer", 0)
    assert [(r["kind"], r["key"], r["req"]) for r in records] == [
        ("control", "0x20801348", "0xc020462a"),
        ("alloc", "0x90cd", "0xc030462b"),
    ]


HOSTILE = {
    "nvproxy_dev.txt": (0, [1, 2]),
    "nvproxy_err.txt": (1, [2]),
    "strace_esc.txt": (2, []),
    "strace_fd.txt": (0, [1, 2]),
    "strace_octal.txt": (1, [2]),
    "strace_openret.txt": (0, [1, 2]),
    "strace_pid.txt": (0, [1]),
    "strace_ret_big.txt": (1, [2]),
    "strace_ret_u64.txt": (2, []),
    "strace_surrogate.txt": (1, [1]),
    "strace_time.txt": (1, [2]),
    "strace_ypath.txt": (0, [1]),
}
"""File -> how many records are left, and the lines that are reported."""


@pytest.mark.parametrize("name", HOSTILE)
def test_one_bad_line_costs_one_line(name: str) -> None:
    source = Import(ROOT / "tests" / "data" / "hostile" / name)
    assert (len(list(source)), [line for line, _ in source.problems.kept]) == HOSTILE[name]


def test_every_file_here_is_tested() -> None:
    """By these tests, or by those of the command."""
    texts = "".join(path.read_text() for path in (Path(__file__), ROOT / "tests" / "tools" / "test_field_command.py"))
    folders = (FIELD, ROOT / "tests" / "data" / "hostile")
    assert [path.name for folder in folders for path in folder.iterdir() if f'"{path.name}"' not in texts] == []
