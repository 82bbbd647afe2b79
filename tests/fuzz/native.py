"""The targets in C: built with clang's libFuzzer, or with any compiler's sanitizers and a driver of our own without coverage."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

from tests import ROOT
from tests.fuzz.targets import CORPUS

__all__ = ["TARGETS", "Result", "build", "compiler", "run"]

SOURCES: Final = Path(__file__).with_name("sources")
_SHARE: Final = ROOT / "cuinterpose" / "src"

TARGETS: Final[dict[str, tuple[Path, ...]]] = {
    "ticket": (_SHARE / "ticket.c",),
    "frame": (_SHARE / "frame.c", _SHARE / "ticket.c"),
    "recorder": (),
}
"""name -> what is linked with its harness."""


class Result(NamedTuple):
    """What one run of one target came to."""

    cases: int
    findings: list[str]


def compiler(*, coverage: bool = True) -> str | None:
    """clang where it is and coverage is wanted, else any C compiler, or None."""
    return (shutil.which("clang") if coverage else None) or shutil.which("cc") or shutil.which("gcc")


def build(name: str, folder: Path, cc: str) -> Path | None:
    """The target with sanitizers; None where this compiler has none."""
    coverage = "clang" in Path(cc).name
    out = folder / f"{name}-{Path(cc).name}"
    sources = [SOURCES / f"{name}.c", *TARGETS[name], *(() if coverage else (SOURCES / "driver.c",))]
    kinds = "address,undefined" + (",fuzzer" if coverage else "")
    command = [cc, "-std=gnu11", "-g", "-O1", "-pthread", f"-fsanitize={kinds}", "-fno-sanitize-recover=all"]
    done = subprocess.run(
        [*command, f"-I{_SHARE}", "-o", out, *sources, "-ldl"], capture_output=True, text=True, check=False
    )
    if done.returncode and "error:" in done.stderr.replace("linker command failed", ""):
        if re.search(r"\.c:\d+:\d+: error", done.stderr):
            raise AssertionError(done.stderr)
        return None
    return out if done.returncode == 0 else None


def run(built: Path, name: str, *, seconds: float, seed: int, findings: Path) -> Result:
    """Run it over a copy of its corpus. An input that ends it is left in ``findings``."""
    findings.mkdir(parents=True, exist_ok=True)
    work = findings / f"{name}-corpus"
    shutil.copytree(CORPUS / name, work, dirs_exist_ok=True)
    options = [f"-max_total_time={max(int(seconds), 1)}", f"-seed={seed}", "-print_final_stats=1", "-timeout=10"]
    done = subprocess.run(
        [built, *options, f"-artifact_prefix={findings}/{name}-", work],
        cwd=findings,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    shutil.rmtree(work)
    counted = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    wrong = re.findall(r"^(?:SUMMARY|.*runtime error): .*", done.stderr, re.MULTILINE)
    if done.returncode and not wrong:
        wrong = [f"exit status {done.returncode}: {done.stderr[-200:]}"]
    return Result(int(counted[1]) if counted else 0, wrong)
