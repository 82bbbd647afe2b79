"""Seccomp user notification (seccomp_unotify(2)) through ctypes: start a program whose chosen system calls ask us first.

A supervisor that answers `Listener.proceed` is an observer, never a security boundary: the kernel's manual says that another
thread of the program can change the arguments between our look and the call's.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from nvproxy_model import kernel
from nvproxy_model.errors import NvproxyError

__all__ = ["Listener", "NotifyError", "Request", "spawn"]


class NotifyError(NvproxyError):
    """The kernel or the sandbox around us refuses seccomp user notification."""


# linux/seccomp.h
_RECV, _SEND, _ID_VALID, _SET_FLAGS = 0xC0502100, 0xC0182101, 0x40082102, 0x40082104
_FD_SYNC_WAKE_UP: Final = 1
_CONTINUE: Final = 1
# struct seccomp_notif: id, pid, flags, then struct seccomp_data: nr, arch, instruction pointer, six arguments.
_NOTIF: Final = struct.Struct("=QIIiIQ6Q")
_RESPONSE: Final = struct.Struct("=QqiI")

class Request(NamedTuple):
    """One system call that waits for an answer."""

    id: int
    pid: int
    """The calling thread's id."""
    name: str
    args: tuple[int, int, int, int, int, int]


def _filter(names: Sequence[str]) -> list[kernel.Instruction]:
    """Notify for these calls of the native 64-bit interface; let everything else pass."""
    table = kernel.SYSCALLS[kernel.MACHINE]
    notify = kernel.result(kernel.USER_NOTIF)
    program = kernel.native_only(kernel.MACHINE, kernel.ALLOW)
    if "mmap" in names:
        # An anonymous mapping has the descriptor -1; those are most of them, and none is ours.
        program += [
            kernel.jump(table["mmap"], 0, 4),
            kernel.load(kernel.ARGUMENT[4]),
            kernel.jump(0xFFFFFFFF, 0, 1),
            kernel.result(kernel.ALLOW),
            notify,
        ]
    for name in names:
        if name in table and name != "mmap":
            program += [kernel.jump(table[name], 0, 1), notify]
    return [*program, kernel.result(kernel.ALLOW)]


def _install(names: Sequence[str]) -> int:
    """In the child: the filter, and its listener. OSError.

    Without CAP_SYS_ADMIN the kernel wants a promise first (EACCES), which makes setuid programs run as the caller. Before
    5.19 there is no WAIT_KILLABLE_RECV (EINVAL): a signal can then make a call arrive twice.
    """
    program = _filter(names)
    flags = kernel.FLAG_NEW_LISTENER | kernel.FLAG_WAIT_KILLABLE_RECV
    if os.geteuid() != 0:
        kernel.no_new_privileges()
    while True:
        try:
            return kernel.seccomp(program, flags)
        except OSError as error:
            if error.errno == errno.EACCES:
                kernel.no_new_privileges()
            elif error.errno == errno.EINVAL and flags & kernel.FLAG_WAIT_KILLABLE_RECV:
                flags &= ~kernel.FLAG_WAIT_KILLABLE_RECV
            else:
                raise


class Listener:
    """The supervisor's end. A context manager; iterate it for requests until the last task is gone, answer each."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._names = {number: name for name, number in kernel.SYSCALLS[kernel.MACHINE].items()}
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        # Only an optimisation: older kernels refuse it, and nothing depends on it.
        with contextlib.suppress(OSError):
            fcntl.ioctl(fd, _SET_FLAGS, _FD_SYNC_WAKE_UP)
        self._buffer = bytearray(_NOTIF.size)

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def __iter__(self) -> Iterator[Request]:
        while True:
            events = self._poll.poll()
            if not events[0][1] & select.POLLIN:
                return
            # The kernel wants the buffer zeroed before each RECV.
            self._buffer[:] = bytes(_NOTIF.size)
            try:
                fcntl.ioctl(self._fd, _RECV, self._buffer)
            except OSError as error:
                # ENOENT: the task was killed before we came to it. With no task left poll() says POLLHUP.
                if error.errno in (errno.ENOENT, errno.EINTR):
                    continue
                raise
            ident, pid, _, number, _, _, *args = _NOTIF.unpack(self._buffer)
            yield Request(ident, pid, self._names.get(number, str(number)), tuple(args))

    def valid(self, request: Request) -> bool:
        """Whether the task still waits: what was read of its memory or files before this was its own, not another's of that pid."""
        try:
            fcntl.ioctl(self._fd, _ID_VALID, struct.pack("=Q", request.id))
        except OSError:
            return False
        return True

    def proceed(self, request: Request) -> None:
        """Let the call happen as it was made."""
        try:
            fcntl.ioctl(self._fd, _SEND, _RESPONSE.pack(request.id, 0, 0, _CONTINUE))
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise


def spawn(
    command: Sequence[str], names: Sequence[str], environment: Mapping[str, str] | None = None
) -> tuple[int, Listener, Callable[[], int]]:
    """Start ``command`` with these system calls notified. The pid, the listener, and a function that waits for its wait status.

    Raises NotifyError where the kernel has no such thing or a sandbox forbids it, OSError when the program cannot be started.
    """
    if kernel.MACHINE not in kernel.SYSCALLS:
        raise NotifyError(f"seccomp user notification: the system call numbers of {kernel.MACHINE} are not known here")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # pipe: what kept the child from its exec; closed by a successful one.
    error_read, error_write = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _child(command, names, environment, theirs, error_write)
    theirs.close()
    os.close(error_write)
    try:
        _, fds, _, _ = socket.recv_fds(ours, 1, 1)
        if not fds:
            text = os.read(error_read, 4096).decode("utf-8", "replace")
            os.waitpid(pid, 0)
            raise NotifyError(f"seccomp user notification is not available: {text or 'the child died'}")
    finally:
        ours.close()
    listener = Listener(fds[0])

    def wait() -> int:
        _, status = os.waitpid(pid, 0)
        text = os.read(error_read, 4096).decode("utf-8", "replace")
        os.close(error_read)
        if text:
            raise OSError(int(text.split(" ", 1)[0]), text.split(" ", 1)[1])
        return os.waitstatus_to_exitcode(status)

    return pid, listener, wait


def _child(
    command: Sequence[str],
    names: Sequence[str],
    environment: Mapping[str, str] | None,
    channel: socket.socket,
    error_write: int,
) -> None:
    try:
        try:
            listener = _install(names)
        except OSError as error:
            os.write(error_write, str(error.strerror).encode())
            os._exit(127)
        # From here each close, open or exec of ours waits for the supervisor, which has the listener once this is sent.
        socket.send_fds(channel, [b"x"], [listener])
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        try:
            os.execvpe(command[0], list(command), dict(os.environ if environment is None else environment))
        except OSError as error:
            os.write(error_write, f"{error.errno} {error.strerror}".encode())
    finally:
        os._exit(127)
