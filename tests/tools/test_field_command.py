"""nvproxy-trace on logs as people have them: who refused, what is said, and the exit status. The readers have their own tests."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvproxy_model.tools.trace import main
from nvproxy_model.trace.format import Header, writing
from tests import ROOT

FIELD = ROOT / "tests" / "data" / "field"
HOSTILE = ROOT / "tests" / "data" / "hostile"
TRACES = ROOT / "tests" / "data" / "traces"
RULES = ("--driver", "580.126.20", "--caps", "compute,utility")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def runner(*argv: Any) -> tuple[int, str, str]:
        try:
            status = main([str(word) for word in argv])
        except SystemExit as stop:
            status = int(stop.code or 0)
        out, err = capsys.readouterr()
        return status, out, err

    return runner


def checked(run: Run, *argv: Any) -> dict[str, Any]:
    """What check says as JSON, which agrees with what it says as text and with its exit status."""
    status, out, _ = run("check", *argv, "--json")
    document: dict[str, Any] = json.loads(out)
    text_status, text, _ = run("check", *argv)
    assert status == text_status == document["exit_status"]
    assert text.splitlines()[0] == document["answer"]
    return document


def calls(document: dict[str, Any], group: str) -> list[tuple[Any, ...]]:
    return [(c["kind"], c["number"] or c["device"]) for c in document["calls"] if c["group"] == group]


REFUSED_BY_NVPROXY = [
    *("m.log.gz", "m-compose.log", "m-crlf.log", "m-grepn.log", "m-journal.log", "m-json.log", "m-jsonarray.log"),
    *("m-jsonk8s.log", "m-kubectl.log", "m-utf16.log", "m-warnonly.log"),
]


@pytest.mark.parametrize("name", REFUSED_BY_NVPROXY)
def test_a_refusal_in_nvproxy_s_log_is_nvproxy_s(name: str, run: Run, tmp_path: Path) -> None:
    """The host was never asked: no status of its is shown, and nothing is called admitted."""
    status, out, _ = run("import", FIELD / name, "-o", tmp_path / "t.jsonl")
    assert (status, "2 refusals: 2 by nvproxy\n" in out) == (0, True)
    for file in (FIELD / name, tmp_path / "t.jsonl"):
        document = checked(run, file, *RULES)
        assert (document["verdict"], document["recorded_inside"]) == ("refused", True)
        assert document["refused_by"] == {"nvproxy": 2}
        assert calls(document, "unknown") == [("control", 0x20803504)]
        assert calls(document, "capability") == [("alloc", 0x90CD)]
        assert all(c["host"] == {} for c in document["calls"])
        _, text, _ = run("check", file, *RULES)
        assert "host" not in text.replace("the host's", "").replace("host-", "")
        assert "needs profiling" in text


def test_with_another_capability_set_the_policy_answers(run: Run) -> None:
    """ "missing capability" cannot be the answer under a set that has it, so the log is of another one."""
    document = checked(run, FIELD / "driver.log", "--caps", "compute,utility,profiling")
    assert (document["verdict"], document["recorded_with"]) == ("cannot tell", "580.126.20")
    assert calls(document, "cannot-tell") == [("alloc", 0x90CD)]
    assert checked(run, FIELD / "driver.log")["exit_status"] == 1


def test_a_refusal_that_the_rules_deny_stands(run: Run, tmp_path: Path) -> None:
    """An older nvproxy lacked this rule. Under its own release that is a refusal; another release is asked as ever."""
    log = tmp_path / "log"
    log.write_text(
        "I0 nvproxy.go:69] NVIDIA driver version: 580.126.20\n"
        "[   1:   1] nvproxy: handler is undefined for uvm ioctl 37 = 0x25\n"
        "[   1:   1] nvproxy: unknown control command 0x20800301 (paramsSize=12)\n"
    )
    document = checked(run, log)
    assert (document["verdict"], document["groups"]["contradiction"]["distinct"]) == ("refused", 2)
    assert checked(run, log, "--driver", "580.95.05")["verdict"] == "cannot tell"


def test_wordings_of_other_years(run: Run) -> None:
    document = checked(run, FIELD / "oldera.log", *RULES)
    assert document["refused_by"] == {"nvproxy": 2}
    assert document["exit_status"] == 1
    document = checked(run, FIELD / "wordings.log", *RULES)
    assert document["refused_by"] == {"nvproxy": 6, "driver": 1}
    assert calls(document, "argument") == [("fe", 0x27), ("fe", 0x4A)]


def test_a_line_that_is_not_understood_is_shown(run: Run) -> None:
    status, out, err = run("check", FIELD / "newest.log", *RULES)
    assert status == 1
    assert "newest.log:2: nvproxy said something that is not understood" in err
    assert "refusals in this trace: 1 by nvproxy" in out
    document = checked(run, FIELD / "newest.log", *RULES)
    assert (document["complete"], document["problems"]) == (False, 1)


@pytest.mark.parametrize("name", ["journal-cut.log", "trunc.log", "trunc2.log"])
def test_a_torn_line_leaves_the_question_open(name: str, run: Run, tmp_path: Path) -> None:
    assert checked(run, FIELD / name, *RULES)["exit_status"] == 2
    status, _, err = run("import", FIELD / name, "-o", tmp_path / "t.jsonl")
    assert (status, f"{name}:1: " in err) == (2, True)
    assert checked(run, tmp_path / "t.jsonl", *RULES)["exit_status"] == 2


@pytest.mark.parametrize(("name", "flags"), [("inside.jsonl", ()), ("inside-old.jsonl", ("--inside",))])
def test_a_trace_recorded_inside(name: str, flags: tuple[str, ...], run: Run) -> None:
    document = checked(run, FIELD / name, *RULES, *flags)
    assert (document["verdict"], document["refused_by"]) == ("refused", {"nvproxy": 3})
    assert all(c["host"] == {} for c in document["calls"])
    assert calls(document, "refused-outside-too") == []


def test_the_same_answers_outside_are_the_driver_s(run: Run) -> None:
    document = checked(run, FIELD / "inside-old.jsonl", *RULES)
    assert document["refused_by"] == {"driver": 3}
    assert len(calls(document, "refused-outside-too")) == 3


@pytest.mark.parametrize(
    ("name", "code"), [("s-eperm.txt", "EPERM"), ("s-enoent.txt", "ENOENT"), ("s-eacces.txt", "EACCES")]
)
def test_a_program_that_never_reached_the_driver(name: str, code: str, run: Run) -> None:
    document = checked(run, FIELD / name, *RULES)
    assert (document["exit_status"], document["refused_by"]) == (2, {"permission": 2})
    assert "never reached the driver" in document["answer"]
    _, text, _ = run("check", FIELD / name, *RULES)
    assert f"open /dev/nvidiactl  x2, first at line 1, failed with {code}" in text


def test_one_open_that_failed_is_shown(run: Run, tmp_path: Path) -> None:
    document = checked(run, FIELD / "s-uvm-eperm.txt", *RULES)
    assert calls(document, "permission") == [("open", "/dev/nvidia-uvm")]
    assert document["refused_by"] == {"permission": 1}
    _, out, _ = run("import", FIELD / "s-uvm-eperm.txt", "-o", tmp_path / "t.jsonl")
    assert "1 refusal: 1 by rights on a device node" in out
    assert calls(checked(run, FIELD / "11069b.log", *RULES), "permission") == [("open", "/dev/nvidia0")]


def test_a_search_for_the_last_gpu_is_not_a_doubt(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        'openat(AT_FDCWD, "/dev/nvidia0", O_RDWR) = 3\nopenat(AT_FDCWD, "/dev/nvidia1", O_RDWR) = -1 ENOENT (No such file)\n'
        "ioctl(3, 0xc00446d7, 0x7ffc) = 0\n"
    )
    assert checked(run, log, *RULES)["verdict"] == "admitted"


def test_other_drivers_requests_are_named(run: Run, tmp_path: Path) -> None:
    document = checked(run, FIELD / "s-foreign.txt", *RULES)
    names = {c["name"] for c in document["calls"] if c["kind"] == "other"}
    assert names == {"a DRM request", "a WSL request"}
    assert [c["name"] for row in document["calls"] for c in row["calls"]] == ["NVKMS"]
    _, out, _ = run("import", FIELD / "s-foreign.txt", "-o", tmp_path / "t.jsonl")
    assert "3 requests to other drivers, which nvproxy does not judge: DRM 1, NVKMS 1, WSL 1" in out
    for name in ("s-foreign.txt", "strace71-N.txt"):
        assert "control" not in {c["kind"] for c in checked(run, FIELD / name, *RULES)["calls"]}


@pytest.mark.parametrize("name", ["strace-v-307.txt", "strace-v-307-s4096.txt"])
def test_bytes_of_strace_are_judged(name: str, run: Run) -> None:
    document = checked(run, FIELD / name, *RULES)
    assert {(c["kind"], c["number"]) for c in document["calls"] if c["kind"] != "open"} == {
        ("control", 0x3D05),
        ("control", 0x20803801),
        ("alloc", 0x90CD),
    }


STRACE = sorted(path.name for path in FIELD.glob("s-*.txt") if path.name not in ("s-c.txt", "s-foreign.txt"))


@pytest.mark.parametrize("name", [*STRACE, "strace-N.txt", "strace71-N.txt"])
def test_no_strace_log_is_green_without_commands(name: str, run: Run) -> None:
    """RM_CONTROL and RM_ALLOC without bytes, or no call at all: nothing to judge by."""
    assert checked(run, FIELD / name, *RULES)["exit_status"] == {"s-ancient.txt": 1, "strace71-N.txt": 1}.get(name, 2)


def test_several_files(run: Run, tmp_path: Path) -> None:
    files = (FIELD / "s-ff.4712", FIELD / "s-ff.4711")
    status, out, _ = run("import", *files, "-o", tmp_path / "t.jsonl")
    assert (status, "4 records" in out) == (0, True)
    assert checked(run, *files, *RULES)["problems"] == 0
    status, _, err = run("import", FIELD / "s-ffn.4711", FIELD / "s-ffn.4712", "-o", tmp_path / "t.jsonl")
    assert (status, "strace-log-merge" in err) == (2, True)


@pytest.mark.parametrize("command", ["decode", "stats", "check", "replay"])
def test_commands_take_a_log_as_it_is(command: str, run: Run) -> None:
    _, out, err = run(command, FIELD / "m-kubectl.log", "--driver", "latest", "--json")
    assert err == ""
    assert out
    assert run(command, FIELD / "s-c.txt", "--driver", "latest")[0] == 2


def test_a_log_on_standard_input(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(FIELD / "m.log.gz", "rb") as file:
        monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": file})())
        status, out, _ = run("check", "-", *RULES)
    assert (status, out.startswith("refused: 2 kinds of calls")) == (1, True)


def test_the_driver_that_a_log_names_is_used(run: Run, tmp_path: Path) -> None:
    status, out, _ = run("check", FIELD / "driver.log")
    assert (status, "580.126.20" in out.splitlines()[0]) == (1, True)
    late = tmp_path / "late.log"
    lines = (FIELD / "driver.log").read_text().splitlines()
    late.write_text("\n".join([*[lines[1]] * 3000, lines[0]]) + "\n")
    run("import", late, "-o", tmp_path / "t.jsonl")
    assert json.loads((tmp_path / "t.jsonl").read_text().splitlines()[0])["driver"] == "580.126.20"


def test_the_host_s_driver_and_the_latest(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nvproxy_model import versions

    proc = tmp_path / "version"
    monkeypatch.setattr(versions, "PROC", proc)
    monkeypatch.setattr(versions.host, "__defaults__", (proc,))
    status, _, err = run("check", FIELD / "m.log.gz", "--driver", "host")
    assert (status, "this machine has no NVIDIA driver loaded" in err) == (2, True)
    proc.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n")
    assert "570.86.15 with" in run("check", FIELD / "m.log.gz", "--driver", "host")[1].splitlines()[0]
    assert f"{versions.load().latest} with" in run("check", FIELD / "m.log.gz", "--driver", "latest")[1].splitlines()[0]


def test_older_than_any_recorded_release(run: Run, tmp_path: Path) -> None:
    _, out, _ = run("import", FIELD / "s-ancient.txt", "-o", tmp_path / "t.jsonl")
    assert "older than any recorded release" in out


WORKLOADS = {
    "torch-matmul": (0, 4),
    "nvidia-smi": (0, 4),
    "cupy": (0, 0),
    "nvidia-smi-q": (1, 4),
    "nsys-gpuctxsw-3": (1, 4),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_real_programs(name: str, run: Run) -> None:
    status, harmless = WORKLOADS[name]
    trace = TRACES / f"{name}.jsonl.gz"
    document = checked(run, trace, "--driver", "580.159.04", "--caps", "compute,utility")
    assert (document["exit_status"], document["harmless_kinds"]) == (status, harmless)
    assert (document["refused_kinds"] > 0) == bool(status)
    if status == 0 and harmless:
        assert document["answer"].startswith("works, 4 harmless refusals")
        assert {(c["kind"], c["number"] or c["device"]) for c in document["calls"] if c["group"] == "harmless"} == {
            ("alloc", 0xC639),
            ("alloc", 0xC640),
            ("open", "/dev/nvidia-caps/nvidia-cap1"),
            ("open", "/dev/nvidia-caps/nvidia-cap2"),
        }
    strict = checked(run, trace, "--driver", "580.159.04", "--strict")
    assert (strict["harmless_kinds"], strict["refused_kinds"]) == (0, document["refused_kinds"] + harmless)


MIG = [
    '{"k":"ioctl","t":1,"tid":5,"fd":3,"ret":0,"dev":"/dev/nvidiactl","req":"0xc030462b","kind":"alloc","key":"0xc637","status":"0x0"}',
    '{"k":"open","t":1,"tid":5,"fd":9,"ret":9,"path":"/dev/nvidia-caps/nvidia-cap21"}',
    '{"k":"ioctl","t":1,"tid":5,"fd":3,"ret":0,"dev":"/dev/nvidiactl","req":"0xc020462a","kind":"control","key":"0x20800102",'
    '"status":"0x0","par0":"020000002a000000000000002b00000000000000","par1":"020000002a000000010000002b00000000000000"}',
]


@pytest.mark.parametrize("evidence", MIG)
def test_with_mig_nothing_is_called_harmless(evidence: str, run: Run, tmp_path: Path) -> None:
    """It was measured without. The evidence may stand anywhere in the trace."""
    session = MIG[0].replace("0xc637", "0xc639")
    for lines in ([session, evidence], [evidence, session]):
        trace = tmp_path / "t.jsonl"
        trace.write_text("\n".join(lines) + "\n")
        document = checked(run, trace, *RULES)
        assert (document["exit_status"], document["harmless_kinds"], document["mig"]) == (1, 0, True)
        assert "MIG is on" in run("check", trace, *RULES)[1]
    trace.write_text(session + "\n")
    assert checked(run, trace, *RULES)["mig"] is False
    off = MIG[2].replace("010000002b", "020000002b")
    trace.write_text(f"{session}\n{off}\n")
    assert checked(run, trace, *RULES)["mig"] is False


def test_a_short_argument_is_skipped_by_replay(run: Run) -> None:
    status, out, _ = run("replay", HOSTILE / "replay_short_top.jsonl", "--driver", "580.126.20")
    assert (status, "1 whose bytes the trace does not hold" in out) == (2, True)


# Output files


def test_a_log_is_never_overwritten(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes((FIELD / "m-crlf.log").read_bytes())
    link = tmp_path / "link"
    link.symlink_to(log)
    for output in (log, link):
        status, _, err = run("import", log, "-o", output)
        assert (status, "this file is read" in err) == (2, True)
    trace = tmp_path / "t.jsonl.gz"
    trace.write_bytes((TRACES / "nvidia-smi.jsonl.gz").read_bytes())
    assert run("scrub", trace, "-o", trace)[0] == 2
    assert log.read_bytes() == (FIELD / "m-crlf.log").read_bytes()
    assert trace.read_bytes() == (TRACES / "nvidia-smi.jsonl.gz").read_bytes()


def test_an_older_output_survives_a_failure(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("older")
    assert run("import", FIELD / "s-c.txt", "-o", out)[0] == 2
    assert out.read_text() == "older"
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


def test_an_output_has_the_usual_mode(run: Run, tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        run("import", FIELD / "m-crlf.log", "-o", tmp_path / "out.jsonl")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "out.jsonl").stat().st_mode) == 0o640


def test_a_fifo_and_standard_output(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(fifo.read_text()))
    reader.start()
    with writing(fifo, Header(), inputs=()) as writer:
        writer.put({"k": "open", "path": "/dev/nvidiactl", "fd": 3, "ret": 3})
    reader.join()
    assert [json.loads(line).get("k") for line in got[0].splitlines()] == [None, "open", "end"]
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    command = [sys.executable, "-m", "nvproxy_model.tools.trace", "import", FIELD / "m-crlf.log", "-o", "/dev/stdout"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert json.loads(done.stdout.splitlines()[0])["schema"] == "nvproxy-trace/1"


ACTING = ("\x9b", "\u202e", "\x1b", "\x07")


@pytest.mark.parametrize("flags", [(), ("--json",)])
@pytest.mark.parametrize("command", ["decode", "check", "stats"])
def test_nothing_that_a_terminal_acts_on_is_printed(
    command: str, flags: tuple[str, ...], run: Run, tmp_path: Path
) -> None:
    trace = tmp_path / "t.jsonl"
    path = "/dev/nvidia" + "".join(ACTING)
    with writing(trace, Header(driver="580.126.20")) as writer:
        writer.put({"k": "open", "path": path, "fd": 3, "ret": 3})
        writer.put(
            {"k": "ioctl", "fd": 3, "ret": 0, "dev": path, "req": "0x1", "kind": "fe", "key": "0x1", "refused": path}
        )
    for file in (trace, HOSTILE / "strace_esc.txt"):
        _, out, err = run(command, file, "--driver", "580.126.20", *flags)
        assert not any(char in out + err for char in ACTING)
    assert not any(char in trace.read_text() for char in ACTING)
