"""nvproxy-policy drivers and audit: which release stands for which, checksums, what crosses the boundary."""

from __future__ import annotations

import csv
import hashlib
import html.parser
import json
from pathlib import Path
from typing import Any

import pytest

from nvproxy_model import Policy, versions
from nvproxy_model.tools.policy import drivers, main
from tests import schemas

TREE = versions.load()


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    try:
        status = main(argv)
    except SystemExit as stop:
        status = int(stop.code or 0)
    return (status, *capsys.readouterr())


def document(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    return schemas.document(run(capsys, *argv, "--json")[1])


def test_the_list_is_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "drivers")
    assert [release["release"] for release in found["releases"]] == list(TREE)
    status, out, _ = run(capsys, "drivers", "--format", "csv")
    rows = list(csv.DictReader(out.splitlines()))
    assert status == 0
    assert {row["release"]: row["supported"] for row in rows} == {
        name: "yes" if node.supported else "no" for name, node in TREE.items()
    }
    assert run(capsys, "drivers")[1].startswith(f"{len(TREE)} releases, ")


def test_this_machines_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    proc = tmp_path / "version"
    monkeypatch.setattr(versions.host, "__defaults__", (proc,))
    assert document(capsys, "drivers")["host"] is None
    status, _, err = run(capsys, "drivers", "host")
    assert (status, err.count("\n")) == (2, 1)
    proc.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.211.01  Wed\n")
    assert "this machine has 570.211.01, which is not listed" in run(capsys, "drivers")[1]
    status, out, _ = run(capsys, "drivers", "host")
    assert (status, out.partition(":")[0]) == (0, "yes, as 570.195.03")


@pytest.mark.parametrize(
    ("release", "status", "runs_as", "flag"),
    [
        ("580.126.20", 0, "580.126.20", None),
        ("latest", 0, TREE.latest.name, None),
        ("570.211.01", 0, "570.195.03", "--nvproxy-driver-version=570.195.03"),
        ("595.45.04", 1, None, None),
        ("575.51.02", 1, None, None),
    ],
)
def test_one_release(
    release: str, status: int, runs_as: str | None, flag: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, "drivers", release)
    assert (found["runs_as"], found["flag"]) == (runs_as, flag)
    seen, out, err = run(capsys, "drivers", release)
    assert (seen, err) == (status, "")
    assert out.startswith("yes" if status == 0 else "no")
    assert flag is None or flag in out


def test_a_release_that_stands_in_decides_every_number_alike() -> None:
    """The claim behind the flag, by the policy itself: no number of any table is decided otherwise."""
    for node in TREE.values():
        stand_in = drivers._supported(node)
        if stand_in is None or stand_in is node:
            continue
        one, other = (
            Policy.for_driver(name, "all,profiling,rdma,fabric-imex-mgmt", allow_unsupported=True)
            for name in (node.name, stand_in.name)
        )
        for table in ("frontend", "uvm", "control", "alloc"):
            assert getattr(one, table).keys() == getattr(other, table).keys()


@pytest.mark.parametrize("release", ["1.2.3", "580.99.99", "x"])
def test_an_unknown_release_is_one_line(release: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "drivers", release)
    assert (status, out, err.count("\n")) == (2, "", 1)


def test_an_installers_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    content = b"#!/bin/sh\n" * 1000
    good = hashlib.sha256(content).hexdigest()
    (tmp_path / "a.run").write_bytes(content)
    (tmp_path / "NVIDIA-Linux-x86_64-580.126.20.run").write_bytes(content)
    (tmp_path / "NVIDIA-Linux-x86_64-580.99.99.run").write_bytes(content)
    assert run(capsys, "drivers", "--installer", str(tmp_path / "a.run"))[0] == 2
    status, out, _ = run(capsys, "drivers", "--installer", str(tmp_path / "NVIDIA-Linux-x86_64-580.126.20.run"))
    assert (status, out.partition(":")[0]) == (1, "no")
    assert TREE["580.126.20"].sha256["x86_64"] in out
    assert run(capsys, "drivers", "--installer", str(tmp_path / "NVIDIA-Linux-x86_64-580.99.99.run"))[0] == 2
    monkeypatch.setattr(drivers, "_checksums", lambda node: {"x86_64": good} if node.name == "580.126.20" else {})
    status, out, _ = run(capsys, "drivers", "--installer", str(tmp_path / "a.run"))
    assert (status, out.partition(":")[0]) == (0, "yes")
    assert "580.126.20 for x86_64" in out
    status, _, err = run(capsys, "drivers", "--installer", str(tmp_path / "none.run"))
    assert (status, err.count("\n")) == (2, 1)
    assert run(capsys, "drivers", "latest", "--installer", "x")[0] == 2


# audit


def test_audit_counts_what_the_guest_can_see(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "audit", "--driver", "580.105.08")
    seen = {(row["name"], row["path"]) for row in found["fields"] if row["reaches_guest"]}
    assert ("NV2080_CTRL_CMD_GPU_GET_PIDS", "pidTbl") in seen
    assert ("NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2", "samples[].fb.procId") in seen
    assert not any(path == "ProcessID" for _, path in seen)  # cleared for a program's call
    assert found["reaches_guest"] == {"pid": len(seen), "host-address": 0}
    assert found["headline"][0].startswith(f"{len(seen)} fields of 2 calls can show the guest process numbers")
    assert run(capsys, "audit", "--driver", "580.105.08")[1].splitlines()[0] == found["headline"][0]


def test_audit_lists_what_the_capabilities_open_and_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    plain = {row["name"] for row in document(capsys, "audit", "--caps", "compute,utility")["fields"]}
    profiling = document(capsys, "audit", "--caps", "compute,utility,profiling")
    assert "NV_EVENT_BUFFER" not in plain
    assert {row["path"] for row in profiling["fields"] if row["name"] == "NV_EVENT_BUFFER"} >= {"notificationHandle"}
    policy = Policy.for_driver("latest", "compute,utility,profiling")
    for row in profiling["fields"]:
        assert not policy.call(row["table"], row["number"]).rule.rejected  # type: ignore[union-attr]
        assert set(row["caps"]) <= {"compute", "utility", "profiling"}


@pytest.mark.parametrize("form", ["csv", "markdown", "html"])
def test_audit_in_other_forms_has_every_field(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    fields = document(capsys, "audit")["fields"]
    status, out, err = run(capsys, "audit", "--format", form)
    assert (status, err) == (0, "")
    if form == "csv":
        assert len(list(csv.DictReader(out.splitlines()))) == len(fields)
    elif form == "markdown":
        assert sum(line.startswith("| ") and "0x" in line for line in out.splitlines()) == len(fields)
        assert out.startswith("13 fields of 2 calls")
    else:
        opened: list[str] = []

        class Page(html.parser.HTMLParser):
            def handle_starttag(self, tag: str, attrs: object) -> None:
                opened.append(tag)

        Page().feed(out)
        assert opened.count("tr") == len(fields) + 1
        assert "script" not in opened
        assert "13 fields of 2 calls" in out


# restorable

TRACES = Path(__file__).parent.parent / "data" / "traces"


@pytest.mark.parametrize(
    ("trace", "status", "classes", "living"),
    [
        ("nvidia-smi", 0, set(), 0),
        ("event-buffer-chain", 1, {"NV_EVENT_BUFFER"}, 0),
        ("nsys-gpuctxsw-3", 1, {"NV_EVENT_BUFFER"}, 0),
        ("torch-matmul", 1, {"NV01_EVENT_OS_EVENT", "NV01_MEMORY_SYSTEM_OS_DESCRIPTOR"}, None),
    ],
)
def test_what_a_checkpoint_could_not_bring_back(
    trace: str, status: int, classes: set[str], living: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(TRACES / f"{trace}.jsonl.gz")
    seen, out, _ = run(capsys, "restorable", path)
    assert (seen, out.partition(":")[0]) == (status, "no" if status else "yes")
    found = document(capsys, "restorable", path)
    assert {entry["name"] for entry in found["objects"]} >= classes
    assert bool(found["objects"]) == bool(classes)
    assert found["living_at_the_end"] == sum(entry["until"] is None for entry in found["objects"])
    assert living is None or found["living_at_the_end"] == living
    for entry in found["objects"]:
        assert entry["until"] is None or entry["from"] < entry["until"]


def test_a_trace_without_bytes_is_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        {"schema": "nvproxy-trace/1", "driver": "580.126.20"},
        {"k": "open", "t": 0, "pid": 1, "tid": 1, "fd": 3, "ret": 3, "dev": "/dev/nvidiactl", "path": "/dev/nvidiactl"},
        {"k": "ioctl", "t": 1, "pid": 1, "tid": 1, "fd": 3, "dev": "/dev/nvidiactl", "kind": "fe", "key": "0x2b"}
        | {"req": "0xc030462b"},
        {"k": "end", "records": 2},
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    status, out, _ = run(capsys, "restorable", str(path))
    assert (status, out.partition(":")[0]) == (2, "could not tell")
