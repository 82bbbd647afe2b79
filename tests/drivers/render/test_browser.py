"""The driver of the browser does not wait for one that is broken, and leaves no process behind."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.drivers.render import browser as browser_module
from tests.drivers.render.browser import BrowserGone, browser

# A child that outlives the browser keeps its end of the pipe open.
BROKEN = {
    "says nothing": "exec sleep 600",
    "ends at once": "exit 3",
    "ends, its child stays": "sleep 600 & exit 0",
    "ignores a polite request": "trap '' TERM; sleep 600; sleep 600",
    "answers half": "printf '{\"id\":' >&4; exec sleep 600",
}


def running(group: int) -> list[str]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _parent, of = stat.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(of) == group and state != "Z":
            found.append(stat.parent.name)
    return found


@pytest.mark.parametrize("script", BROKEN.values(), ids=list(BROKEN))
def test_a_broken_browser_is_said_and_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = tmp_path / "chromium"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    groups = []
    popen = subprocess.Popen

    def start(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        process = popen(*args, **options)
        groups.append(process.pid)
        return process

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(browser_module, "WAIT", 0.5)
    with pytest.raises(BrowserGone, match="chromium"), browser(str(program), tmp_path / "profile"):
        raise AssertionError("it started")
    (group,) = groups
    deadline = time.monotonic() + 30  # a kill is sent; when it arrives, the kernel decides
    while running(group):
        assert time.monotonic() < deadline, running(group)
        time.sleep(0.05)
