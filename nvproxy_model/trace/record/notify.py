"""Seccomp user notification (seccomp_unotify(2)) through ctypes: start a program whose chosen system calls ask us first.

A supervisor that answers `Listener.proceed` is an observer, never a security boundary: the kernel's manual says that another
thread of the program can change the arguments between our look and the call's.

Through the kernel's own interface: four ioctls and three structs. Of the bindings, libseccomp's own is built with that library and
not on the package index, and pyseccomp there, last released in 2021, needs the library too.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import select
import signal
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from nvproxy_model.errors import NvproxyError

__all__ = ["SYSCALLS", "Listener", "NotifyError", "Request", "spawn"]


class NotifyError(NvproxyError):
    """The kernel or the sandbox around us refuses seccomp user notification."""


SYSCALLS: Final[Mapping[str, Mapping[str, int]]] = {
    "x86_64": {
        "open": 2,
        "close": 3,
        "mmap": 9,
        "ioctl": 16,
        "dup": 32,
        "dup2": 33,
        "execve": 59,
        "openat": 257,
        "dup3": 292,
        "execveat": 322,
        "openat2": 437,
        "seccomp": 317,
        "pidfd_open": 434,
    },
    "aarch64": {
        "dup": 23,
        "dup3": 24,
        "ioctl": 29,
        "openat": 56,
        "close": 57,
        "execve": 221,
        "mmap": 222,
        "execveat": 281,
        "openat2": 437,
        "seccomp": 277,
        "pidfd_open": 434,
    },
}
"""Machine -> name -> number (asm/unistd_64.h, asm-generic/unistd.h)."""

_AUDIT_ARCH: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT: Final = 0x40000000

# linux/seccomp.h
_SET_MODE_FILTER, _GET_NOTIF_SIZES = 1, 3
_FLAG_NEW_LISTENER: Final = 1 << 3
_FLAG_WAIT_KILLABLE_RECV: Final = 1 << 5
_RET_ALLOW, _RET_USER_NOTIF = 0x7FFF0000, 0x7FC00000
_RECV, _SEND, _ID_VALID, _SET_FLAGS = 0xC0502100, 0xC0182101, 0x40082102, 0x40082104
_FD_SYNC_WAKE_UP: Final = 1
_CONTINUE: Final = 1
# struct seccomp_notif: id, pid, flags, then struct seccomp_data: nr, arch, instruction pointer, six arguments.
_NOTIF: Final = struct.Struct("=QIIiIQ6Q")
_RESPONSE: Final = struct.Struct("=QqiI")
# linux/bpf_common.h
_LD_W_ABS, _JEQ, _JSET, _RET = 0x20, 0x15, 0x45, 0x06

_PR_SET_NO_NEW_PRIVS: Final = 38

_libc: Final = ctypes.CDLL(None, use_errno=True)


class Request(NamedTuple):
    """One system call that waits for an answer."""

    id: int
    pid: int
    """The calling thread's id."""
    name: str
    args: tuple[int, int, int, int, int, int]


class _Filter(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint32)]


class _Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.POINTER(_Filter))]


def _filter(machine: str, names: Sequence[str], mmap_fd_only: bool) -> list[tuple[int, int, int, int]]:
    """Notify for these calls of the native 64-bit interface; let everything else pass."""
    numbers = [SYSCALLS[machine][name] for name in names if name in SYSCALLS[machine] and name != "mmap"]
    program = [
        (_LD_W_ABS, 0, 0, 4),
        (_JEQ, 1, 0, _AUDIT_ARCH[machine]),
        (_RET, 0, 0, _RET_ALLOW),
        (_LD_W_ABS, 0, 0, 0),
    ]
    if "mmap" in names:
        # An anonymous mapping has the descriptor -1; those are most of them, and none is ours.
        program += [
            (_JEQ, 0, 4, SYSCALLS[machine]["mmap"]),
            (_LD_W_ABS, 0, 0, 16 + 4 * 8),
            (_JEQ, 0, 1, 0xFFFFFFFF),
            (_RET, 0, 0, _RET_ALLOW),
            (_RET, 0, 0, _RET_USER_NOTIF),
        ]
    for number in numbers:
        program += [(_JEQ, 0, 1, number), (_RET, 0, 0, _RET_USER_NOTIF)]
    program.append((_RET, 0, 0, _RET_ALLOW))
    return program


def _install(machine: str, names: Sequence[str]) -> int:
    """In the child: the filter, and its listener. OSError."""
    lines = _filter(machine, names, True)
    array = (_Filter * len(lines))(*(_Filter(*line) for line in lines))
    program = _Program(len(lines), array)
    number = SYSCALLS[machine]["seccomp"]

    def load(flags: int) -> int:
        return int(_libc.syscall(number, _SET_MODE_FILTER, flags, ctypes.byref(program)))

    # Without privilege the kernel wants a promise first, which makes setuid programs run as the caller; root need not give it.
    if os.geteuid() != 0 and _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")
    fd = load(_FLAG_NEW_LISTENER | _FLAG_WAIT_KILLABLE_RECV)
    if fd < 0 and ctypes.get_errno() == errno.EINVAL:
        fd = load(_FLAG_NEW_LISTENER)
    if fd < 0 and ctypes.get_errno() == errno.EACCES:
        if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")
        fd = load(_FLAG_NEW_LISTENER)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "seccomp(SECCOMP_SET_MODE_FILTER)")
    return fd


class Listener:
    """The supervisor's end. A context manager; iterate it for requests until the last task is gone, answer each."""

    def __init__(self, fd: int, machine: str) -> None:
        self._fd = fd
        self._names = {number: name for name, number in SYSCALLS[machine].items()}
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
    machine = platform.machine()
    if machine not in SYSCALLS:
        raise NotifyError(f"no system call numbers of {machine} here")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # pipe: what kept the child from its exec; closed by a successful one.
    error_read, error_write = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _child(command, names, environment, machine, theirs, error_write)
    theirs.close()
    os.close(error_write)
    try:
        _, fds, _, _ = socket.recv_fds(ours, 1, 1)
        if not fds:
            text = os.read(error_read, 4096).decode("utf-8", "replace")
            os.waitpid(pid, 0)
            raise NotifyError(f"seccomp user notification cannot be had: {text or 'the child died'}")
    finally:
        ours.close()
    listener = Listener(fds[0], machine)

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
    machine: str,
    channel: socket.socket,
    error_write: int,
) -> None:
    try:
        try:
            listener = _install(machine, names)
        except OSError as error:
            os.write(error_write, f"{error.strerror}: {os.strerror(error.errno or 0)}".encode())
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
