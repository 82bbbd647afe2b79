"""Fuzz everything: ``python -m tests.fuzz --minutes 10``. The targets share the time, and each one's cases are printed.

With atheris (``pip install atheris``) and clang the drivers follow coverage; without them the corpus is mutated blindly, and the
output says so. ``properties`` runs every Hypothesis test of the suite with random seeds. Findings are left in a folder, one input
each: put it into tests/fuzz/corpus/TARGET, where test_fuzz.py runs it from then on, and mend the reader.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests import ROOT
from tests.fuzz import native
from tests.fuzz.native import Result
from tests.fuzz.targets import CORPUS, TARGETS

PROPERTIES = "properties"


def _python(name: str, seconds: float, seed: int, findings: Path, coverage: bool) -> Result:
    if coverage:
        findings.mkdir(parents=True, exist_ok=True)
        work = findings / f"{name}-corpus"
        work.mkdir(exist_ok=True)
        options = [
            f"-max_total_time={max(int(seconds), 1)}",
            f"-seed={seed + 1}",
            "-print_final_stats=1",
            "-timeout=120",
        ]
        command = [sys.executable, "-m", "tests.fuzz.coverage", name, *options, f"-artifact_prefix={findings}/{name}-"]
        done = subprocess.run(
            [*command, "-rss_limit_mb=2048", str(work), str(CORPUS / name)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        counted = re.search(r"number_of_executed_units: (\d+)", done.stderr)
        wrong = re.findall(r"^(?:\w+(?:\.\w+)*(?:Error|Exception)\b.*|SUMMARY: .*)$", done.stderr, re.MULTILINE)
        if done.returncode and not wrong:
            wrong = [f"exit status {done.returncode}: {done.stderr[-200:]}"]
        return Result(int(counted[1]) if counted else 0, wrong if done.returncode else [])
    command = [sys.executable, "-m", "tests.fuzz.mutate", name, "--seconds", str(seconds), "--seed", str(seed)]
    done = subprocess.run(
        [*command, "--findings", str(findings)], cwd=ROOT, capture_output=True, text=True, errors="replace", check=False
    )
    wrong = [line for line in done.stderr.splitlines() if line.startswith(f"{name}: ")]
    if done.returncode and not wrong:
        wrong = [f"exit status {done.returncode}: {done.stderr[-200:]}"]
    return Result(int(done.stdout.split()[-1]) if done.stdout.split() else 0, wrong)


def counted(statistics: str) -> int:
    """How many cases pytest says that Hypothesis ran, in the words of its releases so far."""
    return sum(int(number) for number in re.findall(r"- (\d+) passing\b", statistics))


def _properties(seconds: float, seed: int) -> Result:
    """Hypothesis tests, file after file, until the time is over; at least one file."""
    files = sorted(path for path in (ROOT / "tests").rglob("test_*.py") if "@given" in path.read_text())
    start = seed % len(files)
    cases, wrong = 0, []
    options = ("-q", "-m", "hypothesis", "--hypothesis-show-statistics", "-p", "no:cacheprovider")
    command = (sys.executable, "-m", "pytest", *options)
    end = time.monotonic() + seconds
    for path in files[start:] + files[:start]:
        done = subprocess.run(
            [*command, f"--hypothesis-seed={seed}", str(path)],
            cwd=ROOT,
            env={**os.environ, "HYPOTHESIS_PROFILE": "deep" if seconds > 1200 else "nightly"},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        cases += counted(done.stdout)
        wrong += re.findall(r"^FAILED .*", done.stdout, re.MULTILINE)
        if time.monotonic() > end:
            break
    return Result(cases, wrong)


def main(argv: Sequence[str] | None = None) -> int:
    """0: nothing found; 1: something was; 2: nothing could be run, or a target counted no case."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.split("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="default: all of them")
    parser.add_argument("--minutes", type=float, default=10, help="for all targets together (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=int(time.time()) // 86400, help="default: another one each day")
    parser.add_argument(
        "--findings", type=Path, metavar="DIR", help="where inputs that failed go (default: a new folder)"
    )
    parser.add_argument("--blind", action="store_true", help="without coverage, as where atheris and clang are missing")
    parser.add_argument("--list", action="store_true", help="name the targets and end")
    args = parser.parse_args(argv)
    every = [*TARGETS, *(f"{name}.c" for name in native.TARGETS), PROPERTIES]
    if args.list:
        print("\n".join(every))
        return 0
    if unknown := set(args.targets) - set(every):
        parser.error(f"no such target: {', '.join(sorted(unknown))} (see --list)")
    chosen = [name for name in every if not args.targets or name in args.targets]
    coverage = not args.blind and importlib.util.find_spec("atheris") is not None
    cc = native.compiler(coverage=not args.blind)
    if not coverage:
        print(f"{'asked for' if args.blind else 'no atheris here'}: the Python targets are mutated without coverage")
    if cc is None or "clang" not in cc:
        print(f"{'asked for' if args.blind else 'no clang here'}: the C targets are mutated without coverage")
    findings = args.findings or Path(tempfile.mkdtemp(prefix="nvproxy-fuzz-"))
    share = args.minutes * 60 / len(chosen)
    total = ran = idle = found = 0
    print(f"{'target':<16} {'cases':>10} {'seconds':>8}  findings")
    for name in chosen:
        start = time.monotonic()
        if name == PROPERTIES:
            result = _properties(share, args.seed)
        elif name in TARGETS:
            result = _python(name, share, args.seed, findings, coverage)
        else:
            plain = name.removesuffix(".c")
            built = native.build(plain, findings, cc) if cc else None
            if built is None:
                print(f"{name:<16} {'-':>10} {'-':>8}  not run: no C compiler with sanitizers", flush=True)
                continue
            result = native.run(built, plain, seconds=share, seed=args.seed + 1, findings=findings)
        total, ran, found = total + result.cases, ran + 1, found + len(result.findings)
        print(f"{name:<16} {result.cases:>10} {time.monotonic() - start:>8.0f}  {len(result.findings)}", flush=True)
        for line in result.findings:
            print(f"    {line[:200]}")
        if not result.cases and not result.findings:
            idle += 1
            print("    no case was counted: this target has shown nothing")
    print(f"{total} cases of {ran} targets, {found} findings{f': inputs in {findings}' if found else ''}")
    return int(bool(found)) or (2 if idle or not ran else 0)


if __name__ == "__main__":
    sys.exit(main())
