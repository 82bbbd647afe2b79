"""How fast traces are decoded and judged, as ratios to construct parsing of the same structs, measured in one run.

``python benchmarks/trace.py [--calls N] [TRACE...]``: torch-matmul repeated to 100,000 calls carries the bounds
(decode at least 8x,
check at least 15x, flat memory); the other traces are printed without one, since a few structs of thousands of bytes decide them.
With ``--recorder LIBRECORDER.so`` the recorder's added start-up on a program with 500 ioctls is measured too (needs a C compiler).
"""

from __future__ import annotations

import argparse
import gzip
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvproxy_model.policy.policy import Policy
from nvproxy_model.trace.decode import layouts
from nvproxy_model.trace.decode.catalog import Catalog
from nvproxy_model.trace.decode.decoder import Decoder
from nvproxy_model.trace.judge.check import Check
from nvproxy_model.trace.reader import Reader
from nvproxy_model.trace.record import table
from nvproxy_model.trace.record.mapped import Keeper, keeping

ROOT = Path(__file__).resolve().parent.parent
TRACES = ROOT / "tests" / "data" / "traces"
DRIVER = "580.159.04"


def repeated(source: Path, calls: int) -> Path:
    """The trace's lines again and again until they hold that many calls, uncompressed."""
    lines = gzip.decompress(source.read_bytes())
    ioctls = lines.count(b'"k":"ioctl"')
    times = max(1, -(-calls // ioctls))
    out = Path(tempfile.mkstemp(suffix=".jsonl")[1])
    with out.open("wb") as file:
        for _ in range(times):
            file.write(lines)
    return out


def through_construct(path: Path, catalog: Catalog) -> int:
    """Parse every struct of the trace with construct: what a decoder written the plain way does."""
    constructs: dict[int, Any] = {}
    kept = []
    count = 0
    for rec in Reader(path):
        if rec.k != "ioctl":
            continue
        pairs = [(catalog.outer(rec), rec.top0, rec.top1)]
        if rec.par0 is not None:
            pairs.append((catalog.shape(rec.kind, rec.key), rec.par0, rec.par1))
        for shape, *datas in pairs:
            if shape is None:
                continue
            if id(shape) not in constructs:
                constructs[id(shape)] = layouts.through_construct(shape.layout)
                kept.append(shape)
            for data in datas:
                if data is not None and len(data) >= shape.size:
                    constructs[id(shape)].parse(data)
                    count += 1
    return count


def decode(path: Path, catalog: Catalog) -> int:
    """What ``decode --json`` does, to a file that keeps nothing."""
    decoder = Decoder(catalog)
    with open(os.devnull, "wb") as out:
        for rec in Reader(path):
            out.write(decoder.line(rec))
    return 0


def check(path: Path, catalog: Catalog) -> int:
    """What ``check`` does."""
    return len(Check(Policy.for_driver(DRIVER, "compute,utility"), catalog).feed(Reader(path)).rows)


def best(of: Callable[[], int], times: int) -> float:
    """CPU seconds, the best of several."""
    results = []
    for _ in range(times):
        start = time.process_time()
        of()
        results.append(time.process_time() - start)
    return min(results)


def megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


PROGRAM = r"""
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
struct control { uint32_t client, object, cmd, flags; uint64_t params; uint32_t size, status; };
int main(void)
{
	/* A CUDA program's start-up, which takes about 400 ms: work, waits, and 500 calls in the sizes of torch's. */
	static unsigned char work[1 << 22];
	unsigned char params[1024] = { 0 };
	int fd = open("/dev/nvidiactl", O_RDWR), i, j;
	for (i = 0; i < 500; i++) {
		struct control c = { 1, 1, 0x20800102, 0, (uintptr_t)params, i % 10 ? 64 : sizeof(params), 0 };
		ioctl(fd, 0xc020462aul, &c);
		for (j = 0; j < 12; j++)
			memset(work, i + j, sizeof(work) / 16);
		usleep(600);
	}
	return 0;
}
"""


def recorder(library: Path, rounds: int) -> None:
    """Alternating runs of one program with and without the recorder; medians."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        (here / "program.c").write_text(PROGRAM)
        subprocess.run(["cc", "-O2", "-o", here / "program", here / "program.c"], check=True)
        fake = here / "fake.so"
        subprocess.run(
            ["cc", "-O2", "-shared", "-fPIC", "-o", fake, ROOT / "tests/trace/fake_driver.c", "-ldl"], check=True
        )
        numbers = table.pack(table.entries(Catalog(DRIVER)))
        plain, recorded = [], []
        for _ in range(rounds):
            for preload, into in ((f"{fake}", plain), (f"{library}:{fake}", recorded)):
                spool = here / "spool"
                env = {**os.environ, "LD_PRELOAD": preload, "NVPROXY_TRACE_SPOOL": str(spool)}
                with keeping(Keeper(spool, numbers)):
                    start = time.perf_counter()
                    subprocess.run([here / "program"], env=env, check=True)
                    into.append(time.perf_counter() - start)
                spool.unlink()
        a, b = statistics.median(plain), statistics.median(recorded)
        print(
            f"recorder, 500 ioctls, median of {rounds} alternating runs: {a * 1e3:.1f} ms plain, {b * 1e3:.1f} "
            f"ms recorded: {(b / a - 1) * 100:+.1f}%"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--recorder", type=Path, metavar="LIBRECORDER.so")
    parser.add_argument("--others", action="store_true", help="the other traces too, once each")
    args = parser.parse_args()
    if args.recorder:
        recorder(args.recorder, 11)
    catalog = Catalog(DRIVER)
    main_trace = TRACES / "torch-matmul.jsonl.gz"
    chosen = args.traces or [main_trace, *(sorted(set(TRACES.glob("*.gz")) - {main_trace}) if args.others else [])]
    print(
        f"{'trace':<22} {'calls':>7} {'construct':>10} {'decode':>8} {'ratio':>6} {'check':>7} {'ratio':>6} {'peak MiB':>9}"
    )
    for source in chosen:
        path = repeated(source, args.calls if source == main_trace else 1)
        try:
            times = args.times if source == main_trace else 1
            check(path, catalog)
            judged = best(lambda p=path: check(p, catalog), times)
            decoded = best(lambda p=path: decode(p, catalog), times)
            peak = megabytes()
            parsed = best(lambda p=path: through_construct(p, catalog), 1)
            calls = path.read_bytes().count(b'"k":"ioctl"')
        finally:
            path.unlink()
        print(
            f"{source.name.split('.')[0]:<22} {calls:>7} {parsed:>9.2f}s {decoded:>7.2f}s "
            f"{parsed / decoded:>5.1f}x {judged:>6.2f}s "
            f"{parsed / judged:>5.1f}x {peak:>9.0f}"
        )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
