"""The examples run, and show what they are there to show."""

from __future__ import annotations

import importlib.util
import runpy
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from nvproxy_model import Result, Session
from nvproxy_model.session.objects import Object
from nvproxy_model.structs.nvos import NVOS64_PARAMETERS
from tests import ROOT

EXAMPLES = ROOT / "examples"


def test_every_example_is_run_here() -> None:
    here = {"policy.py", "event_buffer.py", "run.py", "sandbox.py", "stateful.py", "threads.py"}
    assert {path.name for path in EXAMPLES.glob("*.py")} == here


def test_every_example_is_described() -> None:
    described = (EXAMPLES.parent / "docs" / "embedding.md").read_text() + (
        EXAMPLES.parent / "docs" / "run.md"
    ).read_text()
    assert [path.name for path in EXAMPLES.glob("*.py") if f"(../examples/{path.name})" not in described] == []


def load(name: str) -> Any:
    """An example as a module, as an import of it would make it."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lines_of(name: str) -> int:
    return len([line for line in (EXAMPLES / f"{name}.py").read_text().splitlines() if line.strip()])


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
    guest = load("event_buffer").main()
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
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "run.py")], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["class 0x41: status 0x0", "class 0xc639: status 0x22"]
    assert "       1  class 0xc639: status 0x22; no rule has this number" in lines
    assert lines[-1] == "exit status 0"
    code = [line for line in (EXAMPLES / "run.py").read_text().splitlines()[4:] if line.strip()]
    assert len(code) <= 32


QUICK = settings(
    max_examples=8, stateful_step_count=8, deadline=None, database=None, phases=[Phase.generate], derandomize=True
)


class Careless(Session):
    """A session that asks the driver before anybody else."""

    def ioctl(self, fd: int, request: int, argp: int) -> Result:
        self.host.ioctl(fd, request, None)
        return super().ioctl(fd, request, argp)


class Forgetful(Session):
    """A session that loses its clients."""

    def objects(self) -> tuple[Object, ...]:
        return tuple(obj for obj in super().objects() if obj.client != obj.handle)


def test_stateful() -> None:
    """It passes over the real session, and notices two that are broken."""
    assert lines_of("stateful") <= 25
    module = load("stateful")
    run_state_machine_as_test(module.Guest, settings=QUICK)
    module.Session = Careless
    with pytest.raises(AssertionError, match="refused, and the driver was called"):
        run_state_machine_as_test(module.Guest, settings=QUICK)
    module.Session = Forgetful
    guest = module.Guest()
    guest.call(module.CLIENT)
    device = NVOS64_PARAMETERS.make(hRoot=0xC1D00001, hObjectParent=0xC1D00001, hClass=0x80)
    guest.call(module.CLIENT._replace(argument=device))
    with pytest.raises(AssertionError):
        guest.every_object_is_below_a_client()


def test_sandbox(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "sandbox.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "open /dev/nvidiactl: 0",
        "open /dev/nvidia0: 1",
        "open /dev/nvidia-uvm: 2",
        "open /dev/nvidia-modeset: ENOENT",
    ]
    assert [line.rsplit("; ", 1)[1] for line in lines[4:7]] == ["1 objects", "2 objects", "2 objects"]
    assert "NV_EVENT_BUFFER: a capability is missing, any of: want profiling (status 0x22)" in lines[6]
    assert lines[9].startswith("unknown on 2: EINVAL, 580.159.04 uvm 0x7777: no rule has this number")
    assert lines[10:] == [
        "close on 2: 0, host descriptor 1002 ends; 2 objects",
        "close on 0: 0, host descriptor 1000 ends; 0 objects",
        "close on 0: EBADF; 0 objects",
    ]
    assert lines_of("sandbox") <= 60


def test_threads(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "threads.py"), run_name="__main__")
    assert capsys.readouterr().out.splitlines() == [
        "from threads: 64 calls admitted",
        "from asyncio: 64 calls admitted",
        "objects of each guest: 32 32 32 32",
    ]
