"""A duplicate of another process's descriptor (pidfd_getfd, Linux 5.6)."""

from __future__ import annotations

import ctypes
import os

_SYS_PIDFD_GETFD = 438  # on every architecture
_libc = ctypes.CDLL(None, use_errno=True)


def descriptor_of(pid: int, fd: int) -> int:
    """A duplicate with FD_CLOEXEC, the caller's to close. OSError: no process, no permission, or no such descriptor."""
    try:
        process = os.pidfd_open(pid)
    except (OverflowError, ValueError):
        raise ProcessLookupError(pid, "no such process") from None
    except OSError as error:
        # EINVAL: the number of a thread, or of nothing
        raise (ProcessLookupError(pid, "no such process") if error.errno == 22 else error) from None
    try:
        duplicate = int(_libc.syscall(_SYS_PIDFD_GETFD, process, ctypes.c_int(fd), 0))
        if duplicate < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return duplicate
    finally:
        os.close(process)
