"""The Linux interfaces that Python has no call for: seccomp filters, prctl, and system calls by number.

Of the bindings on the package index, pyseccomp (last released in 2021) needs the libseccomp library, which is not installed
with pip, and libseccomp's own binding is not there at all.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

__all__ = [
    "ALLOW",
    "ARGUMENT",
    "AUDIT_ARCH",
    "FLAG_NEW_LISTENER",
    "FLAG_SPEC_ALLOW",
    "FLAG_WAIT_KILLABLE_RECV",
    "KILL_PROCESS",
    "MACHINE",
    "NUMBER",
    "SYSCALLS",
    "USER_NOTIF",
    "X32_BIT",
    "Instruction",
    "become_subreaper",
    "error",
    "jump",
    "jump_if_set",
    "load",
    "mask",
    "native_only",
    "no_new_privileges",
    "open_in_root",
    "result",
    "seccomp",
    "syscall",
]

MACHINE: Final = platform.machine()

AUDIT_ARCH: Final[Mapping[str, int]] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""linux/audit.h, by machine: the machines whose filters can be written here."""

X32_BIT: Final = 0x40000000
"""In the number of a call of x86-64's x32 interface (asm/unistd.h: __X32_SYSCALL_BIT)."""

SYSCALLS: Final[Mapping[str, Mapping[str, int]]] = {
    "x86_64": {
        "open": 2,
        "close": 3,
        "mmap": 9,
        "ioctl": 16,
        "dup": 32,
        "dup2": 33,
        "execve": 59,
        "futex": 202,
        "openat": 257,
        "dup3": 292,
        "kcmp": 312,
        "seccomp": 317,
        "execveat": 322,
        "pivot_root": 155,
        "chroot": 161,
        "unshare": 272,
        "setns": 308,
        "io_uring_setup": 425,
        "process_vm_readv": 310,
        "process_vm_writev": 311,
        "pidfd_send_signal": 424,
        "pidfd_open": 434,
        "openat2": 437,
        "pidfd_getfd": 438,
    },
    "aarch64": {
        "dup": 23,
        "dup3": 24,
        "ioctl": 29,
        "openat": 56,
        "close": 57,
        "futex": 98,
        "execve": 221,
        "mmap": 222,
        "process_vm_readv": 270,
        "process_vm_writev": 271,
        "kcmp": 272,
        "seccomp": 277,
        "execveat": 281,
        "pivot_root": 41,
        "chroot": 51,
        "unshare": 97,
        "setns": 268,
        "io_uring_setup": 425,
        "pidfd_send_signal": 424,
        "pidfd_open": 434,
        "openat2": 437,
        "pidfd_getfd": 438,
    },
}
"""Machine -> name -> number (asm/unistd_64.h, asm-generic/unistd.h)."""

# linux/seccomp.h
FLAG_SPEC_ALLOW: Final = 1 << 2
FLAG_NEW_LISTENER: Final = 1 << 3
FLAG_WAIT_KILLABLE_RECV: Final = 1 << 5
ALLOW: Final = 0x7FFF0000
USER_NOTIF: Final = 0x7FC00000
KILL_PROCESS: Final = 0x80000000
_ERRNO: Final = 0x00050000
_SET_MODE_FILTER: Final = 1

# struct seccomp_data, offsets in bytes: the number, the architecture, then six arguments of eight bytes.
NUMBER: Final = 0
_ARCH: Final = 4
ARGUMENT: Final = tuple(range(16, 64, 8))
"""Where the low half of each argument stands; the high half follows it (both machines are little-endian)."""

# linux/bpf_common.h
_LD_W_ABS, _JEQ, _JSET, _AND, _RET = 0x20, 0x15, 0x45, 0x54, 0x06

_RESOLVE_IN_ROOT: Final = 0x10

_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_NO_NEW_PRIVS: Final = 38

_libc: Final = ctypes.CDLL(None, use_errno=True)


class Instruction(NamedTuple):
    """One line of a BPF program: struct sock_filter."""

    code: int
    jt: int
    jf: int
    k: int


class _Filter(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint32)]


class _Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.POINTER(_Filter))]


def load(offset: int) -> Instruction:
    """Take a word of struct seccomp_data."""
    return Instruction(_LD_W_ABS, 0, 0, offset)


def jump(value: int, equal: int, other: int) -> Instruction:
    """Skip ``equal`` instructions if the word is ``value``, else ``other``; each at most 255."""
    return Instruction(_JEQ, equal, other, value)


def jump_if_set(mask: int, some: int, none: int) -> Instruction:
    """Skip ``some`` instructions if the word has a bit of ``mask``, else ``none``; each at most 255."""
    return Instruction(_JSET, some, none, mask)


def mask(value: int) -> Instruction:
    """Keep these bits of the word."""
    return Instruction(_AND, 0, 0, value)


def result(action: int) -> Instruction:
    """End the program with this action."""
    return Instruction(_RET, 0, 0, action)


def error(errno: int) -> int:
    """The action that answers a call with an errno and never runs it."""
    return _ERRNO | errno


def native_only(machine: str, otherwise: int) -> list[Instruction]:
    """The head of a program: calls of another architecture end with ``otherwise``; then the word is the call's number."""
    return [load(_ARCH), jump(AUDIT_ARCH[machine], 1, 0), result(otherwise), load(NUMBER)]


def become_subreaper() -> None:
    """PR_SET_CHILD_SUBREAPER: orphans below us become our children. Raises OSError."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(ctypes.get_errno())}")


def no_new_privileges() -> None:
    """PR_SET_NO_NEW_PRIVS: setuid programs run as their caller from now on. Raises OSError."""
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl(PR_SET_NO_NEW_PRIVS): {os.strerror(ctypes.get_errno())}")


def syscall(name: str, *arguments: int | object) -> int:
    """A system call by name on this machine; a ctypes reference is passed as it is. Raises OSError with the call's name."""
    value = int(_libc.syscall(SYSCALLS[MACHINE][name], *(_long(each) for each in arguments)))
    if value < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return value


def _long(value: int | object) -> object:
    # A bare int goes through ctypes as a C int and would lose its upper half.
    return ctypes.c_long(value) if isinstance(value, int) else value


def seccomp(program: Sequence[Instruction] | Iterable[Instruction], flags: int = 0) -> int:
    """Install a filter for the calling thread: 0, or the listener's descriptor with FLAG_NEW_LISTENER. Raises OSError.

    The kernel wants `no_new_privileges` before it, or CAP_SYS_ADMIN in the caller's user namespace (EACCES).
    """
    lines = list(program)
    array = (_Filter * len(lines))(*(_Filter(*line) for line in lines))
    return syscall("seccomp", _SET_MODE_FILTER, flags, ctypes.byref(_Program(len(lines), array)))


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def open_in_root(root: int, path: bytes, flags: int) -> int:
    """Open a path as a process with the root directory ``root`` (a descriptor) would. Raises OSError."""
    how = _OpenHow(flags, 0, _RESOLVE_IN_ROOT)
    return syscall("openat2", root, ctypes.c_char_p(path), ctypes.byref(how), ctypes.sizeof(how))
