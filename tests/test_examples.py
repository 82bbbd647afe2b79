"""The examples run, and show what they are there to show."""

from __future__ import annotations

import importlib.util
import runpy
import subprocess
import sys
from typing import Any

import pytest

from tests import ROOT

EXAMPLES = ROOT / "examples"


def test_every_example_is_run_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {"policy.py", "event_buffer.py", "run.py"}


def test_policy(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "policy.py"))
    refused, admitted, fd = capsys.readouterr().out.splitlines()
    assert refused.startswith("reject - 580.126.20 alloc 0x90cd NV_EVENT_BUFFER")
    assert "profiling" in refused
    assert admitted.startswith("translate - ")
    assert fd.endswith(" 1042")
    code = [line for line in (EXAMPLES / "policy.py").read_text().splitlines()[4:] if line.strip()]
    assert len(code) <= 15


def test_event_buffer(capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("event_buffer", EXAMPLES / "event_buffer.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    guest = module.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "0x90cd: status" in line] == ["alloc 0x90cd: status 0x0, handle 0xcaf00006"]
    assert "notificationHandle: the program sees 4, the driver 1048577" in lines
    lost = lines.index("free 0xcaf00004: 5 objects left")
    assert lines[lost + 1] == "control 0x90cd0104: status 0x6e"
    assert lines[-1] == "free 0xc1d00001: 0 objects left"
    assert guest.session.objects() == ()
    assert [entry.errno for entry in guest.driver.log if entry.errno] == []


def test_run() -> None:
    from tests.live.watched import available

    available()
    done = subprocess.run([sys.executable, str(EXAMPLES / "run.py")], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["class 0x41: status 0x0", "class 0xc639: status 0x22"]
    assert "       1  class 0xc639: status 0x22; no rule has this number" in lines
    assert lines[-1] == "exit status 0"
    code = [line for line in (EXAMPLES / "run.py").read_text().splitlines()[4:] if line.strip()]
    assert len(code) <= 32
