"""``nvproxy-policy run`` on a machine with a GPU, in under eight minutes: programs plain and under it, and what it costs.

Prints a table (program, calls, refusals, exit status, overhead) and the speed. Reports and scrubbed traces go to $OUT where
that is set. Inside gVisor, which has no notification, nvidia-smi and torch are recorded with the preloaded recorder instead.
Needs the package's dependencies on PYTHONPATH; STATIC may name a static build of tests/live/program.c.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BUDGET = float(os.environ.get("BUDGET", "470"))
STARTED = time.monotonic()
PYTHON = shutil.which("python3") or sys.executable
ENV = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
ENV |= {"NCCL_NVLS_ENABLE": "0", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
POLICY = [PYTHON, "-m", "nvproxy_model.tools.policy"]
TRACE = [PYTHON, "-m", "nvproxy_model.tools.trace"]

TRAIN = """
import torch
torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)).cuda()
opt = torch.optim.SGD(net.parameters(), 0.1)
x, y = torch.randn(512, 256).pin_memory().cuda(non_blocking=True), torch.randint(0, 10, (512,)).cuda()
for _ in range(30):
    opt.zero_grad(); loss = torch.nn.functional.cross_entropy(net(x), y); loss.backward(); opt.step()
print(f"loss {float(loss):.4f}")
"""
MATMUL = "import torch\nx = torch.ones(512, 512, device='cuda')\nfor _ in range({n}): y = x @ x\nprint(float(y[0, 0]))"
NCCL = """
import torch, torch.distributed as dist
def rank(n):
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29511", rank=n, world_size=2)
    x = torch.full((1 << 20,), float(n + 1), device=f"cuda:{n}")
    dist.all_reduce(x)
    assert float(x.sum()) == 3.0 * (1 << 20)
    dist.destroy_process_group()
import os
pid = os.fork()
rank(0 if pid else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if pid else 0)
"""
CUPY = "import cupy\nprint(float((cupy.arange(1000, dtype='f4') ** 2).sum()))"
JAX = "import jax.numpy as n\nprint(float((n.arange(1000, dtype='float32') ** 2).sum()))"


def left() -> float:
    return BUDGET - (time.monotonic() - STARTED)


def timed(command: list[str], limit: float, **more: Any) -> tuple[int, float, str, str]:
    """Exit status, seconds, output, errors."""
    began = time.monotonic()
    try:
        limit = max(min(limit, left()), 1)
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit,
            cwd=ROOT,
            check=False,
            **{"env": ENV, **more},
        )
        return done.returncode, time.monotonic() - began, done.stdout, done.stderr
    except OSError as error:
        return 127, 0.0, "", str(error)
    except subprocess.TimeoutExpired as late:
        return 124, time.monotonic() - began, str(late.stdout or "")[-2000:], str(late.stderr or "")[-2000:]


def found(*names: str) -> str | None:
    for name in names:
        places = sorted(Path("/").glob(name.lstrip("/"))) if "*" in name else [Path(shutil.which(name) or name)]
        for place in places:
            if place.is_file():
                return str(place)
    return None


class Bench:
    def __init__(self, work: Path) -> None:
        self.work = work
        self.rows: list[tuple[str, ...]] = []
        self.reports: dict[str, Any] = {}

    def program(
        self,
        name: str,
        command: list[str],
        *,
        caps: str = "compute,utility",
        limit: float = 60,
        same: bool = True,
        **more: Any,
    ) -> None:
        """One program, plain and under the command."""
        flags, prefix = more.pop("flags", []), more.pop("prefix", [])
        if left() < 25:
            print(f"== {name}: no time left, not run")
            return
        print(f"== {name}: {' '.join(command)[:100]}", flush=True)
        plain_status, plain, out, err = timed([*prefix, *command], limit, **more)
        report, trace = self.work / f"{name}.json", self.work / f"{name}.jsonl.zst"
        watch = [
            *prefix,
            *POLICY,
            "run",
            "--caps",
            caps,
            "--report",
            str(report),
            "--record",
            str(trace),
            *flags,
            "--",
            *command,
        ]
        status, seconds, out2, err2 = timed(watch, limit * 2, **more)
        lines = [line for line in err2.splitlines() if line.startswith("nvproxy-policy: ")]
        print("\n".join(f"   {line}" for line in lines[:28]))
        if status != plain_status or (same and out != out2):
            print(f"   DIFFERENT: exit {plain_status} and {status}")
            print("   plain:", out[-300:], err[-300:], "\n   watched:", out2[-600:], err2[-1200:])
        document = json.loads(report.read_text()) if report.is_file() and report.stat().st_size else None
        if document is None:
            self.rows.append((name, "?", "?", f"{plain_status}/{status}", f"{plain:.2f} s, {seconds:.2f} s", "", ""))
            return
        self.reports[name] = document
        calls = document["calls"]
        replay = self.replayed(trace)
        unknown = sum(r["count"] for r in document["refused"] if not r["harmless"])
        self.rows.append(
            (
                name,
                f"{calls.get('performed', 0)}+{calls.get('in place', 0)}",
                f"{sum(r['count'] for r in document['refused'])} ({unknown})",
                f"{plain_status}/{status}",
                f"{plain:.2f} s, {seconds:.2f} s",
                f"{document['overhead']['median_own_microseconds']} us",
                f"{document['verified']['questions']}/{len(document['verified']['differences'])}; {replay}",
            )
        )

    def replayed(self, trace: Path) -> str:
        if not trace.is_file():
            return "no trace"
        status, _, out, err = timed([*TRACE, "replay", str(trace), "--json"], 40)
        try:
            document = json.loads(out)
        except ValueError:
            return f"replay {status} {err.strip()[-80:]}"
        wrong = document.get("divergences", [])
        for step in wrong[:4]:
            print("   replay:", json.dumps(step)[:220])
        return f"{len(wrong)} divergences"

    def table(self) -> None:
        head = (
            "program",
            "performed + in place",
            "refused (not harmless)",
            "exit plain/run",
            "seconds",
            "own",
            "verify; replay",
        )
        print("\n| " + " | ".join(head) + " |\n|" + " --- |" * len(head))
        for row in self.rows:
            print("| " + " | ".join(row) + " |")

    # Speed

    def pair(self, name: str, command: list[str], times: int, limit: float) -> None:
        """Plain and watched in turns; medians and their ratio. The first of each is left out."""
        seconds: dict[str, list[float]] = {"plain": [], "run": []}
        for turn in range(times + 1):
            for kind, took_before in seconds.items():
                if left() < 8:
                    break
                watch = [] if kind == "plain" else [*POLICY, "run", "-q", "--"]
                status, took, _, err = timed([*watch, *command], limit)
                if status:
                    print(f"   {name} {kind}: exit {status} {err[-200:]}")
                    return
                if turn:
                    took_before.append(took)
        if seconds["run"]:
            plain, run = (statistics.median(seconds[kind]) for kind in seconds)
            more = f"{(run / plain - 1) * 100:+.1f} %, {len(seconds['run'])} pairs"
            print(f"{name}: {plain * 1e3:.0f} ms plain, {run * 1e3:.0f} ms run, {more}")

    def steady(self) -> None:
        counts = []
        for n in (10, 1000):
            report = self.work / "steady.json"
            timed([*POLICY, "run", "-q", "--report", str(report), "--", PYTHON, "-c", MATMUL.format(n=n)], 60)
            calls = json.loads(report.read_text())["calls"]
            counts.append(calls.get("performed", 0) + calls.get("in place", 0) + calls.get("refused", 0))
        print(f"calls of 10 and of 1000 matmuls: {counts[0]}, {counts[1]}")

    def static(self, program: str) -> None:
        for case, n in (("timed-calls", 5000), ("timed-elsewhere", 1_000_000), ("timed-opens", 100_000)):
            lines = []
            for watch in ([], [*POLICY, "run", "-q", "--"]):
                lines.append(timed([*watch, program, "/dev", case, str(n)], 60)[2].strip())
            print(f"{case} {n}: plain: {lines[0]}; run: {lines[1]}")


def inside() -> None:
    """In gVisor: what nvproxy itself answers, recorded in the program."""
    library = ROOT / "nvproxy_model/trace/record/librecorder.so"
    sources = [str(path) for path in (ROOT / "nvproxy_model/trace/record/recorder").glob("*.c")]
    flags = ["-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-shared", "-pthread"]
    subprocess.run(["cc", *flags, "-o", str(library), *sources, "-ldl"], check=False)
    for name, command in (("smi", ["nvidia-smi"]), ("torch", [PYTHON, "-c", TRAIN])):
        path = Path(os.environ.get("OUT", "/tmp")) / f"inside-{name}.jsonl.gz"
        print(name, *timed([*TRACE, "record", "-o", str(path), "--", *command], 120))
        print(timed([*TRACE, "check", str(path), "--inside"], 60)[2][-3000:])


def main() -> None:
    release = os.uname().release
    version = Path("/proc/driver/nvidia/version")
    print(release, version.read_text().splitlines()[0] if version.exists() else "no driver")
    if release == "4.4.0" or "gvisor" in release.lower():
        inside()
        return
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        work.chmod(0o777)
        bench = Bench(work)
        try:
            everything(bench, work)
        except (OSError, ValueError, KeyError) as error:
            print(f"cut short: {error!r}")
        finally:
            bench.table()
            keep(bench, work)
            print(f"{time.monotonic() - STARTED:.0f} s")


def everything(bench: Bench, work: Path) -> None:
    vmm = [PYTHON, "benchmarks/trace_gpu_program.py"]
    nsys = found("nsys", "/opt/nvidia/nsight-compute/*/host/target-linux-x64/nsys")
    ncu = found("ncu", "/usr/local/cuda*/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu")
    static = os.environ.get("STATIC")
    full = "compute,utility,profiling"
    bench.program("smi-L", ["nvidia-smi", "-L"], flags=["--verify"])
    bench.program("smi", ["nvidia-smi"], same=False)
    bench.program("smi-q", ["nvidia-smi", "-q"], same=False)
    bench.program("vmm", [*vmm, "8"], flags=["--verify"])
    bench.program("share", [PYTHON, "benchmarks/run_gpu_share.py"])
    bench.program("torch", [PYTHON, "-c", TRAIN], flags=["--verify"])
    profiled = [*vmm, "2"]
    if nsys:
        flags = ["--trace=cuda", "--gpuctxsw=true", "--force-overwrite=true", "-o", str(work / "nsys")]
        command = [nsys, "profile", *flags, *profiled]
        bench.program("nsys", command, caps=full, same=False, limit=45, flags=["--verify"])
        bench.program("nsys-plain-caps", command, same=False, limit=45)
        print("   files:", [(path.name, path.stat().st_size) for path in work.glob("nsys.*")])
    if ncu:
        command = [
            ncu,
            "--clock-control",
            "none",
            "-c",
            "1",
            "--section",
            "SpeedOfLight",
            PYTHON,
            "-c",
            MATMUL.format(n=1),
        ]
        bench.program("ncu", command, caps=full, same=False, limit=60)
    bench.program("cupy", [PYTHON, "-c", CUPY])
    bench.program("jax", [PYTHON, "-c", JAX], limit=60)
    more = {**ENV, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    bench.program("torch-expandable", [PYTHON, "-c", TRAIN], env=more)
    user = ["setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups", "--inh-caps=-all"]
    bench.program("vmm-user", [*vmm, "8"], prefix=user, env={**ENV, "HOME": str(work)})
    if static:
        bench.program("static", [static, "/dev", "calls", "20"])
        bench.program("event-buffer", [static, "/dev", "chain"], caps=full, flags=["--verify"])
        bench.static(static)
    if len(list(Path("/dev").glob("nvidia[0-9]"))) > 1:
        bench.program("nccl", [PYTHON, "-c", NCCL], limit=90, same=False)
    bench.pair("vmm", [*vmm, "4"], 9, 20)
    bench.steady()
    bench.pair("torch start", [PYTHON, "-c", "import torch; torch.ones(1).cuda(); torch.cuda.synchronize()"], 3, 40)


def keep(bench: Bench, work: Path) -> None:
    out = os.environ.get("OUT")
    if not out:
        return
    (Path(out) / "reports.json").write_text(json.dumps(bench.reports, indent=1))
    with tarfile.open(Path(out) / "traces.tar", "w") as tar:
        for path in sorted(work.glob("*.jsonl.zst")):
            scrubbed = path.with_name(path.name.replace(".jsonl.zst", ".scrubbed.jsonl.zst"))
            status, _, _, err = timed([*TRACE, "scrub", str(path), "-o", str(scrubbed)], 30)
            if status == 0 and scrubbed.is_file():
                tar.add(scrubbed, path.name)
            else:
                print(f"   {path.name}: not scrubbed, left out: {err[-100:]}")


if __name__ == "__main__":
    main()
