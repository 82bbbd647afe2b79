"""Starts a program whose chosen system calls are reported to us before they happen."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence

from nvproxy_model import kernel
from nvproxy_model.notification import Listener, NotifyError, Request, install

__all__ = ["Listener", "NotifyError", "Request", "spawn"]


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
            listener = install(_filter(names))
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
