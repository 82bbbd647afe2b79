"""The other recorder: the kernel tells us each call before it happens, from static, setuid and raw-system-call programs too."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from nvproxy_model import ioctl
from nvproxy_model.trace.decode.catalog import Catalog
from nvproxy_model.trace.devices import device_kind, ioctl_kind
from nvproxy_model.trace.format import TRUNCATED, Header, Writer, writing
from nvproxy_model.trace.record import notify, table
from nvproxy_model.trace.record.notify import Listener, NotifyError, Request
from nvproxy_model.trace.record.preload import Outcome, driver_version, newest, shell_status, waiting
from nvproxy_model.trace.record.table import Entry

__all__ = ["NAMES", "record"]

NAMES: Final = ("ioctl", "open", "openat", "openat2", "close", "dup", "dup2", "dup3", "mmap", "execve", "execveat")
"""The system calls that are asked about. fork is seen by its child's first call."""

_MAX_PARAMS: Final = 1 << 20
_MAX_BUFFERS: Final = 1 << 20
_PATH_MAX: Final = 4096
_REMEMBERED: Final = 4096
_KINDS: Final = {table.CONTROL: "control", table.ALLOC: "alloc"}


class _Recorder:
    def __init__(
        self, listener: Listener, writer: Writer, outcome: Outcome, entries: Sequence[Entry], values: bool, devices: str
    ) -> None:
        self.listener = listener
        self.writer = writer
        self.seen = outcome.seen
        self.values = values
        self.devices = devices
        self.entries = {(e.space, e.number, e.size if e.space == table.FRONTEND else 0): e for e in entries}
        self.start: int | None = None
        self.tgids: dict[int, int] = {}
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
        pid = self.tgid(request.pid)
        if found["k"] != "exec" and pid not in self.seen.processes and len(self.seen.processes) < _REMEMBERED:
            self.begun(pid, now)
        if found["k"] == "ioctl":
            self.seen.ioctls += 1
        elif found["k"] == "open":
            self.seen.opens += 1
        self.writer.put({"k": found.pop("k"), "t": now - self.start, "pid": pid, "tid": request.pid, **found})

    def begun(self, pid: int, now: int) -> None:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()[:_PATH_MAX]
        except OSError:
            command = b""
        words = [word.decode("utf-8", "replace") for word in command.rstrip(b"\0").split(b"\0")]
        self.seen.processes[pid] = " ".join(words)
        parent = self.status(pid, "PPid")
        self.writer.put(
            {
                "k": "process",
                "t": now - (self.start or now),
                "pid": pid,
                "tid": pid,
                "ppid": parent,
                "how": "seen",
                "command": words,
            }
        )

    @staticmethod
    def status(tid: int, name: str) -> int:
        try:
            for line in Path(f"/proc/{tid}/status").read_text().splitlines():
                if line.startswith(f"{name}:"):
                    return int(line.split()[1])
        except (OSError, ValueError, IndexError):
            pass
        return tid

    def tgid(self, tid: int) -> int:
        found = self.tgids.get(tid)
        if found is None:
            if len(self.tgids) >= _REMEMBERED:
                self.tgids.clear()
            found = self.tgids[tid] = self.status(tid, "Tgid")
        return found

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
        self.seen.processes.pop(self.tgid(request.pid), None)
        return None if path is None else {"k": "exec", "path": path}

    def ioctl(self, request: Request) -> dict[str, Any] | None:
        fd, number, arg = request.args[0] & 0xFFFFFFFF, request.args[1] & 0xFFFFFFFF, request.args[2]
        device = self.device(request.pid, fd)
        if device is None:
            return None
        device = "/dev/nvidia" + device.removeprefix(self.devices)
        kind = ioctl_kind(device)
        frontend = device_kind(device) == "frontend"
        key = number & 0xFF if frontend else number
        space = table.FRONTEND if frontend else table.UVM
        size = ioctl.size(number) if kind != "uvm" else 0
        entry = self.entries.get((space, key, size)) if kind != "other" else None
        if kind == "uvm" and entry is not None:
            size = entry.size
        record: dict[str, Any] = {"k": "ioctl", "fd": fd, "dev": device, "req": hex(number)}
        top = self.read(request.pid, arg, size) if size else None
        if top is None and size:
            record["fault"] = True
        par: bytes | None = None
        bufs: list[list[Any]] = []
        if entry is not None and top is not None:
            bufs += self.buffers(request.pid, entry, top)
            if entry.params_offset != table.NONE:
                kind = _KINDS[entry.inner]
                key = int.from_bytes(top[entry.key_offset : entry.key_offset + 4], "little")
                par, inner = self.parameters(request.pid, entry, top, key, record)
                if inner is not None and par is not None:
                    bufs += self.buffers(request.pid, inner, par)
        record |= {"kind": kind, "key": hex(key)}
        if self.values:
            if top is not None:
                record["top0"] = top.hex()
            if par is not None:
                record["par0"] = par.hex()
            if bufs:
                record["bufs"] = bufs
        return record

    def parameters(
        self, tid: int, entry: Entry, top: bytes, key: int, record: dict[str, Any]
    ) -> tuple[bytes | None, Entry | None]:
        address = int.from_bytes(top[entry.params_offset : entry.params_offset + 8], "little")
        size = 0
        if entry.size_offset != table.NONE:
            size = int.from_bytes(top[entry.size_offset : entry.size_offset + 4], "little")
        inner = self.entries.get((entry.inner, key, 0))
        if entry.inner == table.ALLOC and inner is not None and inner.size:
            size = inner.size
        if not address or not size:
            return None, inner
        kept = min(size, _MAX_PARAMS)
        if kept < size:
            record["fl"] = TRUNCATED
        if kept < size or not self.values:
            record["psize"] = size
        par = self.read(tid, address, kept)
        if par is None:
            record["fault"] = True
        return par, inner

    def buffers(self, tid: int, entry: Entry, data: bytes) -> list[list[Any]]:
        result: list[list[Any]] = []
        left = _MAX_BUFFERS
        for pointer in entry.pointers:
            address = int.from_bytes(data[pointer.offset : pointer.offset + 8], "little")
            count = pointer.fixed
            if pointer.count_offset != table.NONE:
                count = int.from_bytes(
                    data[pointer.count_offset : pointer.count_offset + pointer.count_width], "little"
                )
            if pointer.square:
                count *= count
            size = count * pointer.element
            if address and 0 < size <= min(pointer.limit, left):
                piece = self.read(tid, address, size)
                if piece is not None:
                    result.append([pointer.offset, piece.hex()])
                    left -= size
        return result


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
