"""What a parsing process gives up before it sees a header: files, programs, memory and processor time."""

from __future__ import annotations

import contextlib
import errno
import os
import resource

from nvproxy_model import kernel

__all__ = ["confine", "drop_descriptors", "limit_processor"]

_OPENING = ("open", "openat", "openat2", "execve", "execveat")
"""The calls that reach a file; a machine has those of them that its table names."""


def confine(memory: int) -> None:
    """Let no file be opened from now on, and at most ``memory`` bytes of address space be had.

    clang looks for a header that it was not given in the file system, wherever an ``#include`` points; with this filter
    every such look answers "no such file". On a machine other than x86-64 and aarch64 only the limits apply.
    """
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if kernel.MACHINE not in kernel.SYSCALLS:
        return
    table = kernel.SYSCALLS[kernel.MACHINE]
    numbers = [table[name] for name in _OPENING if name in table]
    program = kernel.native_only(kernel.MACHINE, kernel.KILL_PROCESS)
    program += [kernel.jump(number, len(numbers) - index, 0) for index, number in enumerate(numbers)]
    program += [kernel.result(kernel.ALLOW), kernel.result(kernel.error(errno.ENOENT))]
    with contextlib.suppress(OSError):
        kernel.no_new_privileges()
        kernel.seccomp(program)


def limit_processor(seconds: int) -> None:
    """Let this process use that much more processor time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + 1 + seconds, resource.RLIM_INFINITY))


def drop_descriptors(keep: int) -> None:
    """Close every descriptor but one; the standard three lead nowhere."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.closerange(3, keep)
    os.closerange(keep + 1, 65536)
