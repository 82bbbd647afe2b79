"""What a parsing process gives up before it sees a header: files, programs, memory and processor time."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct

__all__ = ["confine", "drop_descriptors", "limit_processor"]

# <linux/audit.h> and the system call tables: open, openat, openat2, execve, execveat.
_CALLS = {
    "x86_64": (0xC000003E, (2, 257, 437, 59, 322)),
    "aarch64": (0xC00000B7, (56, 437, 221, 281)),
}
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_ALLOW, _ENOENT, _KILL = 0x7FFF0000, 0x00050002, 0x80000000
_LOAD, _JUMP_IF, _RETURN = 0x20, 0x15, 0x06


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def confine(memory: int) -> None:
    """Let no file be opened from now on, and at most ``memory`` bytes of address space be had.

    clang looks for a header that it was not given in the file system, wherever an ``#include`` points; with this filter
    every such look answers "no such file". On a machine other than x86-64 and aarch64 only the limits apply.
    """
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    architecture, calls = _CALLS.get(platform.machine(), (0, ()))
    if not calls:
        return
    code = [(_LOAD, 0, 0, 4), (_JUMP_IF, 1, 0, architecture), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    for index, call in enumerate(calls):
        code.append((_JUMP_IF, len(calls) - index, 0, call))
    code += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ENOENT)]
    text = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in code))
    program = _Program(len(code), ctypes.addressof(text))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
        prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0)


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
