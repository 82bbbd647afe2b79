"""What a decision and a whole ioctl cost, as ratios within one run: python benchmarks/policy.py [--rounds N] [--json FILE].

Cases of one figure run in turn, round after round, and the best of each counts. The yardsticks are what any proxy written in Python
must do: unpack the struct, or look a number up and unpack a header. Exit status 1 if a figure is above its limit.
"""

from __future__ import annotations

import argparse
import gc
import json
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nvproxy_model import Buffer, File, Files, Policy, Session
from nvproxy_model.session.objects import Graph
from nvproxy_model.structs.cl90cd import NV_EVENT_BUFFER_ALLOC_PARAMETERS
from nvproxy_model.testing import Memory

ROOT = Path(__file__).resolve().parents[1]
VERSION, CAPS = "580.126.20", "compute,utility,profiling"
SIMPLE = 0x20800301
"""NV2080_CTRL_CMD_EVENT_SET_NOTIFICATION: admitted, and nothing in it is translated."""
UNKNOWN = 0x20800BAD & ~0x8000
CLIENT = 0xC1D00001
OBJECTS = (10, 1_000, 100_000)
LIMITS = {
    "event buffer: decide_alloc / struct.unpack of its 72 bytes": 6.0,
    "allowed number: decide_control / struct.unpack of 72 bytes": 1.5,
    "unknown number: decide_control / struct.unpack of 72 bytes": 1.5,
    "allowed control: decide_control / dict look-up and unpack_from of the header": 1.5,
    "simple control: Session.ioctl less the host / dict look-up and unpack_from": 20.0,
    "policy: all tables, warm, ms": 10.0,
    "decide_control: newest release's rows / oldest release's rows": 1.3,
    "Session.ioctl: 100,000 objects / 10 objects": 1.3,
    "free: each of 100,000 objects / each of 1,000": 2.0,
}


def best(cases: Mapping[str, Callable[[int], None]], rounds: int, calls: int) -> dict[str, float]:
    """Nanoseconds a call of each case: the best of ``rounds``, the cases taking turns."""
    found = dict.fromkeys(cases, float("inf"))
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, case in cases.items():
                start = time.perf_counter_ns()
                case(calls)
                found[name] = min(found[name], (time.perf_counter_ns() - start) / calls)
    finally:
        gc.enable()
    return found


def repeat(function: Callable[..., Any], *arguments: Any) -> Callable[[int], None]:
    """A case that calls a function with the same arguments."""

    def case(calls: int) -> None:
        for _ in range(calls):
            function(*arguments)

    return case


class NullHost:
    """The cheapest host there can be: it answers NV_OK and writes nothing."""

    def ioctl(self, host_fd: int, request: int, arg: Buffer | None) -> int:
        return 0


def event_buffer() -> bytes:
    fields = NV_EVENT_BUFFER_ALLOC_PARAMETERS.parse(bytes(72))
    fields.update(
        {
            "recordSize": 32,
            "recordCount": 16384,
            "notificationHandle": 7,
            "hBufferHeader": 6,
            "hRecordBuffer": 7,
            "hVardataBuffer": 8,
        }
    )
    return bytes(NV_EVENT_BUFFER_ALLOC_PARAMETERS.build(fields))


def decisions(rounds: int) -> dict[str, float]:
    policy = Policy.for_driver(VERSION, CAPS)
    oldest = Policy.for_driver("535.104.05", CAPS, allow_unsupported=True)
    newest = Policy.for_driver("latest", CAPS)
    fds = Files({7: File("frontend", 1042)})
    data, params = event_buffer(), bytes(16)
    unpack = struct.Struct("<QQIIQIIQIIIIII").unpack
    header = bytearray(struct.pack("<IIIIQII", CLIENT, CLIENT, SIMPLE, 0, 0x2000, 16, 0))
    unpack_from = struct.Struct("<IIIIQII").unpack_from
    table = dict(policy.control)
    policy.decide_control(UNKNOWN, params, fds)

    def look_up(calls: int) -> None:
        for _ in range(calls):
            table[SIMPLE]
            unpack_from(header)

    found = best(
        {
            "unpack": repeat(unpack, data),
            "look-up": look_up,
            "event": repeat(policy.decide_alloc, 0x90CD, data, fds),
            "allowed": repeat(policy.decide_control, SIMPLE, params, fds),
            "unknown": repeat(policy.decide_control, UNKNOWN, params, fds),
            "oldest": repeat(oldest.decide_control, SIMPLE, params, fds),
            "newest": repeat(newest.decide_control, SIMPLE, params, fds),
        },
        rounds,
        1_000,
    )
    print(f"yardsticks: struct.unpack {found['unpack']:.0f} ns, look-up and unpack_from {found['look-up']:.0f} ns")
    return {
        "event buffer: decide_alloc / struct.unpack of its 72 bytes": found["event"] / found["unpack"],
        "allowed number: decide_control / struct.unpack of 72 bytes": found["allowed"] / found["unpack"],
        "unknown number: decide_control / struct.unpack of 72 bytes": found["unknown"] / found["unpack"],
        "allowed control: decide_control / dict look-up and unpack_from of the header": found["allowed"]
        / found["look-up"],
        "decide_control: newest release's rows / oldest release's rows": found["newest"] / found["oldest"],
    }


def session(objects: int) -> Session:
    """A session with one client and so many objects below it, and a simple control ready at 0x1000."""
    memory = Memory(0, 0x4000)
    held = Session(Policy.for_driver(VERSION, CAPS), memory, Files({3: File("frontend", 1042)}), NullHost())
    held.graph.add_client(CLIENT, 0x41, held.fds.get(3))
    for handle in range(1, objects):
        held.graph.add(CLIENT, handle, 0x2080, CLIENT)
    memory.write(0x1000, struct.pack("<IIIIQII", CLIENT, 1, SIMPLE, 0, 0x2000, 16, 0))
    assert held.ioctl(3, 0xC020462A, 0x1000).errno == 0
    return held


def sessions(rounds: int) -> dict[str, float]:
    held = {count: session(count) for count in OBJECTS}
    policy = held[10].policy
    table, header = dict(policy.control), bytearray(32)
    unpack_from = struct.Struct("<IIIIQII").unpack_from
    host, arg = NullHost(), Buffer(bytearray(32))

    def look_up(calls: int) -> None:
        for _ in range(calls):
            table[SIMPLE]
            unpack_from(header)

    cases = {f"{count}": repeat(one.ioctl, 3, 0xC020462A, 0x1000) for count, one in held.items()}
    found = best({**cases, "look-up": look_up, "host": repeat(host.ioctl, 1042, 0xC020462A, arg)}, rounds, 200)
    print(f"Session.ioctl {found['10']:.0f} ns, of which the host {found['host']:.0f} ns")
    print("Session.ioctl by objects:", ", ".join(f"{count:,}: {found[str(count)]:.0f} ns" for count in OBJECTS))
    own = found["10"] - found["host"]
    return {
        "simple control: Session.ioctl less the host / dict look-up and unpack_from": own / found["look-up"],
        "Session.ioctl: 100,000 objects / 10 objects": found["100000"] / found["10"],
    }


def frees(rounds: int) -> dict[str, float]:
    """Nanoseconds an object of freeing a parent with so many below it, in chains of ten."""
    each = dict.fromkeys(OBJECTS[1:], float("inf"))
    for _ in range(max(rounds // 60, 2)):
        for count in each:
            graph = Graph()
            graph.add_client(CLIENT, 0x41, None)
            graph.add(CLIENT, 1, 0x80, CLIENT)
            for handle in range(2, count + 2):
                graph.add(CLIENT, handle, 0x2080, 1 if handle % 10 == 2 else handle - 1, [1])
            gc.collect()
            gc.disable()
            start = time.perf_counter_ns()
            gone = graph.free(CLIENT, 1)
            each[count] = min(each[count], (time.perf_counter_ns() - start) / len(gone))
            gc.enable()
            assert len(gone) == count + 1
    print("free, an object of:", ", ".join(f"{count:,}: {nanoseconds:.0f} ns" for count, nanoseconds in each.items()))
    return {"free: each of 100,000 objects / each of 1,000": each[100_000] / each[1_000]}


def policies(rounds: int) -> dict[str, float]:
    Policy.for_driver(VERSION, CAPS)
    found = best({"policy": repeat(Policy.for_driver, VERSION, CAPS)}, rounds // 5 + 1, 2)
    return {"policy: all tables, warm, ms": found["policy"] / 1e6}


FIRST = """
import time
start = time.perf_counter()
from nvproxy_model import Policy
imported = time.perf_counter()
Policy.for_driver("580.126.20").decide_control(0x20800301, bytes(16), {})
print(1e3 * (imported - start), 1e3 * (time.perf_counter() - imported))
"""


def first(rounds: int) -> None:
    """A fresh interpreter: the import, and building a policy and deciding once."""
    runs = []
    for _ in range(rounds):
        done = subprocess.run([sys.executable, "-c", FIRST], cwd=ROOT, capture_output=True, text=True, check=True)
        runs.append(tuple(map(float, done.stdout.split())))
    imported, decided = min(run[0] for run in runs), min(run[1] for run in runs)
    print(f"fresh interpreter: import {imported:.0f} ms, policy and first decision {decided:.0f} ms")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    figures = {**decisions(args.rounds), **sessions(args.rounds), **frees(args.rounds), **policies(args.rounds)}
    first(min(args.rounds, 7))
    above = {name for name, value in figures.items() if value > LIMITS[name]}
    for name, value in figures.items():
        print(f"{value:8.2f}  limit {LIMITS[name]:5.1f}  {'ABOVE  ' if name in above else ''}{name}")
    if args.json is not None:
        args.json.write_text(json.dumps({"figures": figures, "limits": LIMITS}, indent=1) + "\n")
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
