"""What the shim costs, against the same program without it: python benchmarks/cuinterpose.py [ROUNDS]

Runs alternate, the best of each counts. Differences and ratios only; absolute figures are this machine's. Exit status 1
if one is above its limit.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
LIMITS_NS = {
    "call, bound by the loader": 1.5,
    "call, 7 arguments": 1.5,
    "call, pointer from dlsym": 1.5,
    "cuGetProcAddress_v2, covered": 20.0,
    "cuGetProcAddress_v2, uncovered": 20.0,
    'dlsym(handle, "cuInit")': 12.0,
    'dlsym(handle, "cuMemAlloc_v2")': 12.0,
    'dlsym(RTLD_DEFAULT, "getppid")': 12.0,
}
LIMITS_TRACKED_NS = {"cuMemMap": 150.0, "cuMemSetAccess": 150.0, "cuMemUnmap": 150.0, "cuLaunchKernel": 30.0}
LIMITS_RATIO = {
    "fork+exec of true, CPU": 1.15,
    ("validation of a ticket", "plain read of a memfd"): 2.0,
    ("EXPORT", "plain exchange of a descriptor"): 2.0,
}


def build(where: Path) -> tuple[Path, Path, Path, Path]:
    """(the shim, the program that calls, the one that maps, the one that shares)"""
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", where], cwd=ROOT, check=True, stdout=sys.stderr
    )

    def compile_(output: str, *arguments: str | Path) -> Path:
        subprocess.run(["gcc", "-O2", "-o", where / output, *map(str, arguments)], check=True)
        return where / output

    (where / "driver").mkdir()
    driver = compile_(
        "driver/libcuda.so.1", "-shared", "-fPIC", HERE / "cuinterpose_driver.c", "-Wl,-Bsymbolic,-soname,libcuda.so.1"
    )
    sources = [ROOT / "cuinterpose" / "src" / f"{name}.c" for name in ("ticket", "frame", "peer", "endpoint")]
    return (
        where / "cuinterpose" / "libcuinterpose.so",
        compile_("calls", HERE / "cuinterpose_calls.c", driver, "-ldl"),
        compile_("tracked", HERE / "cuinterpose_tracked.c", driver),
        compile_("share", HERE / "cuinterpose_share.c", *sources, "-lpthread"),
    )


def measure(command: Path, environment: dict[str, str]) -> dict[str, float]:
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    return {name: float(value) for name, value in (line.split("\t") for line in done.stdout.splitlines())}


def best(runs: list[dict[str, float]], choose: Callable[[list[float]], float] = min) -> dict[str, float]:
    return {name: choose([run[name] for run in runs]) for name in runs[0]}


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    over = 0
    with tempfile.TemporaryDirectory() as name:
        shim, calls, maps, share = build(Path(name))
        library = {"LD_LIBRARY_PATH": str(shim.parents[1] / "driver")}
        tracked = {"LD_PRELOAD": str(shim), "CUINTERPOSE_TRACK": "1", "CUINTERPOSE_DIR": name, **library}
        plain, shimmed, shared, mapped, mapped_tracked = [], [], [], [], []
        for _ in range(rounds):
            plain.append(measure(calls, library))
            shimmed.append(measure(calls, {**library, "LD_PRELOAD": str(shim)}))
            shared.append(measure(share, {}))
            mapped.append(measure(maps, library))
            mapped_tracked.append(measure(maps, tracked))
    without, spread, with_shim, sharing = best(plain), best(plain, max), best(shimmed), best(shared)
    print(
        f"{'ns, best of ' + str(rounds):34}{'plain':>10}{'shim':>10}{'difference':>12}{'ratio':>8}{'limit':>9}  spread of plain"
    )
    for what, value in without.items():
        difference, ratio = with_shim[what] - value, with_shim[what] / value
        limit, text = None, ""
        if what in LIMITS_NS:
            limit, text = difference > LIMITS_NS[what], f"+{LIMITS_NS[what]:g}"
        elif what in LIMITS_RATIO:
            limit, text = ratio > LIMITS_RATIO[what], f"x{LIMITS_RATIO[what]:g}"
        over += bool(limit)
        mark = "OVER" if limit else ""
        print(
            f"{what:34}{value:10.2f}{with_shim[what]:10.2f}{difference:+12.2f}{ratio:8.3f}{text:>9}"
            f"  {spread[what] - value:.2f} {mark}"
        )
    print(f"\n{'tracked':34}{'plain':>10}{'tracked':>10}{'difference':>12}")
    with_tracker = best(mapped_tracked)
    for what, value in best(mapped).items():
        difference = with_tracker[what] - value
        over += difference > LIMITS_TRACKED_NS[what]
        mark = "OVER" if difference > LIMITS_TRACKED_NS[what] else ""
        print(
            f"{what:34}{value:10.2f}{with_tracker[what]:10.2f}{difference:+12.2f}{'':8}+{LIMITS_TRACKED_NS[what]:<8g}{mark}"
        )
    print()
    for what, limit_ratio in LIMITS_RATIO.items():
        if isinstance(what, tuple):
            ours, base = (sharing[part] for part in what)
            over += ours / base > limit_ratio
            mark = "OVER" if ours / base > limit_ratio else ""
            print(
                f"{what[0]}: {ours:.0f} ns, {ours / base:.2f}x of a {what[1]} ({base:.0f} ns), limit {limit_ratio:g}x {mark}"
            )
    print(f"not a ticket (device): {sharing['not a ticket (device)']:.0f} ns")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
