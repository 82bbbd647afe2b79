""".ci/run: what it does to the machine that it runs on, with stand-ins for the programs that would do it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT

STAND_IN = """#!/bin/sh
echo "$(basename "$0") $*" >>"$CALLS"
case "$(basename "$0") $1" in
"git clone") exit 9 ;;
"dpkg -s") exit 1 ;;
"apt-get indextargets") printf '%s' "$TARGETS" ;;
esac
"""


def calls(tmp_path: Path, **environment: str) -> list[str]:
    """The commands that it gives, up to the clone of the repository, which ends it."""
    for name in ("apt-get", "dpkg", "dpkg-deb", "git", "sudo", "sleep"):
        program = tmp_path / name
        program.write_text(STAND_IN)
        program.chmod(0o755)
    log = tmp_path / "calls"
    kept = {name: value for name, value in os.environ.items() if name != "CI"}
    done = subprocess.run(
        ["bash", ROOT / ".ci" / "run"],
        env={**kept, "PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLS": str(log), "TARGETS": "", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 9, done.stdout + done.stderr
    return log.read_text().splitlines()


@pytest.mark.parametrize("ci", ["", "false", "true"])
def test_packages_are_installed_only_where_ci_is_set(tmp_path: Path, ci: str) -> None:
    made = calls(tmp_path, CI=ci)
    assert any(re.match(r"(sudo -n )?apt-get .*\binstall\b", call) for call in made) == (ci == "true")
    assert any(re.match(r"(sudo -n )?apt-get -qq update$", call) for call in made) == (ci == "true")


def test_the_mirror_is_the_machines_own(tmp_path: Path) -> None:
    """Real driver sources come from where this machine gets its packages, or not at all."""
    assert not re.search(r"https?://", (ROOT / ".ci" / "run").read_text())
    (tmp_path / "none").mkdir()
    assert not [call for call in calls(tmp_path / "none") if "sourcelist" in call]
    try:
        release = dict(re.findall(r"^(\w+)=\"?(.*?)\"?$", Path("/etc/os-release").read_text(), re.M))
    except OSError:
        release = {}
    if "VERSION_CODENAME" not in release:
        pytest.skip("this system has no code name, by which .ci/run would look for a mirror")
    targets = f"mirror://somewhere|{release['VERSION_CODENAME']}|Debian\n"
    assert [call for call in calls(tmp_path, TARGETS=targets) if "sourcelist" in call and call.endswith(" update")]


def test_slow_tests_are_run_by_ci_alone() -> None:
    """pyproject.toml leaves them out; PYTEST_ADDOPTS, as .ci/run sets it, brings them back."""
    script = (ROOT / ".ci" / "run").read_text()
    (options,) = re.findall(r'^export PYTEST_ADDOPTS="(.*)"$', script, re.M)
    kept = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-p",
        "no:cacheprovider",
        "tests/cuinterpose/test_package.py",
    ]
    for environment, collected in ((kept, False), ({**kept, "PYTEST_ADDOPTS": options}, True)):
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert ("test_editable" in done.stdout) == collected, done.stdout + done.stderr
        assert done.returncode == (0 if collected else 5)
