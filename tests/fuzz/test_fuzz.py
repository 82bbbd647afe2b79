"""Every target takes its corpus, which holds what once failed, and what Hypothesis and the driver without coverage make of it."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import ROOT
from tests.effort import examples, sampled
from tests.fuzz import __main__ as command
from tests.fuzz import native
from tests.fuzz.mutate import fuzz
from tests.fuzz.native import Result
from tests.fuzz.targets import CORPUS, TARGETS, seeds

SLOW = ("session", "trace_commands")


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus(name: str) -> None:
    for data in seeds(name):
        TARGETS[name].run(data)


@pytest.mark.parametrize("name", [name for name in TARGETS if name not in SLOW])
@settings(max_examples=examples(100))
@given(data=st.data())
def test_no_bytes_raise(name: str, data: st.DataObject) -> None:
    seed = data.draw(st.sampled_from(seeds(name)))
    at = data.draw(st.integers(0, len(seed)))
    to = data.draw(st.integers(at, min(len(seed), at + 60)))
    raw = seed[:at] + data.draw(st.binary(max_size=40)) + seed[to:]
    if name == "trace" and data.draw(st.booleans()):
        packed = gzip.compress(raw, 1)
        raw = packed[: data.draw(st.integers(0, len(packed)))]
    TARGETS[name].run(raw)


@pytest.mark.parametrize("name", TARGETS)
def test_mutations(name: str) -> None:
    count, found = fuzz(TARGETS[name].run, seeds(name), seconds=60, cases=30 if name in SLOW else 200, seed=1)
    assert found == {}
    assert count >= 30


def test_the_driver_finds_an_exception_and_its_smallest_input() -> None:
    def target(data: bytes) -> None:
        if b"x" in data:
            raise KeyError("x")

    count, found = fuzz(target, [b"ax" * 20, b"b"], seconds=60, cases=400)
    assert count == 400
    ((where, data),) = found.items()
    assert where.startswith("KeyError at test_fuzz.py:")
    assert b"x" in data
    assert len(data) < 10


def test_every_target_has_a_corpus_and_every_corpus_a_target() -> None:
    folders = {path.name for path in CORPUS.iterdir()}
    assert folders == set(TARGETS) | set(native.TARGETS)
    assert all(any((CORPUS / name).iterdir()) for name in folders)
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < 200_000


@pytest.mark.parametrize("name", sampled(native.TARGETS))
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_native_targets_build_and_take_their_corpus(name: str, compiler: str, tmp_path: pytest.TempPathFactory) -> None:
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler}")
    built = native.build(name, tmp_path, compiler)  # type: ignore[arg-type]
    if built is None:
        pytest.skip(f"{compiler} has no sanitizers here")
    assert native.run(built, name, seconds=1, seed=1, findings=tmp_path).cases > 0  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--minutes", "0.01", "--blind", "request_number", "frame"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines if line.startswith(("frame ", "request_number "))] == [
        "frame",
        "request_number",
    ]
    assert "0 findings" in lines[-1]


def test_a_target_without_a_case_is_no_success(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "_properties", lambda seconds, seed: Result(0, []))
    assert command.main(["properties"]) == 2
    assert "has shown nothing" in capsys.readouterr().out


@pytest.mark.slow
def test_the_cases_of_properties_are_counted(tmp_path: Path) -> None:
    """As the Hypothesis that is installed words its statistics."""
    (tmp_path / "test_it.py").write_text(
        "from hypothesis import given, settings, strategies as st\n"
        "@settings(max_examples=7)\n@given(st.integers())\ndef test_it(n):\n    pass\n"
    )
    options = ("-q", "-m", "hypothesis", "--hypothesis-show-statistics", "-p", "no:cacheprovider", "-p", "no:xdist")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_it.py"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert command.counted(done.stdout) == 7, done.stdout + done.stderr
