"""The other recorder: the kernel tells us each call before it happens, from static, setuid and raw-system-call programs too."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from nvproxy_model import task_memory
from nvproxy_model.errors import MemoryFault
from nvproxy_model.printable import printable
from nvproxy_model.signals import passed_on
from nvproxy_model.trace.decode.catalog import Catalog
from nvproxy_model.trace.format import Header, Writer, writing
from nvproxy_model.trace.record import notify, table
from nvproxy_model.trace.record.arguments import Arguments
from nvproxy_model.trace.record.notify import Listener, NotifyError, Request
from nvproxy_model.trace.record.preload import Outcome, driver_version, newest, shell_status
from nvproxy_model.trace.record.processes import Processes, text
from nvproxy_model.trace.record.table import Entry

__all__ = ["NAMES", "record"]

NAMES: Final = ("ioctl", "open", "openat", "openat2", "close", "dup", "dup2", "dup3", "mmap", "execve", "execveat")
"""The system calls that are asked about. fork is seen by its child's first call."""

_TOLD: Final = 10
_FLUSH: Final = 250_000_000
"""Nanoseconds: what a killed recorder may lose."""


class _Recorder:
    """Writes what it can and answers every request, whatever strikes: the program waits for it."""

    def __init__(
        self, listener: Listener, writer: Writer, outcome: Outcome, entries: Sequence[Entry], values: bool, devices: str
    ) -> None:
        self.listener = listener
        self.writer = writer
        self.seen = outcome.seen
        self.problems = outcome.problems
        self.arguments = Arguments(entries, values)
        self.devices = devices
        self.processes = Processes(outcome.seen.processes)
        self.start: int | None = None
        self.flushed = 0
        self.lost = 0
        self.full: OSError | None = None
        self.handlers: Mapping[str, Callable[[Request], dict[str, Any] | None]] = {
            "ioctl": self.ioctl,
            "open": lambda r: self.opened(r, r.args[0], r.args[1]),
            "openat": lambda r: self.opened(r, r.args[1], r.args[2]),
            "openat2": self.opened_how,
            "close": lambda r: self.on_device(r, "close", r.args[0]),
            "dup": lambda r: self.on_device(r, "dup", r.args[0]),
            "dup2": lambda r: self.on_device(r, "dup", r.args[0]),
            "dup3": lambda r: self.on_device(r, "dup", r.args[0]),
            "mmap": self.mapped,
            "execve": lambda r: self.execed(r, r.args[0]),
            "execveat": lambda r: self.execed(r, r.args[1]),
        }

    def run(self) -> None:
        """Until the last task is gone. What could not be looked at or written is counted as a problem at the end."""
        for request in self.listener:
            try:
                self.look(request)
            except Exception as error:  # without an answer the program would hang, without us it would get ENOSYS
                self.lost += 1
                if self.lost <= _TOLD:
                    self.problems.add(
                        0, f"a call could not be recorded: {type(error).__name__}: {printable(str(error))[:200]}"
                    )
            self.listener.proceed(request)
        if self.full is not None:
            self.problems.add(0, f"the output could not be written: {self.full.strerror or self.full}")
        if self.lost:
            self.problems.add(0, f"{self.lost} calls could not be recorded")

    def look(self, request: Request) -> None:
        handler = self.handlers.get(request.name)
        found = handler(request) if handler is not None else None
        if found is None or not self.listener.valid(request):
            return
        if self.full is not None:
            self.lost += 1
            return
        try:
            # Written before the call happens: the last one of a program that dies in it is on file.
            self.put(request, found)
        except OSError as error:
            self.full = error
            self.lost += 1

    def put(self, request: Request, found: dict[str, Any]) -> None:
        now = time.monotonic_ns()
        if self.start is None:
            self.start = now
        pid = self.processes.of(request.pid)
        begun = self.processes.begun(pid, now - self.start) if found["k"] != "exec" else None
        if begun is not None:
            self.writer.put(begun)
        k = found.pop("k")
        self.writer.put({"k": k, "t": now - self.start, "pid": pid, "tid": request.pid, **found})
        self.seen.ioctls += k == "ioctl"
        self.seen.opens += k == "open"
        if now - self.flushed > _FLUSH:
            self.writer.flush()
            self.flushed = now

    @staticmethod
    def read(tid: int, address: int, size: int) -> bytes | None:
        """Memory of the waiting task as it is now, in whatever program it runs; None where it has none."""
        try:
            return task_memory.read(tid, address, size) if address or not size else None
        except (MemoryFault, task_memory.Denied):
            return None

    @staticmethod
    def text(tid: int, address: int) -> str | None:
        try:
            return text(task_memory.text(tid, address))
        except (MemoryFault, task_memory.Denied):
            return None

    def device(self, tid: int, fd: int) -> str | None:
        try:
            path = text(os.readlink(f"/proc/{tid}/fd/{fd}".encode()))
        except OSError:
            return None
        return path if path.startswith(self.devices) else None

    def opened(self, request: Request, address: int, flags: int) -> dict[str, Any] | None:
        path = self.text(request.pid, address)
        if path is None or not path.startswith(self.devices):
            return None
        return {"k": "open", "fd": -1, "path": path, "flags": flags & 0xFFFFFFFF}

    def opened_how(self, request: Request) -> dict[str, Any] | None:
        # struct open_how (linux/openat2.h) begins with its flags, 64 bits of them.
        how = self.read(request.pid, request.args[2], 8)
        return self.opened(request, request.args[1], int.from_bytes(how or b"", "little"))

    def on_device(self, request: Request, k: str, fd: int) -> dict[str, Any] | None:
        fd &= 0xFFFFFFFF
        device = self.device(request.pid, fd)
        return None if device is None else {"k": k, "fd": fd, "dev": device}

    def mapped(self, request: Request) -> dict[str, Any] | None:
        addr, size, prot, flags, _, offset = request.args
        found = self.on_device(request, "mmap", request.args[4])
        return found and {
            **found,
            "addr": addr,
            "len": size,
            "prot": prot & 0xFFFFFFFF,
            "flags": flags & 0xFFFFFFFF,
            "off": offset,
        }

    def execed(self, request: Request, address: int) -> dict[str, Any] | None:
        path = self.text(request.pid, address)
        self.processes.execed(request.pid)
        return None if path is None else {"k": "exec", "path": path}

    def ioctl(self, request: Request) -> dict[str, Any] | None:
        fd, number, arg = request.args[0] & 0xFFFFFFFF, request.args[1] & 0xFFFFFFFF, request.args[2]
        device = self.device(request.pid, fd)
        if device is None:
            return None
        device = "/dev/nvidia" + device.removeprefix(self.devices)
        looked = self.arguments.before(lambda at, size: self.read(request.pid, at, size), device, fd, number, arg)
        return looked.record


def record(
    command: Sequence[str],
    output: Path,
    *,
    values: bool = True,
    inside: bool = False,
    driver: str | None = None,
    environment: Mapping[str, str] | None = None,
    devices: str = "/dev/nvidia",
) -> Outcome:
    """Run ``command`` with its calls notified and write its trace: arguments before each call, no answers.

    ``devices`` is what the paths of the watched devices begin with. Raises NotifyError, and OSError when the program cannot be
    started or the output not written.
    """
    release = driver or driver_version()
    entries = table.entries(Catalog(release or newest()))
    outcome = Outcome(0)
    head = Header(
        driver=release,
        arch=platform.machine(),
        recorder="seccomp",
        command=tuple(command),
        values=values,
        inside=inside,
    )
    started = False
    try:
        with writing(output, head) as writer:
            pid, listener, wait = notify.spawn(command, NAMES, environment)
            with listener, passed_on(lambda number: os.kill(pid, number)):
                recorder = _Recorder(listener, writer, outcome, entries, values, devices)
                recorder.run()
                outcome.status = shell_status(wait())
            started = True
            writer.lose(outcome.problems)
            outcome.records = writer.records
    except (NotifyError, OSError) as error:
        if not started:
            # Nothing ran: no trace of it.
            output.unlink(missing_ok=True)
            raise
        if recorder.full is None:
            outcome.problems.add(0, f"the output could not be written: {printable(str(error))}")
    return outcome
