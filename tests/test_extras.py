"""The core alone, construct and PyYAML: what it answers, and the one line where a command needs more."""

from __future__ import annotations

import importlib.util
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from setuptools.config.pyprojecttoml import load_file

from nvproxy_model.tools import extras
from tests import ROOT
from tests.drivers import driver_world
from tests.drivers.gvisor import gvisor_trees

TRACE = ROOT / "tests/data/traces/event-buffer-chain.jsonl.gz"
CORE = ("construct", "yaml")
DIFFER = "nvproxy-differ: {} is not installed; pip install 'nvproxy-model[differ]'\n"
TRACED = "nvproxy-{}: {} is not installed; pip install 'nvproxy-model[trace]'\n"


@pytest.fixture(scope="session")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH with the core's dependencies, for a Python that sees no installed packages (-S)."""
    folder = tmp_path_factory.mktemp("core")
    for name in CORE:
        found = importlib.util.find_spec(name)
        assert found is not None
        assert found.origin is not None
        (folder / name).symlink_to(Path(found.origin).parent)
    return folder


@pytest.fixture
def bare(core: Path, tmp_path: Path) -> dict[str, Path]:
    """Where a command runs, and the inputs that need more than the core."""
    (tmp_path / "t.jsonl.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    (tmp_path / "t.jsonl.gz").symlink_to(TRACE)
    (tmp_path / "structs.yaml").write_text("structs:\n  NVOS00_PARAMETERS:\n    size: 16\n")
    driver_world.write(tmp_path / "driver", driver_world.tree(version="580.126.20"))
    gvisor_trees.write(tmp_path / "gvisor")
    return {"core": core, "cwd": tmp_path}


def run(bare: dict[str, Path], command: str, error: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    program, *arguments = command.split()
    module = f"nvproxy_model.tools.{program.removeprefix('nvproxy-').replace('differ', 'driver_differ')}"
    return subprocess.run(
        [sys.executable, "-S", "-m", module, *arguments],
        cwd=bare["cwd"],
        env={"PYTHONPATH": f"{ROOT}:{bare['core']}", "NVPROXY_CACHE_DIR": "", "PATH": os.environ["PATH"], "TERM": "xterm"},
        stdout=subprocess.PIPE,
        stderr=error,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    "command",
    [
        "nvproxy-differ check 580.126.20",
        "nvproxy-differ compat 570.195.03 570.211.01",
        "nvproxy-differ history NVOS00_PARAMETERS --branch 580.65.06",
        "nvproxy-differ report -o page.html",
        "nvproxy-policy explain 0xc020462a",
        "nvproxy-policy table latest --caps rdma",
    ],
)
def test_the_core_answers_from_facts(bare: dict[str, Path], command: str) -> None:
    done = run(bare, command)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("nvproxy-differ check 580.126.20 --source driver", DIFFER.format("libclang")),
        ("nvproxy-differ layout NVOS00_PARAMETERS --driver 580.126.20 --source driver", DIFFER.format("libclang")),
        ("nvproxy-differ gvisor gvisor", DIFFER.format("tree-sitter-go")),
        ("nvproxy-policy restorable t.jsonl.gz", TRACED.format("policy", "orjson")),
        ("nvproxy-trace check t.jsonl.gz", TRACED.format("trace", "orjson")),
        ("nvproxy-trace decode t.jsonl.zst", TRACED.format("trace", "orjson")),
        ("nvproxy-trace record -o new.jsonl -- touch ran", TRACED.format("trace", "orjson")),
    ],
)
def test_what_is_absent_is_named_in_one_line(bare: dict[str, Path], command: str, line: str) -> None:
    before = sorted(bare["cwd"].iterdir())
    done = run(bare, command)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)
    assert sorted(bare["cwd"].iterdir()) == before


def test_what_only_an_option_or_a_suffix_needs(bare: dict[str, Path]) -> None:
    """orjson is there, zstandard is not."""
    found = importlib.util.find_spec("orjson")
    assert found is not None
    assert found.origin is not None
    (bare["cwd"] / "orjson").symlink_to(Path(found.origin).parent)
    bare["core"] = Path(f"{bare['core']}:{bare['cwd']}")
    done = run(bare, "nvproxy-trace record -o new.jsonl.zst -- touch ran")
    assert (done.returncode, done.stderr) == (2, TRACED.format("trace", "zstandard"))
    assert not (bare["cwd"] / "ran").exists()
    done = run(bare, "nvproxy-trace stats t.jsonl.gz --plot t.png")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "nvproxy-trace: matplotlib is not installed; pip install 'nvproxy-model[plot]'\n"


def test_a_terminal_without_rich_gets_no_bar(bare: dict[str, Path]) -> None:
    """The bar is for what takes long, which a terminal alone shows; where rich is absent the answer is the same."""
    program = "from nvproxy_model.tools.output import progress; print(sum(progress(iter(range(5)), 5, 'releases')))"
    leader, follower = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-S", "-c", program],
            env={"PYTHONPATH": f"{ROOT}:{bare['core']}"},
            stdout=subprocess.PIPE,
            stderr=follower,
            text=True,
            check=False,
            timeout=60,
        )
        os.set_blocking(leader, False)
        with pytest.raises(BlockingIOError):
            os.read(leader, 1)
    finally:
        os.close(leader)
        os.close(follower)
    assert (done.returncode, done.stdout) == (0, "10\n")


def test_the_extras_are_those_of_the_package() -> None:
    declared = load_file(ROOT / "pyproject.toml")["project"]["optional-dependencies"]
    wanted: dict[str, set[str]] = {}
    for distribution, extra in extras.MODULES.values():
        wanted.setdefault(extra, set()).add(distribution)
    named = {extra: {text.partition(">")[0] for text in declared[extra]} - {"rich"} for extra in wanted}
    assert named == wanted
    assert declared["all"] == [f"nvproxy-model[{','.join(wanted)}]"]
    assert declared["test"][0] == "nvproxy-model[all]"
