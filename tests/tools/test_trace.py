"""nvproxy-trace as its users run it: output, exit statuses, one-line errors."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nvproxy_model import versions
from nvproxy_model.tools import trace as cli
from nvproxy_model.tools.trace.decode import text as decoded_text
from nvproxy_model.trace.record import preload as launcher
from nvproxy_model.trace.record.mapped import Keeper, keeping
from tests import ROOT, schemas

TRACES = ROOT / "tests" / "data" / "traces"
SMI = str(TRACES / "nvidia-smi.jsonl.gz")
TORCH = str(TRACES / "torch-matmul.jsonl.gz")
CHAIN = str(TRACES / "event-buffer-chain.jsonl.gz")

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def runner(*argv: str) -> tuple[int, str, str]:
        try:
            status = cli.main(argv)
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else 1
        out, err = capfd.readouterr()
        return status, out, err

    return runner


@pytest.mark.parametrize("command", [command.name for command in cli.PROGRAM.commands])
def test_each_command_has_help_with_examples(command: str, run: Run) -> None:
    status, out, _ = run(command, "--help")
    assert status == 0
    assert "examples:" in out
    assert "nvproxy-trace " + command in out


def test_a_decoded_call_in_words(run: Run) -> None:
    status, out, err = run("decode", SMI, "--name", "NV0000_CTRL_CMD_GPU_GET_PCI_INFO")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert "control 0x21b NV0000_CTRL_CMD_GPU_GET_PCI_INFO = 0x0 NV_OK (4.1 us)" in lines[0]
    assert lines[2].strip() == "NV0000_CTRL_GPU_GET_PCI_INFO_PARAMS gpuId=6 domain=0 bus=0 slot=0"
    assert lines[3].strip() == "after: slot=6"


def test_decode_as_json_lines(run: Run) -> None:
    status, out, _ = run("decode", SMI, "--json")
    objects = [json.loads(line) for line in out.splitlines()]
    for one in objects:
        schemas.validate(one, "nvproxy-trace/decode/1")
    assert status == 0
    assert objects[0]["schema"] == "nvproxy-trace/decode/1"
    assert objects[-1]["summary"] == {
        "records": 108,
        "not_known": {"no public layout": 11},
        "complete": True,
        "problems": 0,
    }
    assert len(objects) == 110


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (("--kind", "alloc"), 9),
        (("--kind", "open", "--kind", "close"), 16),
        (("--status", "0x57"), 3),
        (("--number", "0xc639"), 1),
        (("--number", "50745", "--number", "0xc640"), 2),
        (("--tid", "530"), 108),
        (("--tid", "531"), 0),
        (("--kind", "control", "--status", "0x56"), 2),
    ],
)
def test_filters(arguments: tuple[str, ...], count: int, run: Run) -> None:
    _, out, _ = run("decode", SMI, "--json", *arguments)
    assert json.loads(out.splitlines()[-1])["summary"]["records"] == count


def test_text_and_json_of_every_record_of_a_trace(run: Run) -> None:
    _, out, _ = run("decode", TORCH, "--json")
    for line in out.splitlines()[1:-1]:
        shown = "\n".join(decoded_text(json.loads(line)))
        assert shown.isprintable() or "\n" in shown
        assert max(map(len, shown.splitlines())) < 20_000


def test_check_text_and_exit_status(run: Run) -> None:
    status, out, _ = run(
        "check", str(TRACES / "nsys-gpuctxsw-3.jsonl.gz"), "--driver", "580.126.20", "--caps", "compute,utility"
    )
    assert status == 1
    assert "alloc 0x90cd NV_EVENT_BUFFER" in out
    assert "needs profiling" in out
    assert "nothing says so" in out
    assert "smallest sufficient capability set: compute,profiling" in out
    assert out.splitlines()[0] == (
        "refused: 8 kinds of calls, 580.126.20 with compute,utility; run it with compute,profiling; "
        "4 are refused under every set, all known as harmless"
    )
    assert run("check", str(TRACES / "cupy.jsonl.gz"), "--driver", "580.159.04")[0] == 0


def test_check_as_json(run: Run) -> None:
    status, out, _ = run("check", SMI, "--json", "--all-drivers", "--strict")
    document = schemas.document(out)
    assert status == 1
    assert document["schema"] == "nvproxy-trace/check/2"
    assert (document["driver"], document["rules_of"], document["verdict"]) == ("580.159.04", "580.159.04", "refused")
    assert document["minimal_capabilities"] == ["compute"]
    assert {call["group"] for call in document["calls"]} == {
        "admitted",
        "unknown",
        "device",
        "always-refused",
        "refused-outside-too",
        "window",
    }
    assert len(document["drivers"]) == len(versions.load())
    newest = next(entry for entry in document["drivers"] if entry["version"] == "580.159.04")
    assert [(call["kind"], call["number"]) for call in newest["refused"]] == [("alloc", 0xC639), ("alloc", 0xC640)]


def test_check_of_a_driver_that_has_no_rules_of_its_own(run: Run) -> None:
    status, out, _ = run("check", SMI, "--driver", "570.211.01")
    assert status == 0
    assert "\n# driver 570.211.01 is not in driver_versions.yaml: the rules of 570.195.03 stand for it\n" in out


def test_compare(run: Run, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl.gz"
    shutil.copy(SMI, other)
    assert run("compare", SMI, str(other))[0] == 0
    status, out, _ = run("compare", SMI, TORCH, "--json")
    document = schemas.document(out)
    assert status == 1
    assert document["schema"] == "nvproxy-trace/compare/1"
    changes = [difference["change"] for difference in document["differences"]]
    assert (
        sorted(set(changes)) == ["only-here", "only-there", "other-count", "other-status"][: len(set(changes))]
        or changes
    )
    _, text, _ = run("compare", SMI, TORCH)
    assert "only in A" in text
    assert f"{len(changes)} differences" in text
    assert run("compare", SMI, SMI)[0] == 2


def test_stats_and_a_picture(run: Run, tmp_path: Path) -> None:
    status, out, _ = run("stats", TORCH, "--json")
    document = schemas.document(out)
    assert status == 0
    assert document["ioctls"] == 710
    assert document["kinds"]["control"]["count"] == 273
    assert document["numbers"][0]["name"] == "UVM_MAP_EXTERNAL_ALLOCATION"
    status, out, _ = run("stats", TORCH)
    assert "710 ioctls of 1 processes" in out
    pytest.importorskip("matplotlib")
    picture = tmp_path / "t.png"
    assert run("stats", TORCH, "--plot", str(picture))[0] == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_census(run: Run) -> None:
    status, out, _ = run("census", str(TRACES), "--windows", "--json")
    document = schemas.document(out)
    assert status == 0
    assert document["traces"] == 16
    assert {row["window"] for row in document["rows"]} == {"legacy-gss", "binapi"}
    smi = next(entry for entry in document["windows"] if entry["trace"] == "nvidia-smi-q.jsonl.gz")
    assert smi["legacy-gss"]["numbers"] + smi["binapi"]["numbers"] == 27
    status, out, _ = run("census", SMI)
    assert "1 traces, 1 processes, 91 calls" in out


def test_import_names_the_era_and_what_cannot_be_known(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text(
        'openat(AT_FDCWD, "/dev/nvidiactl", O_RDWR) = 3\nioctl(3, 0xc028462b, 0x1) = 0\nioctl(3, 0xc020462a, 0x1) = 0\n'
    )
    out_path = tmp_path / "t.jsonl.zst"
    status, out, _ = run("import", str(log), "-o", str(out_path))
    assert status == 0
    assert "3 records of 3 lines of strace (fe 2, open 1)" in out
    assert "driver era 515.43.04 to 530.41.03" in out
    assert "without a command or class: this log holds no argument bytes" in out
    status, out, err = run("decode", str(out_path))
    assert status == 2
    assert "names no driver (driver era 515.43.04 to 530.41.03" in err
    status, out, _ = run("decode", str(out_path), "--driver", "580.126.20")
    assert "NV_ESC_RM_CONTROL" in out
    assert "# the command is in the argument, which this trace does not hold" in out
    status, out, _ = run("check", str(out_path), "--driver", "580.126.20")
    assert status == 2
    assert out.startswith("cannot tell: ")


def test_scrub_and_replay(run: Run, tmp_path: Path) -> None:
    out_path = tmp_path / "clean.jsonl.gz"
    status, out, _ = run("scrub", TORCH, "-o", str(out_path))
    assert status == 0
    assert "pages of addresses replaced" in out
    status, out, _ = run("replay", str(out_path), "--json")
    document = schemas.document(out)
    assert status == 0
    assert document["summary"]["divergences"] == 0
    status, out, _ = run("replay", CHAIN)
    assert "the host: status 0x57" in out
    assert out.splitlines()[-1].endswith("0 divergences")
    assert run("scrub", str(out_path), "-o", str(out_path))[0] == 2


TORN = b'{"k":"open","tid":1,"fd":3,"ret":3,"path":"/dev/nvidia\x1b[2Jctl"}\n'


@pytest.mark.parametrize("command", ["decode", "stats", "check", "replay", "census"])
def test_an_incomplete_trace_is_used_and_the_status_says_so(command: str, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(TORN.replace(b"\x1b", b"\\u001b") + b'{"k":"clo')
    extra = ["--driver", "580.126.20"] if command not in ("census",) else []
    status, out, err = run(command, str(path), *extra)
    assert status == (1 if command == "check" else 2)
    assert err == f"nvproxy-trace: {path}:2: a torn last line\n"
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["decode", "/nonexistent"], "/nonexistent: No such file or directory"),
        (["decode", "/"], "Is a directory"),
        (["decode", SMI, "--driver", "banana"], "'banana' is not a driver version"),
        (["decode", SMI, "--status", "x"], "is not a number"),
        (["check", SMI, "--caps", "compute,banana"], "'banana' is not a driver capability"),
        (["check", SMI, "--caps", "display"], "does not support display"),
        (["stats", SMI, "--top", "-1"], "--top"),
        (["stats", SMI, "--plot", "x.doc"], ".png"),
        (["import", SMI, "-o", "/nonexistent/x"], "no line of strace"),
        (["scrub", "-", "-o", "/tmp/x"], "cannot be read twice"),
        (["check", str(TRACES / "cupy.jsonl.gz")], "say --driver V, --driver latest or --driver host"),
        (["compare", SMI], "required"),
        (["banana"], "invalid choice"),
    ],
)
def test_mistakes_are_one_line(argv: list[str], said: str, run: Run) -> None:
    status, _, err = run(*argv)
    assert status == 2
    assert err.startswith("nvproxy-trace: error: ")
    assert said in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_a_closed_pipe() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "nvproxy_model.tools.trace", "decode", TORCH]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 2
    process.stderr.close()


def test_standard_input(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "nvproxy_model.tools.trace", "stats", "-", "--json"]
    with open(SMI, "rb") as file:
        done = subprocess.run(command, stdin=file, capture_output=True, env=environment, check=True)
    assert json.loads(done.stdout)["ioctls"] == 91


def test_traces_of_two_machines_in_one_file(run: Run, tmp_path: Path) -> None:
    """Each is read by its own driver: the same number, another name."""
    call = '"fd":3,"ret":0,"dev":"/dev/nvidiactl","req":"0xc020462a","kind":"control","key":"0x20801358"'
    line = f'{{"k":"ioctl","t":1,"tid":5,{call}}}\n'
    path = tmp_path / "two.jsonl"
    path.write_text(
        "".join(
            f'{{"schema":"nvproxy-trace/1","driver":"{v}"}}\n{line}{{"k":"end","records":1}}\n'
            for v in ("570.195.03", "575.51.02")
        )
    )
    status, out, err = run("decode", str(path), "--json")
    names = [json.loads(text)["name"] for text in out.splitlines()[1:-1]]
    assert names[0] != names[1]
    assert names[0].endswith("INFOROM_SUPPORT")
    assert status == 2
    assert "driver 575.51.02 in a trace of 570.195.03" in err


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cc = shutil.which("cc")
    if cc is None:
        pytest.skip("no C compiler")
    library = tmp_path / "librecorder.so"
    sources = sorted((ROOT / "nvproxy_model" / "trace" / "record" / "recorder").glob("*.c"))
    hidden = ("-std=gnu11", "-shared", "-fPIC", "-fvisibility=hidden", "-O2")
    subprocess.run([cc, *hidden, "-o", library, *sources, "-ldl", "-pthread"], check=True)
    monkeypatch.setattr(launcher, "RECORDER", library)
    monkeypatch.setattr(
        launcher.record, "__kwdefaults__", {**(launcher.record.__kwdefaults__ or {}), "recorder": library}
    )
    return library


@pytest.mark.usefixtures("recorder")
def test_record_says_what_it_saw_and_keeps_the_status(run: Run, tmp_path: Path) -> None:
    out_path = tmp_path / "run.jsonl.zst"
    status, out, err = run(
        "record", "-o", str(out_path), "--driver", "580.126.20", "--", "sh", "-c", "echo hello; exit 7"
    )
    assert status == 7
    assert out == "hello\n"
    assert "0 ioctls and 0 opens of 1 process" in err
    assert "cannot be seen: raw system calls" in err
    status, out, err = run("record", "-q", "-o", str(out_path), "--", "sh", "-c", "kill -TERM $$")
    assert (status, out, err) == (128 + 15, "", "")
    status, _, err = run("record", "-o", str(out_path), "--", "/nonexistent")
    assert status == 2
    assert err == "nvproxy-trace: error: /nonexistent: No such file or directory\n"
    assert run("record", "-o", str(tmp_path), "--", "true")[0] == 2
    assert run("record", "-o", str(out_path))[0] == 2


@pytest.mark.usefixtures("recorder")
def test_a_spool_that_is_left_is_imported(run: Run, tmp_path: Path, recorder: Path) -> None:
    spool = tmp_path / "run.spool"
    environment = {**os.environ, "LD_PRELOAD": str(recorder), "NVPROXY_TRACE_SPOOL": str(spool)}
    with keeping(Keeper(spool)):
        subprocess.run(["sh", "-c", "exit 0"], env=environment, check=True)
    status, out, _ = run("import", str(spool), "-o", str(tmp_path / "t.jsonl"), "--driver", "580.126.20")
    assert status == 0
    assert "0 ioctls of 1 processes" in out


def test_colour_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from nvproxy_model.tools.output import bold

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert bold("x") == "\x1b[1mx\x1b[22m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert bold("x") == "x"
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.delenv("NO_COLOR")
    assert bold("x") == "x"


def test_a_trace_of_too_many_drivers_and_of_one_that_is_none(run: Run, tmp_path: Path) -> None:
    """A decoder is made for each driver that a header names, and not for as many as a hostile trace likes."""
    lines = []
    for i in range(200):
        head = {"schema": "nvproxy-trace/1", "driver": "none" if i == 3 else f"570.{i + 1}.01", "recorder": "preload"}
        opened = {"k": "open", "t": 0, "pid": 1, "tid": 1, "fd": 3, "ret": 3, "path": "/dev/nvidia0"}
        lines += [json.dumps(each) for each in (head, opened, {"k": "end", "records": 1})]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(lines) + "\n")
    status, out, err = run("decode", str(path))
    assert status == 2
    assert out.count(" open ") == 16
    assert f"{path}:11: driver none: not a version" in err
    assert run("decode", str(path), "--driver", "570.124.06")[1].count(" open ") == 200
