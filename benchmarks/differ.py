"""What nvproxy-differ costs, as ratios within one run: python benchmarks/differ.py REPOSITORY [--rounds N] [--json FILE].

Figures are processor seconds, children included, the best of several rounds, the cases interleaved; wall time says
something on a quiet machine only. The yardsticks: B is an interpreter that does nothing, C one that imports construct and
yaml, and P is what gVisor's clang tool takes for 20 releases on the same machine, which ``--peer`` says (7.1 where B is
0.025 and C 0.063). Bytecode is written before the first figure, as an installed package has it.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nvproxy_model
from nvproxy_model import versions
from nvproxy_model.drivers import facts
from nvproxy_model.naming import natural

DECIDE = """
import nvproxy_model
nvproxy_model.Policy.for_driver("580.126.20").decide_control(0x20800301, bytes(16), {})
"""
ALL = """
import sys
from nvproxy_model.drivers.compare import model
from nvproxy_model.drivers.sources import open_source
with open_source(sys.argv[1]) as source:
    assert sum(1 for _ in source.releases(source.versions, model.names())) == len(source.versions)
"""


@dataclass
class Cost:
    """The best of several runs: seconds of wall and of processor (children included), and the most memory of any run."""

    wall: float = float("inf")
    cpu: float = float("inf")
    pss: int = 0


def descendants(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for each in found:
        try:
            children = Path(f"/proc/{each}/task/{each}/children").read_text()
        except OSError:
            continue
        found += map(int, children.split())
    return found


def watch(pid: int, stop: threading.Event, note: Callable[[int], None]) -> None:
    """Sum the proportional set sizes of a process tree until told to stop."""
    while not stop.wait(0.05):
        total = 0
        for each in descendants(pid):
            try:
                text = Path(f"/proc/{each}/smaps_rollup").read_text()
            except OSError:
                continue
            total += next((int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss:")), 0)
        note(total)


def measure(cost: Cost, command: list[str], cache: str, memory: bool) -> None:
    """Run a command once and keep the better figures."""
    environment = {**os.environ, "NVPROXY_CACHE_DIR": cache, "PYTHONDONTWRITEBYTECODE": ""}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    stop = threading.Event()

    def note(total: int) -> None:
        cost.pss = max(cost.pss, total)

    watcher = threading.Thread(target=watch, args=(process.pid, stop, note)) if memory else None
    if watcher:
        watcher.start()
    status = process.wait()
    wall = time.perf_counter() - start
    stop.set()
    if watcher:
        watcher.join()
    if status > 1:
        raise SystemExit(f"{' '.join(command)}: exit status {status}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    cost.wall, cost.cpu = min(cost.wall, wall), min(cost.cpu, cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", help="NVIDIA's open-gpu-kernel-modules with its tags")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", type=float, metavar="P", help="the peer's processor seconds for 20 releases")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures, too")
    args = parser.parse_args()
    repository = args.repository
    recorded = facts.load()
    listed = sorted((v for v in versions.load() if v in recorded), key=natural)[-20:]
    python = [sys.executable]
    differ = [*python, "-m", "nvproxy_model.tools.driver_differ"]
    policy = [*python, "-m", "nvproxy_model.tools.policy"]
    compileall.compile_dir(Path(nvproxy_model.__file__).parent, quiet=1)
    source = ["--source", repository]
    with tempfile.TemporaryDirectory() as warm:
        subprocess.run([*python, "-c", ALL, repository], env={**os.environ, "NVPROXY_CACHE_DIR": warm}, check=True)
        cases: dict[str, tuple[list[str], str]] = {
            "B": ([*python, "-c", "pass"], ""),
            "C": ([*python, "-c", "import construct, yaml"], ""),
            "--help": ([*differ, "--help"], ""),
            "--version": ([*differ, "--version"], ""),
            "check of 1 from facts": ([*differ, "check", listed[-1]], ""),
            "explain": ([*policy, "explain", "NV_EVENT_BUFFER"], ""),
            "import and one decision": ([*python, "-c", DECIDE], ""),
            "check of 1 from git": ([*differ, "check", listed[-1], *source], ""),
            "check of 20 from git": ([*differ, "check", *listed, *source], ""),
            "check of 20 from facts": ([*differ, "check", *listed], ""),
            "check of all from facts": ([*differ, "check"], ""),
            "diff of 2 from git": ([*differ, "diff", listed[-2], listed[-1], *source], ""),
            "diff --all from facts": ([*differ, "diff", "515.43.04", "595.45.04", "--all"], ""),
            "history from facts": ([*differ, "history", "NV_CHANNEL_ALLOC_PARAMS"], ""),
            "audit from facts": ([*differ, "audit"], ""),
            "report from facts": ([*differ, "report", "-o", f"{warm}/report.html"], ""),
            "193 tags, cold": ([*python, "-c", ALL, repository], ""),
            "193 tags, warm": ([*python, "-c", ALL, repository], warm),
        }
        costs = {name: Cost() for name in cases}
        for _ in range(args.rounds):
            for name, (command, cache) in cases.items():
                measure(costs[name], command, cache, memory=name.startswith("193"))
    nothing, libraries = costs["B"].cpu, costs["C"].cpu
    twenty = costs["check of 20 from git"]
    for name, cost in costs.items():
        memory = f"  {cost.pss / 1e6:4.0f} MB summed PSS" if cost.pss else ""
        print(f"{name:<26}{cost.wall:7.3f} s wall {cost.cpu:7.3f} s cpu {cost.cpu / libraries:7.2f} C{memory}")
    bounds = [
        ("--help / B", costs["--help"].cpu / nothing, 2.0),
        ("--version / B", costs["--version"].cpu / nothing, 2.0),
        ("check of 1 from facts / C", costs["check of 1 from facts"].cpu / libraries, 1.5),
        ("check of 20 from facts / C", costs["check of 20 from facts"].cpu / libraries, 2.5),
        ("explain / C", costs["explain"].cpu / libraries, 1.8),
        ("import and one decision / C", costs["import and one decision"].cpu / libraries, 1.5),
        ("report from facts / C", costs["report from facts"].cpu / libraries, 4.4),
        ("20 from git: wall / cpu", twenty.wall / twenty.cpu, 0.65),
        ("193 tags cold, MB of PSS", costs["193 tags, cold"].pss / 1e6, 400.0),
    ]
    if args.peer:
        bounds += [
            ("check of 1 from git / P, for 1", costs["check of 1 from git"].cpu / (args.peer * 0.41 / 7.1), 1.0),
            ("check of 20 from git / P", twenty.cpu / args.peer, 1 / 4.5),
            ("193 tags cold / P", costs["193 tags, cold"].cpu / args.peer, 0.65),
        ]
    print()
    for name, value, bound in bounds:
        print(f"{name:<34}{value:8.2f}   bound {bound:g}{'' if value <= bound else '   OVER'}")
    if args.json:
        figures = {"costs": {n: vars(c) for n, c in costs.items()}, "ratios": {n: [v, b] for n, v, b in bounds}}
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
