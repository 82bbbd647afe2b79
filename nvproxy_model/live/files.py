"""The program's open files, known again by weak references: no duplicate of ours keeps a driver's file alive.

An epoll set holds no reference to what is in it: the kernel takes an entry away with the last reference to its file, whichever
process or mapping had that (eventpoll_release). kcmp(2)'s KCMP_EPOLL_TFD says whether a descriptor is the file of an entry. So a
file is the same under every number, in every process, after fork, dup, exec and SCM_RIGHTS, and its end is seen exactly.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import threading
from typing import Any, Final

from nvproxy_model import kernel
from nvproxy_model.fields import FileKind
from nvproxy_model.live.nodes import Node, Nodes
from nvproxy_model.session.ports import File

__all__ = ["OpenFile", "OpenFiles"]

_KCMP_EPOLL_TFD: Final = 7
_REMEMBERED: Final = 1 << 14
_ME: Final = os.getpid


class _Slot(ctypes.Structure):
    """struct kcmp_epoll_slot."""

    _fields_ = [("efd", ctypes.c_uint32), ("tfd", ctypes.c_uint32), ("toff", ctypes.c_uint32)]


class OpenFile(File):
    """One open file. ``host_fd`` is its number here for its life: a driver may keep it as a key (osUserHandleToKernelPtr()).

    The number leads to the file during calls alone; between them it leads nowhere.
    """

    __slots__ = ("clients", "fresh", "node", "slot", "users")

    def __init__(self, kind: FileKind, number: int, node: Node | None, slot: _Slot | None) -> None:
        super().__init__(kind, number, control_device=node is None or node.path == "/dev/nvidiactl")
        self.node = node
        self.slot = slot
        """None: the file cannot be polled, so it is not known again. None of those has state here."""
        self.users = 0
        self.fresh = True
        """Nobody has seen it yet."""
        self.clients: list[Any] = []
        """A token for each allocation of a client that was let through on it and of which nothing is known yet."""


class OpenFiles:
    """All device files and dma-bufs of a tree that are open. Safe to use from several threads."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._lock = threading.Lock()
        self._epoll = select.epoll()
        self._nowhere = os.open("/", os.O_PATH | os.O_CLOEXEC)
        self._files: list[OpenFile] = []
        self._places: dict[tuple[int, int], OpenFile] = {}

    def close(self) -> None:
        """Give every number back."""
        with self._lock:
            for file in self._files:
                os.close(file.host_fd)
            self._files.clear()
            self._epoll.close()
            os.close(self._nowhere)

    def _is(self, fd: int, file: OpenFile) -> bool:
        if file.slot is None:
            return False
        try:
            return kernel.syscall("kcmp", _ME(), _ME(), _KCMP_EPOLL_TFD, fd, ctypes.byref(file.slot)) == 0
        except OSError as error:
            if error.errno == errno.ENOENT:
                return False
            raise

    def _ended(self, file: OpenFile) -> bool:
        assert file.slot is not None
        try:
            kernel.syscall("kcmp", _ME(), _ME(), _KCMP_EPOLL_TFD, self._nowhere, ctypes.byref(file.slot))
        except OSError as error:
            if error.errno == errno.ENOENT:
                return True
            raise
        return False

    def find(self, tid: int, fd: int, taken: int) -> OpenFile | None:
        """The file of ``taken``, our duplicate of the thread's ``fd``; None for one that is neither a node nor a known dma-buf.

        It may be used until `release`. Raises OSError.
        """
        with self._lock:
            found = self._places.get((tid, fd))
            if found is None or not self._is(taken, found):
                found = next((file for file in self._files if self._is(taken, file)), None)
                if found is None:
                    node = self._nodes(os.fstat(taken))
                    if node is None:
                        return None
                    found = self._add(node.kind, taken, node)
                if found.slot is not None:
                    if len(self._places) >= _REMEMBERED:
                        self._places.clear()
                    self._places[tid, fd] = found
            if not found.users:
                os.dup2(taken, found.host_fd, inheritable=False)
            found.users += 1
            return found

    def _add(self, kind: FileKind, fd: int, node: Node | None) -> OpenFile:
        number = fcntl.fcntl(self._nowhere, fcntl.F_DUPFD_CLOEXEC, 3)
        os.dup2(fd, number, inheritable=False)
        slot = None
        try:
            self._epoll.register(number, 0)
            slot = _Slot(self._epoll.fileno(), number, 0)
        except PermissionError:  # EPERM: no poll
            pass
        file = OpenFile(kind, number, node, slot)
        if slot is not None:
            self._files.append(file)
        os.dup2(self._nowhere, number, inheritable=False)
        return file

    def install(self, fd: int) -> OpenFile:
        """A dma-buf that the driver has just made, known by its descriptor of ours, which stays the caller's."""
        with self._lock:
            return self._add("dma-buf", fd, None)

    def release(self, file: OpenFile) -> None:
        """A call with the file is over. Close your own duplicate after this: it may be the last one, and slow to close."""
        with self._lock:
            file.users -= 1
            if file.users:
                return
            if file.slot is None:
                os.close(file.host_fd)
            else:
                os.dup2(self._nowhere, file.host_fd, inheritable=False)

    def gone(self) -> list[OpenFile]:
        """The files that have ended since the last time; their numbers are free again."""
        with self._lock:
            ended = [file for file in self._files if not file.users and self._ended(file)]
            if ended:
                self._files = [file for file in self._files if file not in ended]
                self._places = {place: file for place, file in self._places.items() if file not in ended}
                for file in ended:
                    with contextlib.suppress(OSError):
                        os.close(file.host_fd)
            return ended
