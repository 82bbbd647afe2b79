"""The recorder of a brokered run: both sides of each performed call, and what a call that ran in the program was about to ask."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from nvproxy_model.notification import Request
from nvproxy_model.printable import printable
from nvproxy_model.trace.format import UNFINISHED, Writer
from nvproxy_model.trace.lines import Problems
from nvproxy_model.trace.record.arguments import Arguments, Looked, Read
from nvproxy_model.trace.record.processes import Processes
from nvproxy_model.trace.record.table import Entry

__all__ = ["Brokered"]


class _Held:
    """One call whose record is not written yet."""

    __slots__ = ("looked", "pid", "start", "tid")

    def __init__(self, looked: Looked, pid: int, tid: int, start: int) -> None:
        self.looked, self.pid, self.tid, self.start = looked, pid, tid, start


class Brokered:
    """Writes the trace of a broker's run (`nvproxy_model.live.broker.Recorder`). Safe to use from several threads."""

    def __init__(self, writer: Writer, entries: Sequence[Entry], values: bool = True) -> None:
        self._writer = writer
        self._arguments = Arguments(entries, values)
        self._processes = Processes({})
        self._lock = threading.Lock()
        self._begin = time.monotonic_ns()
        self.problems = Problems()
        """Why the trace is not whole; none: it is."""

    def opened(self, request: Request, path: str, flags: int, error: int | None) -> None:
        """An open of a device node. Its descriptor is not known: the kernel opens it after this, or not at all."""
        record: dict[str, Any] = {"k": "open", "fd": -1, "path": path, "flags": flags}
        if error is not None:
            record |= {"ret": -1, "err": error}
        self._put(self._processes.of(request.pid), request.pid, time.monotonic_ns(), record)

    def before(self, request: Request, path: str, read: Read) -> _Held:
        """A call as the program makes it."""
        fd, number, address = request.args[0] & 0xFFFFFFFF, request.args[1] & 0xFFFFFFFF, request.args[2]
        looked = self._arguments.before(read, path, fd, number, address)
        return _Held(looked, self._processes.of(request.pid), request.pid, time.monotonic_ns())

    def after(self, held: _Held, read: Read, ret: int, error: int) -> None:
        """The same call as the program gets it back."""
        record = self._arguments.after(read, held.looked, ret, error)
        record["d"] = time.monotonic_ns() - held.start
        self._put(held.pid, held.tid, held.start, record)

    def in_place(self, held: _Held) -> None:
        """A call that runs in the program: its end is not seen."""
        record = held.looked.record
        record["fl"] = record.get("fl", 0) | UNFINISHED
        self._put(held.pid, held.tid, held.start, record)

    def learned(self, held: _Held, client: int, hclass: int) -> None:
        """A client that was allocated in place is known by now, since the driver was asked about it."""
        record, top = held.looked.record, held.looked.top
        record["ret"] = 0
        record["status"] = "0x0"
        if top is not None and "top0" in record:
            after = bytearray(top.data)
            after[8:16] = client.to_bytes(4, "little") + hclass.to_bytes(4, "little")  # hObjectNew, hClass
            record["top1"] = after.hex()
        self._put(held.pid, held.tid, held.start, record)

    def _put(self, pid: int, tid: int, now: int, record: dict[str, Any]) -> None:
        with self._lock:
            try:
                begun = self._processes.begun(pid, now - self._begin)
                if begun is not None:
                    self._writer.put(begun)
                self._writer.put({"k": record.pop("k"), "t": now - self._begin, "pid": pid, "tid": tid, **record})
            except Exception as error:
                why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
                self.problems.add(0, f"the trace could not be written further: {printable(why)[:200]}")
                raise
