"""On a real GPU: what the driver's checkpoint does to processes that share memory, and what ours does.

Run by cuinterpose_checkpoint_gpu.sh, which builds what it names: python3 cuinterpose_checkpoint_gpu.py WORKER SHIM.
--no-torch leaves torch out; --exports runs that part alone, in a minute.
Prints tables; writes all figures as JSON to $OUT/checkpoint.json if OUT is set. Exit status 1 if a row of ours is wrong.
Every program is idle while a checkpoint is taken. Multicast is never touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from cuinterpose import checkpoint, inventory, preflight
from cuinterpose.checkpoint_driver import DriverError, Library

WORKER, SHIM = sys.argv[1:3]
LIBCUDA = os.environ.get("LIBCUDA", "libcuda.so.1")
# A fake driver's memory is small: the same script runs there, with this in place of 1 GiB.
BIG = int(os.environ.get("BIG_GRANULES", "512"))
GIB = BIG * 2 / 1024
ANSWER_S = 60
LIMITS = checkpoint.Limits(quiesce=10, lock=10, driver=60, importing=20, patience=30)
FIRST, SECOND = 11, 77
BEGUN = time.monotonic()
figures: dict[str, object] = {}
wrong: list[str] = []


class Refused(Exception):
    """The program answered err."""


class Program:
    def __init__(self, where: Path, *, track: bool, device: int = 0, command: list[str] | None = None) -> None:
        environment = {**os.environ, "CUINTERPOSE_DIR": str(where)}
        if track:
            environment |= {"LD_PRELOAD": SHIM, "CUINTERPOSE_TRACK": "1"}
        self.process = subprocess.Popen(
            command or [WORKER], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self.process.pid
        if not command:
            self.do(f"init {device}")

    def do(self, command: str) -> str:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], ANSWER_S)[0]:
            raise Refused(f"{command}: no answer")
        word, _, rest = self.process.stdout.readline().rstrip("\n").partition(" ")
        if not word.startswith("ok"):
            raise Refused(f"{command}: {word} {rest}")
        return rest or word

    def share(self, granules: int = 1, slot: int = 0) -> int:
        for command in (
            "create {0} {1}",
            "reserve {0} {1}",
            "map {0} {0} 0 {1} 0",
            "access {0} 0 {1}",
            "fill {0} 0 {1} 11",
        ):
            self.do(command.format(slot, granules))
        return int(self.do(f"export {slot}"))

    def take_in(self, other: Program, fd: int, granules: int = 1, *, mapped: bool = True, slot: int = 0) -> None:
        own = self.do(f"take {other.pid} {fd}")
        self.do(f"import {slot} {own}")
        self.do(f"close {own}")
        self.do(f"reserve {slot} {granules * 2}")
        if mapped:
            self.do(f"map {slot} {slot} 0 {granules} 0")
            self.do(f"access {slot} 0 {granules}")

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                if pipe:
                    pipe.close()


def step(words: str) -> None:
    print(f"\n== {words} [{time.monotonic() - BEGUN:.0f} s]", flush=True)


def memory_used() -> str:
    """MiB of all GPUs, and of processes, as nvidia-smi has them."""
    answers = []
    for query in ("--query-gpu=memory.used", "--query-compute-apps=pid,used_memory"):
        try:
            done = subprocess.run(
                ["nvidia-smi", query, "--format=csv,noheader,nounits"],
                capture_output=True,
                text=True,
                timeout=20,
                check=False,
            )
            answers.append(" ".join(done.stdout.split()) or "none")
        except (OSError, subprocess.TimeoutExpired):
            answers.append("?")
    return f"GPU {answers[0]} MiB, processes: {answers[1]}"


def by_driver(programs: list[Program], driver: Library) -> str:
    """Lock and checkpoint of all, then restore and unlock of all: what the driver said, process by process."""
    said = {program.pid: [] for program in programs}

    def call(name: str, program: Program, *arguments: object) -> None:
        try:
            getattr(driver, name)(program.pid, *arguments)
            said[program.pid].append("0")
        except DriverError as error:
            said[program.pid].append(str(error.code))

    for program in programs:
        call("lock", program, 10.0)
    for program in programs:
        call("checkpoint", program)
    for program in programs:
        call("restore", program)
        call("unlock", program)
    return "; ".join(f"{'ABC'[i]} {' '.join(answers)}" for i, answers in enumerate(said.values()))


Setup = Callable[[list[Program]], None]
Verify = Callable[[list[Program]], None]


def pair(programs: list[Program]) -> None:
    programs[1].take_in(programs[0], programs[0].share())


def shared_again(programs: list[Program]) -> None:
    """The old contents, then A's new ones, then B's, each seen by the others."""
    for program in programs:
        program.do(f"check 0 0 1 {FIRST}")
    programs[0].do(f"fill 0 0 1 {SECOND}")
    for program in programs[1:]:
        program.do(f"check 0 0 1 {SECOND}")
    programs[-1].do("fill 0 0 1 5")
    programs[0].do("check 0 0 1 5")


def plain(programs: list[Program]) -> None:
    programs[0].share()


def contents(programs: list[Program]) -> None:
    programs[0].do(f"check 0 0 1 {FIRST}")


def never_mapped(programs: list[Program]) -> None:
    programs[1].take_in(programs[0], programs[0].share(), mapped=False)


def map_it_then(programs: list[Program]) -> None:
    programs[1].do("map 0 0 0 1 0")
    programs[1].do("access 0 0 1")
    shared_again(programs)


def only_mapped(programs: list[Program]) -> None:
    pair(programs)
    programs[1].do("release 0")


def only_held(programs: list[Program]) -> None:
    pair(programs)
    programs[1].do("unmap 0 0 1")


def mapped_twice(programs: list[Program]) -> None:
    pair(programs)
    programs[1].do("map 0 0 1 1 0")
    programs[1].do("access 0 1 1")


def seen_twice(programs: list[Program]) -> None:
    shared_again(programs)
    programs[1].do("check 0 1 1 5")


def creator_released(programs: list[Program]) -> None:
    pair(programs)
    programs[0].do("release 0")


def imported_twice(programs: list[Program]) -> None:
    fd = programs[0].share()
    programs[1].take_in(programs[0], fd)
    programs[1].take_in(programs[0], fd, slot=1)


def both_imports(programs: list[Program]) -> None:
    shared_again(programs)
    programs[1].do("check 1 0 1 5")


def three(programs: list[Program]) -> None:
    fd = programs[0].share()
    for program in programs[1:]:
        program.take_in(programs[0], fd)


def with_graph(programs: list[Program]) -> None:
    pair(programs)
    programs[1].do("create 2 2")
    programs[1].do("reserve 2 2")
    programs[1].do("map 2 2 0 2 0")
    programs[1].do("access 2 0 2")
    # the graph copies as much as the reservation holds: reserve one more granule's worth of the import
    programs[1].do("map 0 0 1 1 0")
    programs[1].do("access 0 1 1")
    programs[1].do("capture 0 2")


def replayed(programs: list[Program]) -> None:
    programs[0].do(f"fill 0 0 1 {SECOND}")
    programs[1].do("replay")
    programs[1].do(f"check 2 0 1 {SECOND}")
    programs[1].do(f"check 2 1 1 {SECOND}")


def crossed(programs: list[Program]) -> None:
    """Each imports from the other."""
    pair(programs)
    programs[0].take_in(programs[1], programs[1].share(slot=1), slot=1)


def both_ways(programs: list[Program]) -> None:
    shared_again(programs)
    programs[0].do(f"check 1 0 1 {FIRST}")
    programs[1].do("fill 1 0 1 9")
    programs[0].do("check 1 0 1 9")


ROWS: list[tuple[str, int, Setup, Verify]] = [
    ("one, exported", 1, plain, contents),
    ("two, B has it mapped", 2, pair, shared_again),
    ("two, B imported, never mapped", 2, never_mapped, map_it_then),
    ("two, B mapped, released the handle", 2, only_mapped, shared_again),
    ("two, B unmapped, kept the handle", 2, only_held, map_it_then),
    ("two, B mapped it twice", 2, mapped_twice, seen_twice),
    ("two, B imported it twice", 2, imported_twice, both_imports),
    ("two, A released its handle, mapped", 2, creator_released, shared_again),
    ("two, each imports from the other", 2, crossed, both_ways),
    ("three, B and C have it mapped", 3, three, shared_again),
    ("two, B's graph reads it", 2, with_graph, replayed),
]


@contextlib.contextmanager
def scene(count: int, *, track: bool, devices: list[int] | None = None):  # type: ignore[no-untyped-def]
    with tempfile.TemporaryDirectory(prefix="cui-") as name:
        os.chmod(name, 0o700)
        programs = []
        try:
            for i in range(count):
                programs.append(Program(Path(name), track=track, device=devices[i] if devices else 0))
            yield Path(name), programs
        finally:
            for program in programs:
                program.end()


def outcome_of(verify: Verify, programs: list[Program]) -> str:
    try:
        verify(programs)
        return "kept"
    except (Refused, BrokenPipeError) as error:
        return f"lost ({error})"


def table(driver: Library) -> None:
    step("the driver alone beside ours: lock, checkpoint, restore, unlock of each process")
    rows = []
    for words, count, prepare, verify in ROWS:
        try:
            with scene(count, track=False) as (_, programs):
                prepare(programs)
                alone = by_driver(programs, driver)
                if "801" in alone or " 1 401" in alone:
                    alone += ": lost"
                else:
                    alone += ": " + outcome_of(verify, programs)
        except Exception as error:
            alone = f"? {error}"
        ours = ""
        for order in ("A first", "A last"):
            with scene(count, track=True) as (where, programs):
                try:
                    prepare(programs)
                    before = [program.do("address 0") for program in programs]
                    pids = [program.pid for program in programs]
                    # restore too goes by the directory's order; checkpoint goes by that of pids in the group
                    report = checkpoint.cycle(where, pids, Reordered(driver, pids, order), LIMITS)
                    result = report.outcome if report.outcome != "done" else outcome_of(verify, programs)
                    if before != [program.do("address 0") for program in programs]:
                        result += ", address changed"
                    if report.outcome != "done":
                        result += ": " + "; ".join(report.lines())
                except Exception as error:
                    result = f"? {error}"
                    traceback.print_exc()
            if result != "kept":
                wrong.append(f"{words}, {order}: {result}")
            ours += f"{order}: {result}; "
        print(f"{words:38} | {alone:50} | {ours.strip('; ')}", flush=True)
        rows.append((words, alone, ours.strip("; ")))
    figures["table"] = rows


class Reordered:
    """The same driver; with "A last" the first process's calls are made after all others' of the same step."""

    def __init__(self, driver: Library, pids: list[int], order: str) -> None:
        self._driver = driver
        self.name = driver.name
        self._first = pids[0] if order == "A last" and len(pids) > 1 else None
        self._last = pids[-1]
        self.state = driver.state
        self.lock = driver.lock
        self._held: list[str] = []

    def _do(self, name: str, pid: int) -> None:
        if pid == self._first and name == "checkpoint":
            self._held.append(name)
            return
        getattr(self._driver, name)(pid)
        if pid == self._last and self._held:
            getattr(self._driver, self._held.pop())(self._first)

    def checkpoint(self, pid: int) -> None:
        self._do("checkpoint", pid)

    def restore(self, pid: int) -> None:
        self._do("restore", pid)

    def unlock(self, pid: int) -> None:
        self._do("unlock", pid)


def obstacles(driver: Library) -> None:
    step("obstacles: what preflight says, and what the driver alone does")
    rows: list[tuple[str, str]] = []

    def judge(where: Path, pids: list[int]) -> str:
        answer = preflight.judge(inventory.collect(where, pids), driver)
        for line in answer.lines():
            print("   ", line)
        return f"exit {answer.status}: {', '.join(item.code for item in answer.obstacles)}"

    def case(words: str, expected: str, function: Callable[[], str]) -> None:
        print(words, flush=True)
        try:
            said = function()
        except Exception as error:
            said = f"? {error}"
            traceback.print_exc()
        rows.append((words, said))
        if expected not in said:
            wrong.append(f"{words}: {said}, not {expected}")

    def importer_outside() -> str:
        with scene(2, track=True) as (where, programs):
            pair(programs)
            return judge(where, [programs[0].pid])

    def creator_outside() -> str:
        with scene(2, track=True) as (where, programs):
            pair(programs)
            return judge(where, [programs[1].pid])

    def foreign() -> str:
        with scene(1, track=True) as (where, programs), scene(1, track=False) as (_, others):
            programs[0].take_in(others[0], others[0].share())
            return judge(where, [programs[0].pid])

    def ipc() -> str:
        with scene(2, track=True) as (where, programs):
            programs[0].do("alloc 3 1")
            programs[1].do(f"ipcopen 3 {programs[0].do('ipcget 3')}")
            return judge(where, [program.pid for program in programs])

    def untracked() -> str:
        with scene(1, track=True) as (where, programs), scene(1, track=False) as (_, others):
            programs[0].share()
            return judge(where, [programs[0].pid, others[0].pid])

    def capturing() -> str:
        with scene(2, track=True) as (where, programs):
            pair(programs)
            programs[1].do("begincapture")
            said = judge(where, [program.pid for program in programs])
            report = checkpoint.cycle(where, None, driver, LIMITS, accept=["capture"])
            # the capture must not have been spoilt by our waiting
            return f"{said}; cycle: {report.outcome}; {programs[1].do('endcapture')}"

    case("an importer that is not in the group", "exit 1: importer-outside", importer_outside)
    case("a creator that is not in the group", "exit 1: creator-outside", creator_outside)
    case("a descriptor of the driver's own", "exit 1: foreign", foreign)
    case("legacy IPC memory", "ipc-memory-opened", ipc)
    case("a process without the shim", "exit 2: untracked", untracked)
    case("a capture in progress", "cycle: put back; ok", capturing)

    def event_alone() -> str:
        """Does B still see A's record of the event: 600 while A's work lasts, 0 after it?"""
        with scene(2, track=False) as (_, programs):
            programs[1].do(f"eventopen 0 {programs[0].do('eventget 0')}")

            def seen() -> str:
                programs[0].do("record")
                during = programs[1].do("query")
                programs[0].do("sync")
                return f"{during} then {programs[1].do('query')}"

            before = seen()
            said = by_driver(programs, driver)
            return f"{said}; query before: {before}; after: {seen()}"

    case("an event of another process, the driver alone", "A 0 0 0 0", event_alone)
    figures["obstacles"] = rows


def questions() -> None:
    step("what the driver answers to maps of a part")
    with scene(1, track=False) as (_, programs):
        program = programs[0]
        program.do("create 0 2")
        program.do("reserve 0 4")
        answers = {}
        for words, command in {
            "the first half": "map 0 0 0 1 0",
            "the second half, by offset": "map 0 0 1 1 1",
            "all of it": "map 0 0 2 2 0",
            "access of a half of one map": "access 0 2 1",
            "access of all": "access 0 2 2",
            "unmap of a half of one map": "unmap 0 2 1",
        }.items():
            try:
                answers[words] = program.do(command)
            except Refused as error:
                answers[words] = str(error)
        for words, said in answers.items():
            print(f"  {words:30} {said}")
        figures["parts"] = answers


def exports(driver: Library) -> None:
    """By the program's own thread and handle, by one that a mapping lends, and by the tracker's thread for an importer.

    What the driver alone refuses cannot be kept, and preflight must say so; nothing else may be lost or refused.
    """
    step("exports after a restore, by size")
    rows = []
    for granules in (1, 16, 128, 255, 256, 257, BIG):
        with scene(1, track=False) as (_, programs):
            programs[0].share(granules)
            said = by_driver(programs, driver)
            answers = []
            for command in ("export 0", "retain 9 0", "export 9", "export 0"):
                try:
                    programs[0].do(command)
                    answers.append(f"{command}: 0")
                except Refused as error:
                    answers.append(str(error))
            programs[0].do(f"check 0 0 {granules} {FIRST}")
        with scene(2, track=True) as (where, programs):
            programs[1].take_in(programs[0], programs[0].share(granules), granules)
            answer = preflight.judge(inventory.collect(where), driver)
            report = checkpoint.cycle(where, None, driver, LIMITS, accept=["large-shared"])
            ours = f"{report.outcome} {' '.join(report.lost)}"
        rows.append((granules * 2, said, answers, answer.verdict, ours))
        print(
            f"  {granules * 2:5} MiB: {said}; {'; '.join(answers)}; preflight: {answer.verdict}; ours: {ours}",
            flush=True,
        )
        exported = all(said.endswith(": 0") for said in answers)
        if (answer.verdict, report.outcome) != (("ready", "done") if exported else ("refused", "lost")):
            wrong.append(f"export of {granules * 2} MiB after a restore: preflight: {answer.verdict}; {ours}")
    figures["exports"] = rows


def times(driver: Library) -> None:
    if BIG * 2 << 20 >= inventory.LARGE_SHARED and count_gpus() > 1:
        step(f"{GIB:g} GiB shared by two processes: not run, the driver of several GPUs does not share it again")
        return
    step(f"{GIB:g} GiB shared by two processes: a cycle beside the driver's own checkpoint of the two without sharing")
    own, ours, ours_steps, between = [], [], [], []
    for _ in range(3):
        with scene(2, track=False) as (_, programs):
            programs[0].share(BIG)
            begun = time.monotonic()
            said = by_driver(programs, driver)
            own.append(time.monotonic() - begun)
            if said != "A 0 0 0 0; B 0 0 0 0":
                wrong.append(f"times: {said}")
        with scene(2, track=True) as (where, programs):
            programs[1].take_in(programs[0], programs[0].share(BIG), BIG)
            before = memory_used()
            smi: list[str] = []
            spent = [0.0]

            def look(smi: list[str] = smi, spent: list[float] = spent) -> None:
                begun_at = time.monotonic()
                smi.append(memory_used())
                spent[0] = time.monotonic() - begun_at

            report = checkpoint.cycle(where, None, driver, LIMITS, between=look)
            ours.append(report.seconds - spent[0])
            between.append((before, *smi))
            if report.outcome != "done" or (said := outcome_of(shared_again, programs)) != "kept":
                wrong.append(f"times: {report.lines(verbose=True)} {said}")
            sums: dict[str, float] = {}
            for item in report.steps:
                sums[item.name] = sums.get(item.name, 0.0) + item.seconds
            ours_steps.append(sums)
    print(f"  the driver's own: {' '.join(f'{value:.3f}' for value in own)} s")
    print(f"  ours:             {' '.join(f'{value:.3f}' for value in ours)} s")
    ratio = statistics.median(ours) / statistics.median(own)
    print(f"  medians: {statistics.median(own):.3f} and {statistics.median(ours):.3f} s, ratio {ratio:.3f} (limit 1.2)")
    for name in ours_steps[0]:
        print(f"    {name:12} {' '.join(f'{sums.get(name, 0) * 1000:9.1f}' for sums in ours_steps)} ms, all processes")
    for before, *during in between:
        print(f"  before: {before}\n  between: {'; '.join(during)}")
    if ratio > 1.2:
        wrong.append(f"a cycle takes {ratio:.2f} times the driver's own")
    figures["times"] = {"driver": own, "ours": ours, "steps": ours_steps, "memory": between}


def overhead() -> None:
    step("calls, ns best of many: without the shim, with it, and tracked; in turns")
    kinds: dict[str, dict[str, str]] = {
        "plain": {},
        "shim": {"LD_PRELOAD": SHIM},
        "tracked": {"LD_PRELOAD": SHIM, "CUINTERPOSE_TRACK": "1"},
    }
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="cui-") as where:
        os.chmod(where, 0o700)
        for _ in range(3):
            for kind, more in kinds.items():
                done = subprocess.run(
                    [WORKER],
                    input="init 0\nmeasure\n",
                    env={**os.environ, **more, "CUINTERPOSE_DIR": where},
                    capture_output=True,
                    text=True,
                    timeout=120,
                    check=False,
                )
                for field in done.stdout.split("\n")[1].split("\t")[1:]:
                    name, _, value = field.partition("=")
                    found.setdefault(name, {}).setdefault(kind, []).append(float(value))
    for name, by_kind in found.items():
        best = {kind: min(values) for kind, values in by_kind.items()}
        spread = max(by_kind["plain"]) - best["plain"]
        print(
            f"  {name:36} plain {best['plain']:9.0f}  shim {best['shim'] - best['plain']:+7.0f}  "
            f"tracked {best['tracked'] - best['plain']:+7.0f}  spread of plain {spread:.0f}"
        )
    figures["overhead"] = found


TORCH = """
import os, sys, time
import torch, torch.multiprocessing as mp

def child(inbox, outbox):
    tensor = inbox.get()
    outbox.put(("got", os.getpid(), float(tensor.double().sum())))
    while True:
        word = inbox.get()
        if word == "sum":
            outbox.put(("sum", float(tensor.double().sum())))
        elif word == "add":
            tensor.add_(1)
            torch.cuda.synchronize()
            outbox.put(("added",))
        else:
            return

if __name__ == "__main__":
    mp.set_start_method("spawn")
    inbox, outbox = mp.Queue(), mp.Queue()
    tensor = torch.arange(1 << 20, dtype=torch.float32, device="cuda")
    expected = float(tensor.double().sum())
    process = mp.Process(target=child, args=(inbox, outbox))
    process.start()
    inbox.put(tensor)
    word, pid, total = outbox.get(timeout=60)
    print("ok", pid, total == expected, flush=True)
    for line in sys.stdin:
        if line.strip() == "check":
            inbox.put("sum")
            same = outbox.get(timeout=60)[1] == float(tensor.double().sum())
            tensor.add_(1)
            torch.cuda.synchronize()
            inbox.put("sum")
            seen = outbox.get(timeout=60)[1] == float(tensor.double().sum())
            inbox.put("add")
            outbox.get(timeout=60)
            back = float(tensor.double().sum()) == expected + 2 * tensor.numel()
            print("ok", same, seen, back, flush=True)
        else:
            inbox.put("end")
            process.join(20)
            print("ok", flush=True)
            break
"""

START = """
import time
begun = time.perf_counter()
import torch
a = torch.randn(1024, 1024, device="cuda"); b = a @ a
torch.cuda.synchronize()
started = time.perf_counter() - begun
best = 1e9
for _ in range(20):
    begun = time.perf_counter()
    for _ in range(2000):
        a.add_(1)
    torch.cuda.synchronize()
    best = min(best, time.perf_counter() - begun)
grown = 1e9
for _ in range(5):
    begun = time.perf_counter()
    big = [torch.empty(32 << 20, dtype=torch.uint8, device="cuda") for _ in range(16)]
    torch.cuda.synchronize()
    grown = min(grown, time.perf_counter() - begun)
    del big
    torch.cuda.empty_cache()
print(f"{started:.3f} {best / 2000 * 1e6:.3f} {grown * 1e3:.3f}")
"""


def torch_part(driver: Library, where: Path) -> None:
    step("torch, expandable segments, a tensor passed between two processes")
    (where / "passing.py").write_text(TORCH)
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    program = Program(where, track=True, command=[sys.executable, str(where / "passing.py")])
    try:
        assert program.process.stdout
        if not select.select([program.process.stdout], [], [], 120)[0]:
            raise Refused("torch did not start")
        first = program.process.stdout.readline().split()
        print("  passed:", *first)
        pids = [program.pid, int(first[1])]
        group = inventory.collect(where, pids)
        for line in inventory.lines(group):
            print("   ", line)
        answer = preflight.judge(group, driver)
        for line in answer.lines():
            print("   ", line)
        codes = sorted(
            {item.code for item in answer.obstacles} & {"ipc-event-given", "ipc-event-opened", "unread", "bypass"}
        )
        report = checkpoint.cycle(where, pids, driver, LIMITS, accept=codes)
        for line in report.lines(verbose=report.outcome != "done"):
            print("   ", line)
        said = program.do("check")
        print("  afterwards (same sum, A's write seen by B, B's by A):", said)
        figures["torch"] = {"accepted": codes, "outcome": report.outcome, "afterwards": said}
        if report.outcome != "done" or said != "True True True":
            wrong.append(f"torch: {report.outcome}, {said}")
        program.do("end")
    except Exception as error:
        wrong.append(f"torch: {error}")
        traceback.print_exc()
    finally:
        program.end()


def torch_times(where: Path) -> None:
    step("torch: seconds to the first result, us per small kernel, ms for 16 new segments; in turns")
    (where / "start.py").write_text(START)
    found: dict[str, list[list[float]]] = {}
    for _ in range(2):
        for kind, more in {"plain": {}, "tracked": {"LD_PRELOAD": SHIM, "CUINTERPOSE_TRACK": "1"}}.items():
            done = subprocess.run(
                [sys.executable, str(where / "start.py")],
                env={**os.environ, **more, "CUINTERPOSE_DIR": str(where)},
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            if done.returncode:
                wrong.append(f"torch start, {kind}: {done.stderr[-300:]}")
                return
            found.setdefault(kind, []).append([float(value) for value in done.stdout.split()])
    for kind, runs in found.items():
        print(
            f"  {kind:8} " + "  ".join("/".join(f"{value:g}" for value in column) for column in zip(*runs, strict=True))
        )
    figures["torch_times"] = found


def two_gpus(driver: Library) -> None:
    step("two GPUs: A creates on device 0, B maps it on device 1")
    with scene(2, track=True, devices=[0, 1]) as (where, programs):
        pair(programs)
        report = checkpoint.cycle(where, None, driver, LIMITS)
        said = outcome_of(shared_again, programs)
        print(f"  {report.outcome}, {said}")
        if report.outcome != "done" or said != "kept":
            wrong.append(f"two GPUs: {report.lines(verbose=True)} {said}")


def count_gpus() -> int:
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False)
        return done.stdout.count("UUID: GPU-")
    except OSError:
        return 1


def main() -> int:
    driver = Library(LIBCUDA)
    parts: list[Callable[[], None]] = [
        lambda: table(driver),
        lambda: obstacles(driver),
        questions,
        lambda: exports(driver),
        lambda: times(driver),
        overhead,
    ]
    if count_gpus() > 1:
        parts.insert(1, lambda: two_gpus(driver))
    if "--exports" in sys.argv:
        parts = [lambda: exports(driver)]
    with tempfile.TemporaryDirectory(prefix="cui-") as name:
        os.chmod(name, 0o700)
        if "--no-torch" not in sys.argv and "--exports" not in sys.argv:
            parts += [lambda: torch_part(driver, Path(name)), lambda: torch_times(Path(name))]
        for part in parts:
            try:
                part()
            except Exception as error:
                wrong.append(f"a part broke off: {error}")
                traceback.print_exc()
    step("done: " + ("all as it should be" if not wrong else "NOT as it should be:"))
    for line in wrong:
        print(" ", line)
    if out := os.environ.get("OUT"):
        Path(out, "checkpoint.json").write_text(json.dumps({"figures": figures, "wrong": wrong}, indent=1))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
