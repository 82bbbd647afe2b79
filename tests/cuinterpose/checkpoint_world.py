"""Tracked programs on a driver whose checkpoints behave as measured, and the fake driver's own functions."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cuinterpose import checkpoint, checkpoint_driver, inventory
from cuinterpose.checkpoint_driver import Library, State
from cuinterpose.inventory import Holdings
from tests.cuinterpose.shim_world import NATIVE, Toolchain, World

GRANULE = 1 << 16
# Short, so that a fault costs a test little; nothing is asserted about time.
LIMITS = checkpoint.Limits(quiesce=5, lock=5, driver=20, importing=5, patience=20)


class CudaError(Exception):
    def __init__(self, command: str, code: int) -> None:
        super().__init__(f"{command}: {code}")
        self.code = code


@dataclass
class Worker:
    """A program that takes commands (native/checkpoint_worker.c)."""

    process: subprocess.Popen[str]

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, command: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def answer(self, command: str = "") -> str:
        assert self.process.stdout
        line = self.process.stdout.readline()
        word, _, rest = line.strip().partition(" ")
        if word == "ok":
            return rest
        if word == "err":
            raise CudaError(command, int(rest) if rest.lstrip("-").isdigit() else -1)
        raise AssertionError(f"{command}: the worker said {line!r}, exit {self.process.poll()}")

    def do(self, command: str) -> str:
        """The words after ok. CudaError with the code of err."""
        self.send(command)
        return self.answer(command)

    def number(self, command: str) -> int:
        return int(self.do(command).split()[0])

    def fails(self, command: str) -> int:
        """The code of a command that must fail."""
        try:
            said = self.do(command)
        except CudaError as error:
            return error.code
        raise AssertionError(f"{command}: ok {said}")

    def share(self, slot: int = 0, granules: int = 2, byte: int = 0x5A) -> int:
        """Creates, maps and fills memory under slot; its exported descriptor."""
        self.do(f"create {slot} {granules} 1")
        self.do(f"reserve {slot} {granules}")
        self.do(f"map {slot} {slot} 0 {granules} 0")
        self.do(f"access {slot} 0 {granules} 3 0")
        self.do(f"write {slot} 0 {granules} {byte}")
        return self.number(f"export {slot}")

    def take_in(self, other: Worker, fd: int, slot: int = 0, granules: int = 2) -> None:
        """Imports another's descriptor under slot and maps it."""
        own = self.number(f"take {other.pid} {fd}")
        self.do(f"import {slot} {own}")
        self.do(f"close {own}")
        self.do(f"reserve {slot} {granules}")
        self.do(f"map {slot} {slot} 0 {granules} 0")
        self.do(f"access {slot} 0 {granules} 3 0")

    def descriptors(self, expected: int | None = None) -> int:
        """How many are open, once that is expected or stays: threads of the tracker close theirs a little later."""
        deadline, same, last = time.monotonic() + 10, 0, -1
        while time.monotonic() < deadline:
            count = self.number("descriptors")
            same = same + 1 if count == last else 0
            last = count
            if count == expected or (expected is None and same == 10):
                break
            time.sleep(0.01)
        return last

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@dataclass
class Stage:
    """A build of everything, and a directory each for endpoints and for the fake driver's files."""

    world: World
    program: Path
    driver: Path
    where: Path
    fake: Path
    workers: list[Worker] = field(default_factory=list)
    sanitizer: tuple[str, ...] = ()

    def environment(self, *, track: bool = True, shim: bool = True, **more: str) -> dict[str, str]:
        preload = [*self.world.before, *([str(self.world.shim)] if shim else [])]
        return {
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": str(self.driver.parent),
            "FAKE_CUDA": str(self.fake),
            "CUINTERPOSE_DIR": str(self.where),
            "ASAN_OPTIONS": "detect_leaks=0",
            "LD_PRELOAD": ":".join(preload),
            **({"CUINTERPOSE_TRACK": "1"} if track else {}),
            **more,
        }

    def start(self, *, init: bool = True, pass_fds: tuple[int, ...] = (), **options: object) -> Worker:
        worker = Worker(
            subprocess.Popen(
                [self.program],
                env=self.environment(**options),  # type: ignore[arg-type]
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                pass_fds=pass_fds,
            )
        )
        self.workers.append(worker)
        if init:
            worker.do("init")
        return worker

    def end(self) -> list[int]:
        """Ends every worker by its own exit; the statuses."""
        statuses = []
        for worker in self.workers:
            with contextlib.suppress(BrokenPipeError):
                assert worker.process.stdin
                worker.process.stdin.close()
            try:
                statuses.append(worker.process.wait(20))
            except subprocess.TimeoutExpired:
                worker.kill()
                statuses.append(-1)
            assert worker.process.stdout
            worker.process.stdout.close()
        self.workers.clear()
        return statuses

    def library(self) -> Library:
        os.environ["FAKE_CUDA"] = str(self.fake)
        return Library(str(self.driver))

    def holdings(self, worker: Worker) -> Holdings:
        (member,) = inventory.collect(self.where, [worker.pid]).members
        assert member.holdings, member.why
        return member.holdings

    def cycle(self, *workers: Worker, **options: object) -> checkpoint.Report:
        pids = [worker.pid for worker in workers or self.workers]
        return checkpoint.cycle(self.where, pids, self.library(), LIMITS, **options)  # type: ignore[arg-type]

    def states(self) -> list[State]:
        return [self.library().state(worker.pid) for worker in self.workers]


def parts(root: Path) -> tuple[Path, Path]:
    """(the worker, the fake driver)"""
    return root / "fake" / "worker", root / "fake" / "libcuda.so.1"


def build_parts(root: Path, tools: Toolchain, worker_tools: Toolchain | None = None) -> None:
    program, driver = parts(root)
    tools.shared(driver, [NATIVE / "checkpoint_driver.c"], "-Wl,-soname,libcuda.so.1,-Bsymbolic", "-lpthread")
    (worker_tools or tools).compile(program, [NATIVE / "checkpoint_worker.c"], "-ldl", "-lpthread")


@contextlib.contextmanager
def stage(world: World, program: Path, driver: Path, root: Path) -> Iterator[Stage]:
    where, fake = root / "endpoints", root / "gpu"
    where.mkdir(mode=0o700)
    fake.mkdir()
    made = Stage(world, program, driver, where, fake)
    try:
        yield made
    finally:
        for worker in made.workers:
            if worker.process.poll() is None:
                worker.kill()
            for pipe in (worker.process.stdin, worker.process.stdout):
                with contextlib.suppress(OSError):
                    assert pipe
                    pipe.close()


__all__ = ["LIMITS", "CudaError", "Stage", "Worker", "build_parts", "checkpoint_driver", "parts", "stage"]
