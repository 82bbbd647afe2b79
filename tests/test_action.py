"""action.yml and the pre-commit hook: their own lines, run as the runner and pre-commit run them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import ROOT
from tests.drivers import driver_world
from tests.drivers.gvisor import gvisor_trees

ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
INSTALL, COMPARE = ACTION["runs"]["steps"]
PINS = 'pin: 1\ndriver: "580.65.06"\nstructs:\n  NVOS64_PARAMETERS:\n    size: {}\n'


class Job:
    """A runner's job: its folders, its files of outputs, and what `step` left in them."""

    def __init__(self, folder: Path) -> None:
        self.temp, self.work = folder / "temp", folder / "work"
        self.summary, self.outputs = folder / "summary", folder / "outputs"
        for made in (self.temp, self.work):
            made.mkdir()
        for file in (self.summary, self.outputs):
            file.touch()
        self.command = self.temp / "nvproxy-model" / "bin" / "nvproxy-differ"
        self.command.parent.mkdir(parents=True)
        self.command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m nvproxy_model.tools.driver_differ "$@"\n')
        self.command.chmod(0o755)

    def step(self, step: dict[str, Any], action: Path = ROOT, **given: str) -> subprocess.CompletedProcess[str]:
        """Run a step's shell lines with the inputs that are given, the others at their defaults."""
        assert step["shell"] == "bash"
        assert "${{" not in step["run"]  # what an input holds is never a part of the script
        assert set(given) <= set(ACTION["inputs"])
        inputs = {name: given.get(name, declared.get("default", "")) for name, declared in ACTION["inputs"].items()}
        environment = {
            name: re.sub(r"\$\{\{ inputs\.([a-z-]+) \}\}", lambda found: inputs[found[1]], text)
            for name, text in step.get("env", {}).items()
        }
        script = self.temp / "step.sh"
        script.write_text(step["run"])
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", script],
            cwd=self.work,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "NVPROXY_CACHE_DIR": str(self.temp / "cache"),
                "RUNNER_TEMP": str(self.temp),
                "GITHUB_ACTION_PATH": str(action),
                "GITHUB_STEP_SUMMARY": str(self.summary),
                "GITHUB_OUTPUT": str(self.outputs),
                **environment,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def output(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.outputs.read_text().splitlines())

    def results(self) -> dict[str, list[dict[str, Any]]]:
        """The findings of each SARIF file."""
        files = sorted(Path(self.output()["sarif"]).iterdir())
        return {file.name: json.loads(file.read_text())["runs"][0]["results"] for file in files}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    if shutil.which("bash") is None:
        pytest.skip("no bash here")
    return Job(tmp_path)


def test_every_output_and_input_is_one() -> None:
    outputs = {text for one in ACTION["outputs"].values() for text in re.findall(r"\.outputs\.(\w+)", one["value"])}
    assert outputs == set(ACTION["outputs"])
    used = re.findall(r"inputs\.([a-z-]+)", (ROOT / "action.yml").read_text("utf-8"))
    assert sorted(used) == sorted(ACTION["inputs"])


@pytest.mark.parametrize(("size", "fails", "status"), [(48, "true", 0), (44, "false", 1)])
def test_pins(job: Job, size: int, fails: str, status: int) -> None:
    (job.work / "nvidia.yaml").write_text(PINS.format(size))
    done = job.step(COMPARE, pins="nvidia.yaml", since="590.44.01", **{"different-fails": fails})
    assert done.returncode == 0, done.stderr
    assert job.output()["status"] == str(status)
    assert [bool(found) for found in job.results().values()] == [status == 1]
    assert ("NVOS64_PARAMETERS" in job.summary.read_text()) == (status == 1)


@pytest.mark.slow
def test_a_checkout_and_a_driver_tree_are_one_answer(job: Job) -> None:
    """The worst of all: here the tree has hardly any struct of the model, the checkout a wrong union; the pins hold."""
    gvisor_trees.write(job.work / "my gvisor")
    driver_world.write(job.work / "tree", driver_world.tree(version="580.126.20"))
    (job.work / "nvidia.yaml").write_text(PINS.format(48))
    asked = {"gvisor": "my gvisor", "driver": "tree", "versions": "580.126.20"}
    done = job.step(COMPARE, **asked, pins="nvidia.yaml", since="590.44.01")
    assert done.returncode == 1, done.stderr
    assert job.output()["status"] == "1"
    found = {name: bool(results) for name, results in job.results().items()}
    assert found == {"check.sarif": True, "gvisor.sarif": True, "pin.sarif": False}
    assert len(re.findall(r"^### ", job.summary.read_text(), re.MULTILINE)) == 3


def test_what_could_not_be_told_fails_whatever_is_asked(job: Job) -> None:
    done = job.step(COMPARE, pins="$(touch;ran)", **{"different-fails": "false"})
    assert done.returncode == 2
    assert job.output()["status"] == "2"
    assert job.results() == {}
    assert "could not tell" in job.summary.read_text()
    assert list(job.work.iterdir()) == []
    assert "nvproxy-differ: error: $(touch;ran): " in done.stderr


def test_a_command_that_fails_without_an_answer_did_not_find_a_difference(job: Job) -> None:
    job.command.write_text("#!/bin/sh\nexit 1\n")
    done = job.step(COMPARE, pins="nvidia.yaml", **{"different-fails": "false"})
    assert (done.returncode, job.output()["status"], job.results()) == (2, "2", {})


def test_nothing_asked_is_a_mistake(job: Job) -> None:
    done = job.step(COMPARE)
    assert (done.returncode, job.output()["status"]) == (2, "2")
    assert done.stdout.startswith("::error::")


@pytest.mark.slow
def test_it_installs_itself(job: Job, source_tree: Path) -> None:
    """From the action's own checkout, here without an index: the dependencies are those of this Python."""
    shutil.copytree(source_tree, job.temp / "action", symlinks=True)
    job.command.unlink()
    here = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_COMPILE": "1"}
    here["PYTHONPATH"] = sysconfig.get_path("purelib")
    done = job.step({**INSTALL, "env": here}, job.temp / "action")
    assert done.returncode == 0, done.stderr
    assert job.command.exists()


def test_the_hook_checks_the_file_that_it_is_given(tmp_path: Path) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    program, *arguments = hook["entry"].split()
    assert (program, hook["language"], hook["pass_filenames"]) == ("nvproxy-differ", "python", False)
    (tmp_path / "nvidia.yaml").write_text(PINS.format(44))
    command = [sys.executable, "-m", "nvproxy_model.tools.driver_differ", *arguments, *hook["args"]]
    done = subprocess.run(
        [*command, "--since", "590.44.01"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "NVOS64_PARAMETERS size" in done.stdout
