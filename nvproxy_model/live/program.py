"""One waiting call, and the program behind it as a session sees it: its memory and its descriptors."""

from __future__ import annotations

import errno
import os
import threading
from typing import Protocol

from nvproxy_model import task_memory as memory
from nvproxy_model.errors import MemoryFault
from nvproxy_model.live.files import OpenFile, OpenFiles
from nvproxy_model.live.in_place import Place
from nvproxy_model.notification import Listener, Request
from nvproxy_model.session.ports import Buffer, File

__all__ = ["Answering", "Call", "EndedError", "InPlaceError", "Program"]


class InPlaceError(Exception):
    """Ends the session's work on a call at the moment when the host would be asked: it was decided, and is let through."""

    def __init__(self, place: Place, request: int, arg: Buffer | None) -> None:
        super().__init__(place)
        self.place, self.request, self.arg = place, request, arg


class EndedError(Exception):
    """The caller was killed: what was read may be another's, and nobody waits for an answer."""


class Call:
    """One ioctl while it is answered, by one thread of ours."""

    __slots__ = ("driver_ns", "file", "found", "performed", "request", "taken")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.file: OpenFile | None = None
        self.found: dict[int, File | None] = {}
        """What each descriptor that the call named stood for when it was first looked up."""
        self.taken: list[tuple[OpenFile | None, int]] = []
        self.driver_ns = 0
        self.performed = False


class Answering(Protocol):
    """Whose threads answer calls: the broker."""

    observe: bool
    files: OpenFiles
    listener: Listener
    graph_lock: threading.Lock

    @property
    def call(self) -> Call:
        """The call that the asking thread answers."""
        ...

    def file_of(self, fd: int) -> File | None: ...


class Program:
    """GuestMemory and FdTable of whichever call the asking thread is answering."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering

    # GuestMemory

    def read(self, address: int, size: int, /) -> bytes:
        us, call = self._answering, self._answering.call
        us.graph_lock.release()
        try:
            return memory.read(call.request.pid, address, size)
        except memory.Denied as error:
            raise EndedError if error.errno == errno.ESRCH else MemoryFault(f"{address:#x}") from None
        finally:
            us.graph_lock.acquire()

    def write(self, address: int, data: bytes, /) -> None:
        us, call = self._answering, self._answering.call
        if us.observe:
            return
        us.graph_lock.release()
        try:
            if not us.listener.valid(call.request):
                return
            memory.write(call.request.pid, address, data)
        except memory.Denied:
            pass  # killed: what the call did is recorded all the same
        finally:
            us.graph_lock.acquire()

    def pin(self, address: int, size: int, writable: bool, /) -> int:
        us, call = self._answering, self._answering.call
        us.graph_lock.release()
        try:
            # The driver pins them itself, in the program, and judges what may be written.
            return errno.EFAULT if memory.hole(call.request.pid, address, size) else 0
        except memory.Denied as error:
            raise EndedError from error
        finally:
            us.graph_lock.acquire()

    # FdTable

    def get(self, fd: int, /) -> File | None:
        return self._answering.file_of(fd)

    def install(self, file: File, /) -> int:
        us, call = self._answering, self._answering.call
        number = us.listener.give(call.request, file.host_fd)
        us.files.install(file.host_fd)
        os.close(file.host_fd)
        return number

    def remove(self, fd: int, /) -> File | None:
        # A descriptor that was given cannot be taken back; the program finds one more than it knows of.
        return None
