"""Seccomp user notification (seccomp_unotify(2)): system calls that wait until we answer them.

A supervisor that answers `Listener.proceed` is an observer, never a security boundary: the kernel's manual says that another
thread of the program can change the arguments between our look and the call's. One that answers `Listener.answer` has made the
call itself, or refused it: the program's own call never runs.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from nvproxy_model import kernel
from nvproxy_model.errors import NvproxyError

__all__ = ["FOREIGN", "Listener", "NotifyError", "Request", "install"]


class NotifyError(NvproxyError):
    """The kernel or the sandbox around us refuses seccomp user notification."""


# linux/seccomp.h
_RECV, _SEND, _ID_VALID = 0xC0502100, 0xC0182101, 0x40082102
_ADDFD, _SET_FLAGS = 0x40182103, 0x40082104
_FD_SYNC_WAKE_UP: Final = 1
_CONTINUE: Final = 1
# struct seccomp_notif: id, pid, flags, then struct seccomp_data: nr, arch, instruction pointer, six arguments.
_NOTIF: Final = struct.Struct("=QIIiIQ6Q")
_RESPONSE: Final = struct.Struct("=QqiI")
# struct seccomp_notif_addfd: id, flags, srcfd, newfd, newfd_flags.
_NOTIF_ADDFD: Final = struct.Struct("=QIIII")
_ID: Final = struct.Struct("=Q")

FOREIGN: Final = "a call of another ABI"
"""The name of a request that is not of the native 64-bit interface: int 0x80, x32, 32-bit Arm."""


class Request(NamedTuple):
    """One system call that waits for an answer."""

    id: int
    pid: int
    """The calling thread's id."""
    name: str
    args: tuple[int, int, int, int, int, int]


def install(program: Sequence[kernel.Instruction], *, killable: bool = False) -> int:
    """Install a filter for the calling thread; its listener's descriptor. Raises OSError.

    Without CAP_SYS_ADMIN the kernel wants a promise first (EACCES), which makes setuid programs run as the caller. Before
    5.19 there is no WAIT_KILLABLE_RECV (EINVAL), and a signal can make a call arrive twice: ``killable`` insists on it.
    """
    # Watched, not confined: what some kernels do against speculation in confined programs would only slow this one.
    flags = kernel.FLAG_NEW_LISTENER | kernel.FLAG_SPEC_ALLOW | kernel.FLAG_WAIT_KILLABLE_RECV
    while True:
        try:
            return kernel.seccomp(program, flags)
        except OSError as error:
            if error.errno == errno.EACCES:
                kernel.no_new_privileges()
            elif error.errno == errno.EINVAL and flags & kernel.FLAG_WAIT_KILLABLE_RECV and not killable:
                flags &= ~kernel.FLAG_WAIT_KILLABLE_RECV
            else:
                raise


class Listener:
    """The supervisor's end. A context manager. Answer each request once; all but `receive` may be called by any thread."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._names = {number: name for name, number in kernel.SYSCALLS[kernel.MACHINE].items()}
        self._arch = kernel.AUDIT_ARCH[kernel.MACHINE]
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        # Only an optimisation: older kernels refuse it, and nothing depends on it.
        with contextlib.suppress(OSError):
            fcntl.ioctl(fd, _SET_FLAGS, _FD_SYNC_WAKE_UP)
        self._buffer = bytearray(_NOTIF.size)
        self._zeroes = bytes(_NOTIF.size)

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Calls that wait, and all later ones of the tree, get ENOSYS from here on, unless another process has the listener too."""
        os.close(self._fd)

    def receive(self) -> Request | None:
        """Wait for the next request; None when the last task is gone. One thread at a time."""
        while True:
            if not self._poll.poll()[0][1] & select.POLLIN:
                return None
            # The kernel wants the buffer zeroed before each RECV.
            self._buffer[:] = self._zeroes
            try:
                fcntl.ioctl(self._fd, _RECV, self._buffer)
            except OSError as error:
                # ENOENT: the task was killed before we came to it. With no task left poll() says POLLHUP.
                if error.errno in (errno.ENOENT, errno.EINTR):
                    continue
                raise
            ident, pid, _, number, arch, _, *args = _NOTIF.unpack(self._buffer)
            name = self._names.get(number, str(number)) if arch == self._arch else FOREIGN
            if name.isdecimal() and number & kernel.X32_BIT:
                name = FOREIGN
            return Request(ident, pid, name, tuple(args))

    def __iter__(self) -> Iterator[Request]:
        return iter(self.receive, None)

    def valid(self, request: Request) -> bool:
        """Whether the task still waits: what was read of its memory or files before this was its own, not another's of that pid."""
        try:
            fcntl.ioctl(self._fd, _ID_VALID, _ID.pack(request.id))
        except OSError:
            return False
        return True

    def proceed(self, request: Request) -> None:
        """Let the call happen as it was made."""
        self._send(request, 0, 0, _CONTINUE)

    def answer(self, request: Request, value: int = 0, error: int = 0) -> None:
        """The call returns ``value``, or fails with the errno ``error``; it never runs."""
        self._send(request, value, -error, 0)

    def _send(self, request: Request, value: int, error: int, flags: int) -> None:
        try:
            fcntl.ioctl(self._fd, _SEND, _RESPONSE.pack(request.id, value, error, flags))
        except OSError as failure:
            # ENOENT: the task was killed meanwhile.
            if failure.errno != errno.ENOENT:
                raise

    def give(self, request: Request, fd: int) -> int:
        """Give the task a close-on-exec duplicate of our ``fd``; its number there. Raises OSError, ENOENT where it was killed."""
        arg = bytearray(_NOTIF_ADDFD.pack(request.id, 0, fd, 0, os.O_CLOEXEC))
        number: int = fcntl.ioctl(self._fd, _ADDFD, arg)
        return number
