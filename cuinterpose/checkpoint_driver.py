"""What checkpoints one process: the driver's own functions, or the cuda-checkpoint command where only that is there.

Both act on a process by its pid, and the caller needs no CUDA context. Without privilege they want ptrace access to it.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
from collections.abc import Callable
from enum import IntEnum
from typing import Protocol

FUNCTIONS = ("GetState", "Lock", "Checkpoint", "Restore", "Unlock")
"""The driver's functions, without cuCheckpointProcess."""


class State(IntEnum):
    """CUprocessState of cuda.h: RUNNING, LOCKED (calls block), CHECKPOINTED (nothing is left on the GPU), FAILED."""

    RUNNING = 0
    LOCKED = 1
    CHECKPOINTED = 2
    FAILED = 3


MEANINGS = {
    1: "INVALID_VALUE: it has legacy IPC memory open",
    3: "NOT_INITIALIZED: the process does not use CUDA",
    100: "NO_DEVICE",
    304: "OPERATING_SYSTEM: no such process, or no permission to trace it",
    401: "ILLEGAL_STATE: it is not in the state that this step begins in",
    600: "NOT_READY: work on the device did not end in time",
    801: "NOT_SUPPORTED: it holds memory of another process",
}
"""What each CUresult means here, from a real driver."""
NOT_INITIALIZED, OPERATING_SYSTEM, NOT_READY = 3, 304, 600


class DriverError(Exception):
    """The driver refused. code is its CUresult, or -1 when there is none: words then say what happened."""

    def __init__(self, what: str, code: int, words: str = "") -> None:
        super().__init__(
            f"{what}: {words or MEANINGS.get(code, '') or 'refused'}" + (f" ({code})" if code >= 0 else "")
        )
        self.code = code


class NoDriver(Exception):
    """Nothing here can checkpoint a process; the message says what was looked for."""


class Checkpointer(Protocol):
    """One process, by pid. DriverError if the driver refuses. Times in seconds."""

    name: str

    def state(self, pid: int) -> State:
        """Where the driver has the process. NOT_INITIALIZED (3): it does not use CUDA."""
        ...

    def lock(self, pid: int, timeout: float) -> None:
        """From RUNNING to LOCKED once its work on the device is done; NOT_READY (600) if that takes longer than timeout."""
        ...

    def checkpoint(self, pid: int) -> None:
        """From LOCKED to CHECKPOINTED: its GPU memory is copied to the host and freed."""
        ...

    def restore(self, pid: int) -> None:
        """From CHECKPOINTED back to LOCKED, with its memory at the same addresses."""
        ...

    def unlock(self, pid: int) -> None:
        """From LOCKED to RUNNING."""
        ...


def _state(value: int) -> State:
    return State(value) if value in tuple(State) else State.FAILED


class Library:
    """cuCheckpointProcess* of a libcuda.so.1: CUDA 12.8, driver 570 and later."""

    def __init__(self, path: str = "libcuda.so.1") -> None:
        try:
            library = ctypes.CDLL(path)
        except OSError as error:
            said = str(error)  # dlopen names the object that is missing, which may be another one
            raise NoDriver(said if said.startswith(f"{path}:") else f"{path}: {said}") from None
        self.name = f"{path}, cuCheckpointProcess*"
        try:
            self._functions = {name: getattr(library, f"cuCheckpointProcess{name}") for name in FUNCTIONS}
        except AttributeError:
            raise NoDriver(f"{path}: no cuCheckpointProcess* (it came with CUDA 12.8, driver 570)") from None
        if code := library.cuInit(0):
            raise NoDriver(f"{path}: cuInit: {code}")

    def _call(self, name: str, pid: int, first: int = 0) -> None:
        arguments = (ctypes.c_uint32 * 16)(first)
        if code := self._functions[name](pid, arguments):
            raise DriverError(f"cuCheckpointProcess{name}", code)

    def state(self, pid: int) -> State:
        """Where the driver has the process. NOT_INITIALIZED (3): it does not use CUDA."""
        found = ctypes.c_int(-1)
        if code := self._functions["GetState"](pid, ctypes.byref(found)):
            raise DriverError("cuCheckpointProcessGetState", code)
        return _state(found.value)

    def lock(self, pid: int, timeout: float) -> None:
        """From RUNNING to LOCKED once its work on the device is done; NOT_READY (600) if that takes longer than timeout."""
        self._call("Lock", pid, max(1, int(timeout * 1000)))  # 0 would wait for ever

    def checkpoint(self, pid: int) -> None:
        """From LOCKED to CHECKPOINTED: its GPU memory is copied to the host and freed."""
        self._call("Checkpoint", pid)

    def restore(self, pid: int) -> None:
        """From CHECKPOINTED back to LOCKED, with its memory at the same addresses."""
        self._call("Restore", pid)

    def unlock(self, pid: int) -> None:
        """From LOCKED to RUNNING."""
        self._call("Unlock", pid)


class Command:
    """The cuda-checkpoint command with --action: 570 and later."""

    def __init__(self, path: str = "cuda-checkpoint") -> None:
        found = shutil.which(path)
        if not found:
            raise NoDriver(f"{path}: no such command")
        self.name = found

    def _call(self, *arguments: str, timeout: float | None = None) -> str:
        try:
            done = subprocess.run(
                [self.name, *arguments],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except OSError as error:
            raise DriverError(self.name, -1, error.strerror or str(error)) from None
        except subprocess.TimeoutExpired:
            raise DriverError(f"{self.name} {' '.join(arguments)}", -1, f"no answer in {timeout:g} s") from None
        if done.returncode:
            said = next(iter(done.stderr.split("\n")), "") or done.stdout.strip()
            raise DriverError(f"{self.name} {' '.join(arguments)}", -1, f"{said or 'failed'}, exit {done.returncode}")
        return done.stdout.strip()

    def state(self, pid: int) -> State:
        """Where the driver has the process. NOT_INITIALIZED (3): it does not use CUDA."""
        word = self._call("--get-state", "--pid", str(pid), timeout=30)
        return State[word.upper()] if word.upper() in State.__members__ else State.FAILED

    def lock(self, pid: int, timeout: float) -> None:
        """From RUNNING to LOCKED once its work on the device is done; NOT_READY (600) if that takes longer than timeout."""
        limit = str(max(1, int(timeout * 1000)))
        self._call("--action", "lock", "--pid", str(pid), "--timeout", limit, timeout=timeout + 30)

    def checkpoint(self, pid: int) -> None:
        """From LOCKED to CHECKPOINTED: its GPU memory is copied to the host and freed."""
        self._call("--action", "checkpoint", "--pid", str(pid))

    def restore(self, pid: int) -> None:
        """From CHECKPOINTED back to LOCKED, with its memory at the same addresses."""
        self._call("--action", "restore", "--pid", str(pid))

    def unlock(self, pid: int) -> None:
        """From LOCKED to RUNNING."""
        self._call("--action", "unlock", "--pid", str(pid))


def find(libcuda: str | None = None, command: str | None = None) -> Checkpointer:
    """What is named, else libcuda.so.1, else the cuda-checkpoint on PATH. NoDriver with all the reasons."""
    if libcuda:
        return Library(libcuda)
    if command:
        return Command(command)
    reasons = []
    for kind in (Library, Command):
        try:
            return kind()
        except NoDriver as error:
            reasons.append(str(error))
    raise NoDriver("; ".join(reasons))


def within(seconds: float, what: str, function: Callable[[], None]) -> None:
    """function(), which may never return: DriverError after so many seconds, and it is left to itself."""
    outcome: list[BaseException | None] = []

    def run() -> None:
        try:
            function()
            outcome.append(None)
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise DriverError(what, -1, f"no answer in {seconds:g} s")
    if outcome[0]:
        raise outcome[0]
