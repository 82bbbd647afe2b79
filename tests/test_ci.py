""".ci/run: what it does to the machine that it runs on, with stand-ins for the programs that would do it; the workflows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import settings
from setuptools.config.pyprojecttoml import load_file

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


@pytest.mark.slow
def test_slow_tests_are_run_by_ci_alone() -> None:
    """pyproject.toml leaves them out; PYTEST_ADDOPTS, as .ci/run sets it, brings them back."""
    script = (ROOT / ".ci" / "run").read_text()
    (options,) = re.findall(r'^export PYTEST_ADDOPTS="(.*)"$', script, re.M)
    kept = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "0",
        "--collect-only",
        "-p",
        "no:cacheprovider",
        "tests/cuinterpose/test_package.py",
    ]
    for environment, collected in ((kept, False), ({**kept, "PYTEST_ADDOPTS": options}, True)):
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert ("test_editable" in done.stdout) == collected, done.stdout + done.stderr
        assert done.returncode == (0 if collected else 5)


def test_ci_tries_more_examples_than_a_developer() -> None:
    """The profile that .ci/run names is one, with six times the examples of the default, and the same ones every time."""
    (name,) = re.findall(r"^export HYPOTHESIS_PROFILE=(\w+)$", (ROOT / ".ci" / "run").read_text(), re.M)
    chosen, default = settings.get_profile(name), settings.get_profile("quick")
    assert chosen.max_examples == 6 * default.max_examples == 300
    assert chosen.derandomize
    assert default.derandomize


WORKFLOWS = {path.name: yaml.safe_load(path.read_text("utf-8")) for path in (ROOT / ".github/workflows").glob("*.yml")}
SCRIPTS = [
    (name, step["run"])
    for name, flow in WORKFLOWS.items()
    for job in flow["jobs"].values()
    for step in job["steps"]
    if "run" in step
]


def test_workflows_name_files_and_extras_that_are_there() -> None:
    extras = load_file(ROOT / "pyproject.toml")["project"]["optional-dependencies"]
    named = [re.findall(r"(?:^| )((?:tests|\.ci)/[\w/.]+)", script, re.M) for _, script in SCRIPTS]
    assert {".ci/run", ".ci/wheels", "tests/test_wheels.py"} <= {path for paths in named for path in paths}
    assert not [path for paths in named for path in paths if not (ROOT / path).exists()]
    used = {
        word for _, script in SCRIPTS for found in re.findall(r"'\.?\[([\w,]+)\]'", script) for word in found.split(",")
    }
    assert {"test", "release", "all"} <= used <= set(extras)


def test_the_oldest_python_is_the_one_that_is_tried_first() -> None:
    matrix = WORKFLOWS["ci.yml"]["jobs"]["python"]["strategy"]["matrix"]["python"]
    assert load_file(ROOT / "pyproject.toml")["project"]["requires-python"] == f">={matrix[0]}"
    assert matrix == [f"3.{minor}" for minor in range(10, 10 + len(matrix))]


def test_a_release_needs_its_section_of_the_changelog(tmp_path: Path) -> None:
    """The workflow's own line, over a page as towncrier makes it."""
    (script,) = [text for name, text in SCRIPTS if name == "release.yml" and "CHANGELOG.md" in text]
    (tmp_path / "CHANGELOG.md").write_text("# C\n\n## 1.2.3 (2026-12-01)\n\n### Added\n\n- it\n\n## 1.2.2\n\n- older\n")
    for tag, status in (("v1.2.3", 0), ("v1.2.4", 1)):
        environment = {**os.environ, "GITHUB_REF_NAME": tag}
        command = ["bash", "-eo", "pipefail", "-c", script]
        assert subprocess.run(command, cwd=tmp_path, env=environment, check=False, timeout=60).returncode == status
        if not status:
            assert (tmp_path / "notes.md").read_text().split() == ["###", "Added", "-", "it"]


def test_a_fragment_of_the_changelog_has_a_kind() -> None:
    rules = load_file(ROOT / "pyproject.toml")["tool"]["towncrier"]
    kinds = {kind["directory"] for kind in rules["type"]}
    for path in (ROOT / rules["directory"]).iterdir():
        if path.name not in rules["ignore"]:
            name, kind, suffix = path.name.split(".")
            assert name
            assert (kind in kinds, suffix) == (True, "md"), path.name
            assert path.read_text("utf-8").strip()[0] not in "-*#", path.name
    assert rules["start_string"] in (ROOT / rules["filename"]).read_text("utf-8")
