"""The other recorder: the kernel tells us each call before it happens, from static, setuid and raw-system-call programs too."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from nvproxy_model.trace.decode.catalog import Catalog
from nvproxy_model.trace.format import Header, Writer, writing
from nvproxy_model.trace.record import notify, table
from nvproxy_model.trace.record.arguments import Arguments
from nvproxy_model.trace.record.notify import Listener, NotifyError, Request
from nvproxy_model.trace.record.preload import Outcome, driver_version, newest, shell_status, waiting
from nvproxy_model.trace.record.processes import Processes
from nvproxy_model.trace.record.table import Entry

__all__ = ["NAMES", "record"]

NAMES: Final = ("ioctl", "open", "openat", "openat2", "close", "dup", "dup2", "dup3", "mmap", "execve", "execveat")
"""The system calls that are asked about. fork is seen by its child's first call."""

_PATH_MAX: Final = 4096


class _Recorder:
    def __init__(
        self, listener: Listener, writer: Writer, outcome: Outcome, entries: Sequence[Entry], values: bool, devices: str
    ) -> None:
        self.listener = listener
        self.writer = writer
        self.seen = outcome.seen
        self.arguments = Arguments(entries, values)
        self.devices = devices
        self.start: int | None = None
        self.processes = Processes(outcome.seen.processes)
        self.memory: dict[int, int] = {}
        self.handlers: Mapping[str, Callable[[Request], dict[str, Any] | None]] = {
            "ioctl": self.ioctl,
            "open": lambda r: self.opened(r, r.args[0], r.args[1]),
            "openat": lambda r: self.opened(r, r.args[1], r.args[2]),
            "openat2": lambda r: self.opened(r, r.args[1], 0),
            "close": lambda r: self.on_device(r, "close", r.args[0]),
            "dup": lambda r: self.on_device(r, "dup", r.args[0]),
            "dup2": lambda r: self.on_device(r, "dup", r.args[0]),
            "dup3": lambda r: self.on_device(r, "dup", r.args[0]),
            "mmap": self.mapped,
            "execve": lambda r: self.execed(r, r.args[0]),
            "execveat": lambda r: self.execed(r, r.args[1]),
        }

    def run(self) -> None:
        for request in self.listener:
            handler = self.handlers.get(request.name)
            found = handler(request) if handler is not None else None
            if found is not None and self.listener.valid(request):
                # Written before the call happens: the last one of a program that dies in it is on file.
                self.put(request, found)
            self.listener.proceed(request)

    def put(self, request: Request, found: dict[str, Any]) -> None:
        now = time.monotonic_ns()
        if self.start is None:
            self.start = now
        pid = self.processes.of(request.pid)
        begun = self.processes.begun(pid, now - self.start) if found["k"] != "exec" else None
        if begun is not None:
            self.writer.put(begun)
        if found["k"] == "ioctl":
            self.seen.ioctls += 1
        elif found["k"] == "open":
            self.seen.opens += 1
        self.writer.put({"k": found.pop("k"), "t": now - self.start, "pid": pid, "tid": request.pid, **found})

    def read(self, tid: int, address: int, size: int) -> bytes | None:
        """Memory of the waiting task; None where it has none."""
        if not size:
            return b""
        if not 0 < address <= 0x7FFFFFFFFFFFFFFF - size:
            return None
        fd = self.memory.get(tid)
        if fd is None:
            if len(self.memory) >= 256:
                self.forget()
            try:
                fd = self.memory[tid] = os.open(f"/proc/{tid}/mem", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return None
        try:
            data = os.pread(fd, size, address)
        except OSError:
            return None
        return data if len(data) == size else None

    def forget(self) -> None:
        for fd in self.memory.values():
            os.close(fd)
        self.memory.clear()

    def text(self, tid: int, address: int) -> str | None:
        """A C string: up to the page's end first, since the next page may not be there."""
        data = b""
        while len(data) < _PATH_MAX:
            step = min(4096 - (address + len(data)) % 4096, _PATH_MAX - len(data))
            piece = self.read(tid, address + len(data), step)
            if piece is None:
                return None
            data += piece
            if b"\0" in piece:
                return data.split(b"\0")[0].decode("utf-8", "replace")
        return None

    def device(self, tid: int, fd: int) -> str | None:
        try:
            path = os.readlink(f"/proc/{tid}/fd/{fd}")
        except OSError:
            return None
        return path if path.startswith(self.devices) else None

    def opened(self, request: Request, address: int, flags: int) -> dict[str, Any] | None:
        path = self.text(request.pid, address)
        if path is None or not path.startswith(self.devices):
            return None
        return {"k": "open", "fd": -1, "path": path, "flags": flags & 0xFFFFFFFF}

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
        # The memory of the task is another program's from here on.
        fd = self.memory.pop(request.pid, None)
        path = self.text(request.pid, address)
        if fd is not None:
            os.close(fd)
        fd = self.memory.pop(request.pid, None)
        if fd is not None:
            os.close(fd)
        self.seen.processes.pop(self.processes.of(request.pid), None)
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
    head = Header(driver=release, arch=platform.machine(), recorder="seccomp", command=tuple(command), values=values)
    try:
        with writing(output, head) as writer:
            pid, listener, wait = notify.spawn(command, NAMES, environment)
            with listener, waiting(pid):
                recorder = _Recorder(listener, writer, outcome, entries, values, devices)
                try:
                    recorder.run()
                finally:
                    recorder.forget()
                outcome.status = shell_status(wait())
            outcome.records = writer.records
    except (NotifyError, OSError):
        # Nothing ran: no trace of it.
        output.unlink(missing_ok=True)
        raise
    return outcome
