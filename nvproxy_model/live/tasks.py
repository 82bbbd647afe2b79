"""The threads of a watched tree: their descriptors, their paths, and whether they may do what we may."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from nvproxy_model import kernel

__all__ = ["Tasks", "credentials", "group"]

_PIDFD_THREAD: Final = os.O_EXCL
_REMEMBERED: Final = 256
_SELF: Final = re.compile(rb"/+proc/+(self|thread-self)(?=/|$)")


def _status(tid: int | str) -> dict[str, str]:
    lines = Path(f"/proc/{tid}/status").read_text(errors="replace").splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def credentials(tid: int | str = "self") -> tuple[str, ...]:
    """What the kernel asks about when a task calls a driver: user and group ids, and effective capabilities. Raises OSError."""
    status = _status(tid)
    return tuple(status.get(name, "") for name in ("Uid", "Gid", "CapEff"))


def _root(tid: int | str) -> tuple[int, int, int]:
    """The root directory of a task, and its mount namespace. Raises OSError."""
    root = os.stat(f"/proc/{tid}/root")
    return root.st_dev, root.st_ino, os.stat(f"/proc/{tid}/ns/mnt").st_ino


def group(tid: int) -> int:
    """The process of a thread; its own number when it is gone."""
    try:
        return int(_status(tid)["Tgid"])
    except (OSError, KeyError, ValueError):
        return tid


class Tasks:
    """A pidfd for each thread seen, by thread where the kernel can (6.9): a process lives on when its first thread has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pidfds: dict[int, int] = {}
        self._ours = credentials()
        self._root = _root("self")
        self._ours_too: set[int] | None = set()
        """Threads whose root is ours; None once a program has changed a root."""
        self.others: dict[int, tuple[str, ...]] = {}
        """Threads with credentials other than ours."""

    def take(self, tid: int, fd: int) -> int:
        """Our own duplicate of a descriptor of the thread's, close-on-exec; close it. Raises OSError: EBADF where it has none."""
        for again in (True, False):
            try:
                return kernel.syscall("pidfd_getfd", self._pidfd(tid), fd, 0)
            except OSError as error:
                # The number was another thread's, which has ended.
                if error.errno != errno.ESRCH or not again:
                    raise
                self._forget(tid)
        raise AssertionError

    def descriptors(self, tid: int) -> Iterator[tuple[int, os.stat_result]]:
        """Every descriptor of the thread and what is behind it."""
        try:
            names = os.listdir(f"/proc/{tid}/fd")
        except OSError:
            return
        for name in names:
            with contextlib.suppress(OSError):
                yield int(name), os.stat(f"/proc/{tid}/fd/{name}")

    def _pidfd(self, tid: int) -> int:
        with self._lock:
            found = self._pidfds.get(tid)
            if found is not None:
                return found
            if len(self._pidfds) >= _REMEMBERED:
                self._close()
            try:
                found = kernel.syscall("pidfd_open", tid, _PIDFD_THREAD)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                found = kernel.syscall("pidfd_open", group(tid), 0)
            self._pidfds[tid] = found
            self.others.pop(tid, None)
            with contextlib.suppress(OSError):
                theirs = credentials(tid)
                if theirs != self._ours:
                    self.others[tid] = theirs
            return found

    def _forget(self, tid: int) -> None:
        with self._lock:
            found = self._pidfds.pop(tid, None)
            if found is not None:
                os.close(found)

    def _close(self) -> None:
        for fd in self._pidfds.values():
            os.close(fd)
        self._pidfds.clear()

    def close(self) -> None:
        """Let all of them go."""
        with self._lock:
            self._close()

    def forget_roots(self) -> None:
        """A program is about to change a root: from now on each one is looked at."""
        self._ours_too = None

    def _in_our_root(self, tid: int) -> bool:
        known = self._ours_too
        if known is not None and tid in known:
            return True
        same = _root(tid) == self._root
        if same and known is not None and len(known) < _REMEMBERED:
            known.add(tid)
        return same

    def stat(self, tid: int, directory: int, path: bytes) -> os.stat_result:
        """The file that a path means to the thread: below its root, from its directory. Raises OSError.

        ``directory`` is a descriptor of the thread's or AT_FDCWD. What lies in another root is looked up with that root
        as the end of every symbolic link.
        """
        if not path.startswith(b"/"):
            start = b"/proc/%d/%s/" % (tid, b"cwd" if directory == -100 else b"fd/%d" % directory)
            return os.stat(start + path)
        path = _SELF.sub(b"/proc/%d" % group(tid), path) if b"/proc" in path else path
        if self._in_our_root(tid):
            return os.stat(path)
        root = os.open(f"/proc/{tid}/root", os.O_PATH | os.O_CLOEXEC)
        try:
            fd = kernel.open_in_root(root, path, os.O_PATH | os.O_CLOEXEC)
        finally:
            os.close(root)
        try:
            return os.fstat(fd)
        finally:
            os.close(fd)
