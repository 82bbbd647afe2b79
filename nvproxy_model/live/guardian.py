"""A program whose calls wait for us, and the process between us and it that ends the tree when we die.

The kernel answers ENOSYS to every notified call once nobody holds the listener. So a second process of ours holds it too: it is
the program's parent and the subreaper of all that comes from it, and when the broker is gone it kills them, each while it is the
guardian's own child, so that no number can mean another process. If both are killed at once, ENOSYS is what the program gets.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

from nvproxy_model import kernel
from nvproxy_model import task_memory as memory
from nvproxy_model.errors import NvproxyError
from nvproxy_model.live.filter import program as watched
from nvproxy_model.notification import Listener, NotifyError, install
from nvproxy_model.signals import passed_on

__all__ = ["NotifyError", "StartError", "Tree"]

_WORD: Final = struct.Struct("=ci")
# Messages: the program waits with this pid, its end with this wait status, an errno of its exec, of its filter; then ours.
_READY, _STATUS, _EXEC, _FILTER = b"r", b"s", b"e", b"f"
_GO, _KILL = b"g", b"k"
_PROBE: Final = ctypes.create_string_buffer(b"what a child of ours holds at the same address")


class StartError(NvproxyError):
    """The program could not be started; ``errno`` says why."""

    @property
    def not_found(self) -> bool:
        """Whether there is no such program, rather than one that cannot be run."""
        return self.errno == errno.ENOENT

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.errno = number


class Tree:
    """A program and all that it starts. ``listener`` is theirs: from `start` on their calls wait until somebody answers."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Hold the program before its exec. Raises NotifyError where the kernel, a container or a sandbox forbids watching it."""
        if kernel.MACHINE not in kernel.SYSCALLS:
            raise NotifyError(f"the system call numbers of {kernel.MACHINE} are not known here")
        self.command = command
        self.began = time.monotonic()
        """When it was held, by the monotonic clock."""
        self._signals = contextlib.ExitStack()
        self._started = False
        kernel.become_subreaper()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._guardian = os.fork()
        if self._guardian == 0:
            self._channel.close()  # else its end would never be seen
            _guard(command, dict(os.environ if environment is None else environment), theirs)
        theirs.close()
        kind, self.pid, fds = _receive(self._channel)
        if kind != _READY or not fds:
            os.waitpid(self._guardian, 0)
            raise NotifyError(_refusal(self.pid if kind == _FILTER else 0))
        self.status: int | None = None
        """The program's wait status once it has ended."""
        self._pidfd = kernel.syscall("pidfd_open", self.pid, 0)
        try:
            self._try_access(fds[0])
        except NotifyError:
            self.kill()
            os.close(fds[0])
            os.waitpid(self._guardian, 0)
            raise
        self.listener = Listener(fds[0])

    def _try_access(self, listener: int) -> None:
        """What each call will need, tried on the waiting program."""
        try:
            os.close(kernel.syscall("pidfd_getfd", self._pidfd, 0, 0))
        except OSError as error:
            if error.errno != errno.EBADF:  # standard input is closed: access was granted
                raise NotifyError(_denied(str(error))) from None
        try:
            memory.read(self.pid, ctypes.addressof(_PROBE), len(_PROBE))
        except OSError as error:
            raise NotifyError(_denied(str(error))) from None
        try:
            kernel.syscall("kcmp", os.getpid(), os.getpid(), 0, listener, listener)
        except OSError as error:
            raise NotifyError(_denied(str(error))) from None

    def start(self) -> None:
        """Let the program begin, and pass our signals on to it until `wait` has returned. Once is enough."""
        if self._started:
            return
        self._started = True
        self._signals.enter_context(passed_on(self._pass_on))
        with contextlib.suppress(OSError):
            self._channel.send(_WORD.pack(_GO, 0))

    def kill(self) -> None:
        """End every process of the tree."""
        with contextlib.suppress(OSError):
            self._channel.send(_WORD.pack(_KILL, 0))

    def wait(self) -> int:
        """Wait until the last process has ended; the program's exit status as a shell gives it. Raises StartError."""
        with self._signals:
            failed = 0
            while True:
                kind, number, _ = _receive(self._channel)
                if kind == _EXEC:
                    failed = number
                elif kind == _STATUS:
                    self.status = number
                elif not kind:
                    break
            self._without_guardian()
        os.close(self._pidfd)
        self._channel.close()
        if failed:
            raise StartError(f"{self.command[0]}: {os.strerror(failed)}", failed)
        if self.status is None:
            return 128 + signal.SIGKILL
        code = os.waitstatus_to_exitcode(self.status)
        return 128 - code if code < 0 else code

    def _without_guardian(self) -> None:
        """The guardian is gone: usually since all have ended; killed, it left the program to us, the next subreaper."""
        for pid in (self._guardian, self.pid):
            if pid == self._guardian or self.status is None:
                with contextlib.suppress(ChildProcessError):
                    _, status = os.waitpid(pid, 0)
                    if pid == self.pid:
                        self.status = status

    def _pass_on(self, number: int) -> None:
        if self.status is None:
            signal.pidfd_send_signal(self._pidfd, number)


def _receive(channel: socket.socket) -> tuple[bytes, int, list[int]]:
    """One message; b"" when the other side is gone."""
    try:
        data, fds, _, _ = socket.recv_fds(channel, _WORD.size, 1)
    except ConnectionResetError:
        data, fds = b"", []
    if len(data) != _WORD.size:
        return b"", 0, fds
    kind, number = _WORD.unpack(data)
    return kind, number, fds


def _refusal(number: int) -> str:
    """Why the filter could not be installed, and the way out, in one line."""
    release = os.uname().release
    if number and (release == "4.4.0" or "gvisor" in release.lower()):
        return "inside gVisor, whose seccomp has no user notification; nvproxy itself judges there: nvproxy-trace record shows how"
    if number == errno.EBUSY:
        return "another supervisor already watches this process (one listener a process): run it outside of that"
    if number == errno.EINVAL:
        return f"the kernel has no SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (5.19; this is {release})"
    if number in (errno.EPERM, errno.EACCES, errno.ENOSYS):
        return f"seccomp(2) is forbidden here ({os.strerror(number)}): a container's or a sandbox's own filter"
    return f"seccomp user notification is not available: {os.strerror(number) if number else 'the child died'}"


def _denied(what: str) -> str:
    """Why we may not look into our own child, and the way out, in one line."""
    try:
        scope = Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip()
    except OSError:
        scope = "0"
    if scope in ("2", "3"):
        return f"{what}: kernel.yama.ptrace_scope is {scope}, which forbids access to one's own children"
    return f"{what}: access to the program is forbidden; in Docker, add --cap-add SYS_PTRACE"


# The two processes below.


def _guard(command: Sequence[str], environment: Mapping[str, str], broker: socket.socket) -> NoReturn:
    try:
        kernel.become_subreaper()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            broker.close()
            ours.close()
            _become(command, environment, theirs)
        theirs.close()
        for meant in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(meant, signal.SIG_IGN)
        kind, number, listener = _receive(ours)
        if not listener:
            broker.send(_WORD.pack(_FILTER, number if kind == _FILTER else 0))
            os._exit(0)
        socket.send_fds(broker, [_WORD.pack(_READY, pid)], listener)
        _watch(pid, broker, ours)
    except BaseException:
        _end_all()
    finally:
        os._exit(0)


def _watch(pid: int, broker: socket.socket, program: socket.socket) -> None:
    """Reap, report the program's end, and end all when the broker is gone or asks for it."""
    woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    poll = select.poll()
    for fd in (woken, broker.fileno(), program.fileno()):
        poll.register(fd, select.POLLIN)
    while _reap(pid, broker):
        for fd, _ in poll.poll():
            if fd == woken:
                with contextlib.suppress(BlockingIOError):
                    os.read(woken, 4096)
            elif fd == broker.fileno():
                kind, _, _ = _receive(broker)
                if kind == _GO:
                    program.send(_WORD.pack(_GO, 0))
                else:
                    _end_all(pid, broker)
                    return
            else:
                _tell(program, broker)
                poll.unregister(fd)
    _tell(program, broker)


def _tell(program: socket.socket, broker: socket.socket) -> None:
    """Pass on why the program's exec failed, if it did."""
    program.setblocking(False)
    with contextlib.suppress(OSError):
        kind, number, _ = _receive(program)
        if kind == _EXEC:
            broker.send(_WORD.pack(_EXEC, number))


def _reap(program: int, broker: socket.socket, options: int = os.WNOHANG) -> bool:
    """Take in what has ended; False when no child is left."""
    while True:
        try:
            pid, status = os.waitpid(-1, options)
        except ChildProcessError:
            return False
        if not pid:
            return True
        if pid == program:
            with contextlib.suppress(OSError):
                broker.send(_WORD.pack(_STATUS, status))
        if not options:
            return True


def _end_all(program: int = 0, broker: socket.socket | None = None) -> None:
    """Kill our children until there are none: as each ends, its own become ours. A child's number is its own until we reap it."""
    null = broker or socket.socketpair()[0]
    while True:
        for child in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        if not _reap(program, null, 0):
            return


def _children() -> list[int]:
    found = []
    me = str(os.getpid())
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError):
                # The command's name, in parentheses, may hold anything; state and parent follow it.
                if Path(f"/proc/{name}/stat").read_text(errors="replace").rpartition(")")[2].split()[1] == me:
                    found.append(int(name))
    return found


def _become(command: Sequence[str], environment: Mapping[str, str], channel: socket.socket) -> NoReturn:
    """In the program's process: the filter, its listener to the guardian, then, when told, the exec."""
    try:
        try:
            listener = install(watched(), killable=True)
        except OSError as error:
            channel.send(_WORD.pack(_FILTER, error.errno or 0))
            os._exit(127)
        socket.send_fds(channel, [_WORD.pack(_READY, 0)], [listener])
        os.close(listener)
        kind, _, _ = _receive(channel)
        if kind != _GO:
            os._exit(127)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        try:
            os.execvpe(command[0], list(command), dict(environment))
        except OSError as error:
            channel.send(_WORD.pack(_EXEC, error.errno or errno.ENOEXEC))
    finally:
        os._exit(127)
