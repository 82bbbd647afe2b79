"""Which device stands behind a descriptor, per process, as a trace tells it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from nvproxy_model.trace.format import Record

__all__ = ["DEVICE_KINDS", "Descriptors", "device_kind"]

_LIMIT: Final = 1 << 16

DEVICE_KINDS: Final = ("frontend", "uvm", "open-only", "other")


def device_kind(path: str | None) -> str:
    """How nvproxy sees a device node: ``frontend`` (nvidiactl, nvidiaN), ``uvm``, ``open-only`` (nvidia-caps,
    IMEX channels), or ``other``.
    """
    name = (path or "").removeprefix("/dev/")
    if name == "nvidiactl" or (name.startswith("nvidia") and name[6:].isdigit()):
        return "frontend"
    if name == "nvidia-uvm":
        return "uvm"
    if name.startswith(("nvidia-caps/", "nvidia-caps-imex-channels/")):
        return "open-only"
    return "other"


class Descriptors:
    """Follows open, dup, close, fork and exec. A descriptor that an ioctl names though none of these brought it is ``unseen``."""

    def __init__(self) -> None:
        self._open: dict[int, dict[int, str]] = {}
        self.unseen = 0

    def of(self, pid: int) -> dict[int, str]:
        """The device nodes of one process by descriptor."""
        table = self._open.get(pid)
        if table is None:
            if len(self._open) >= _LIMIT:
                self._open.pop(next(iter(self._open)))
            table = self._open[pid] = {}
        return table

    def feed(self, rec: Record) -> None:
        """One record, in the order of the trace."""
        table = self.of(rec.pid)
        k = rec.k
        if k in ("ioctl", "mmap"):
            if rec.fd not in table and rec.dev is not None:
                self._set(table, rec.fd, rec.dev)
                self.unseen += 1
        elif k in ("open", "fd"):
            if rec.fd >= 0 and rec.dev is not None and not rec.err:
                self._set(table, rec.fd, rec.dev)
        elif k == "close":
            if not rec.err:
                table.pop(rec.fd, None)
        elif k == "dup":
            dev = rec.dev or table.get(rec.fd)
            if rec.ret is not None and rec.ret >= 0 and dev is not None:
                self._set(table, rec.ret, dev)
            elif rec.ret is not None:
                table.pop(rec.ret, None)
        elif k == "process":
            parent = rec.raw.get("ppid")
            if rec.raw.get("how") == "fork" and isinstance(parent, int) and parent in self._open:
                table.update(self._open[parent])

    @staticmethod
    def _set(table: dict[int, str], fd: int, dev: str) -> None:
        if len(table) >= _LIMIT:
            table.pop(next(iter(table)))
        table[fd] = dev

    def __iter__(self) -> Iterator[tuple[int, int, str]]:
        for pid, table in self._open.items():
            for fd, dev in table.items():
                yield pid, fd, dev
