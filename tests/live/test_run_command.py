"""``nvproxy-policy run``: exit statuses, reports, traces, and mistakes in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvproxy_model import live, versions
from nvproxy_model.live import DirectoryNodes
from nvproxy_model.tools.policy import main
from nvproxy_model.trace.reader import Reader
from tests.live.watched import VERSION, LockedDriver, World
from tests.schemas import document

Run = Callable[..., int]


@pytest.fixture
def run(world: World, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command on a machine whose driver is fake; SystemExit as a status."""
    real = live.Broker

    def fake(policy: Any, **options: Any) -> Any:
        driver = LockedDriver()
        nodes = DirectoryNodes(world.nodes)
        return real(policy, host=driver, nodes=nodes, closed=driver.close, in_place=(), **options)

    monkeypatch.setattr(live, "Broker", fake)
    monkeypatch.setattr(versions, "host", lambda: VERSION)

    def go(*arguments: Any, program: tuple[Any, ...] = ("refusals",)) -> int:
        words = [*map(str, arguments), "--", str(world.program), str(world.nodes), *map(str, program)]
        try:
            return main(["run", *words])
        except SystemExit as ended:
            return int(ended.code or 0)

    return go


def test_the_report_of_a_refused_run(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    out, err = capfd.readouterr()
    assert out.startswith("class 22\n")
    lines = [line.removeprefix("nvproxy-policy: ") for line in err.splitlines()]
    assert lines[:-1] == [
        "4 driver calls under 580.159.04 with compute,utility; nvproxy refused 3 of them and 5 opens of devices",
        "       1  NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS (control 0x90cd0101): status 0x56; passes with profiling",
        "       5  open of /dev/nvidia-modeset: ENOENT; nvproxy has no such device (programs go on without it)",
        "       1  AMPERE_SMC_CONFIG_SESSION (class 0xc639): status 0x22; no rule has this number (programs go on without it)",
        "       1  NV_ESC_NUMA_INFO (escape 0xd7): EINVAL; a rule refuses it (programs go on without it)",
        "smallest capability set that admits the run: compute,profiling",
    ]
    assert lines[-1].startswith("2 calls performed: ")


def test_strict_turns_zero_into_one(run: Run) -> None:
    assert run("--strict") == 1
    assert run("--strict", "--caps", "compute,profiling") == 0  # what is left is harmless
    assert run("--strict", program=("exit", 7)) == 7
    assert run("--strict", program=("exit", 0)) == 0


def test_fail_fast_names_the_call(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("--fail-fast", "--quiet") == 1
    assert "ended at the first refusal: 580.159.04 control 0x90cd0101" in capfd.readouterr().err


def test_verbose_reports_each_refusal_when_it_happens(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("--verbose", "-q") == 0
    assert capfd.readouterr().err.count("nvproxy-policy: refused: ") == 1


def test_the_report_as_json(run: Run, tmp_path: Path) -> None:
    assert run("--report", tmp_path / "r.json", "-q") == 0
    report = document((tmp_path / "r.json").read_text())
    assert report["smallest_capabilities"] == ["compute", "profiling"]
    assert report["calls"]["refused"] == 3
    assert [row["title"] for row in report["refused"] if not row["harmless"]] == [
        "NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS (control 0x90cd0101)"
    ]


def test_the_report_as_markdown(run: Run, tmp_path: Path) -> None:
    assert run("--report", tmp_path / "r.md", "-q") == 0
    text = (tmp_path / "r.md").read_text()
    assert text.startswith("# `")
    assert "| 5 | open of /dev/nvidia-modeset | ENOENT |" in text


def test_the_named_set_admits_the_run(run: Run, tmp_path: Path) -> None:
    """Under the smallest set nothing is refused for want of a capability, and under each smaller one something is."""
    assert run("--report", tmp_path / "r.json", "-q", program=("chain",)) == 0
    caps = document((tmp_path / "r.json").read_text())["smallest_capabilities"]
    assert caps == ["compute", "profiling"]
    assert run("--strict", "--caps", ",".join(caps), "-q", program=("chain",)) == 0
    for less in ("compute", "profiling"):
        assert run("--strict", "--caps", less, "-q", program=("chain",)) == 1


def test_recording(run: Run, tmp_path: Path) -> None:
    assert run("--record", tmp_path / "t.jsonl.zst", "-q", program=("chain",)) == 0
    reader = Reader(tmp_path / "t.jsonl.zst")
    assert sum(rec.k == "ioctl" for rec in reader) > 5
    assert reader.complete


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--driver", "1.2"), "1.2"),
        (("--driver", "570.195.03"), "lays out"),
        (("--caps", "nonsense"), "--caps"),
        (("--windows", "some"), "--windows some"),
        (("--record", "/nowhere/at/all"), "/nowhere/at is not a directory"),
        (("--report", "/nowhere/at/all"), "/nowhere/at is not a directory"),
        (("--strict", "--fail-fast"), "not allowed with"),
    ],
)
def test_mistakes_are_one_line_and_125(
    arguments: tuple[str, ...], text: str, run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 125
    err = capfd.readouterr().err
    assert text in err
    assert err.count("\n") == 1


def test_another_release_may_be_asked_for_while_observing(run: Run) -> None:
    assert run("--driver", "570.195.03", "--observe", "-q") == 0


def test_no_driver(world: World, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "host", lambda: None)
    with pytest.raises(SystemExit) as ended:
        main(["run", "--", "true"])
    assert ended.value.code == 125
    assert "no NVIDIA driver loaded" in capfd.readouterr().err


@pytest.mark.parametrize(("name", "status"), [("/nowhere/at/all", 127), ("/etc/hostname", 126)])
def test_a_program_that_cannot_be_started(
    name: str, status: int, run: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--", name]) == status
    assert capfd.readouterr().err.startswith(f"nvproxy-policy: {name}: ")


def test_a_full_disk_is_said_and_nothing_else(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("--report", "/dev/full", "-q", program=("exit", 3)) == 3
    assert capfd.readouterr().err == "nvproxy-policy: /dev/full: No space left on device: no report\n"
