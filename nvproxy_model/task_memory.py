"""The memory of another process, as the kernel gives it: process_vm_readv(2) and process_vm_writev(2).

/proc/PID/mem would write through read-only pages, where a driver's copy_to_user() faults; these fault as the driver does.
"""

from __future__ import annotations

import ctypes
import errno
from typing import Final

from nvproxy_model.errors import MemoryFault

__all__ = ["PAGE", "Denied", "hole", "read", "text", "write"]

PAGE: Final = 4096
_PATH_MAX: Final = 4096
_IOV_MAX: Final = 1024

_libc: Final = ctypes.CDLL(None, use_errno=True)


class Denied(OSError):
    """The kernel gives us no access to that process (EPERM), or it is gone (ESRCH)."""


class _Span(ctypes.Structure):
    """struct iovec."""

    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def _transfer(name: str, tid: int, address: int, buffer: ctypes.Array[ctypes.c_char], size: int) -> None:
    here, there = _Span(ctypes.addressof(buffer), size), _Span(address, size)
    done = getattr(_libc, name)(tid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    if done == size:
        return
    number = ctypes.get_errno() if done < 0 else errno.EFAULT
    if number in (errno.EPERM, errno.ESRCH):
        raise Denied(number, f"{name} of {tid}")
    raise MemoryFault(f"{address:#x}+{size:#x}")


def read(tid: int, address: int, size: int) -> bytes:
    """Bytes of the thread's address space. Raises MemoryFault, Denied."""
    if not size:
        return b""
    if address + size > 1 << 64:
        raise MemoryFault(f"{address:#x}+{size:#x}")
    buffer = ctypes.create_string_buffer(size)
    _transfer("process_vm_readv", tid, address, buffer, size)
    return buffer.raw


def write(tid: int, address: int, data: bytes) -> None:
    """Put bytes into the thread's address space; as far as they go where a page is missing. Raises MemoryFault, Denied."""
    if not data:
        return
    if address + len(data) > 1 << 64:
        raise MemoryFault(f"{address:#x}+{len(data):#x}")
    _transfer("process_vm_writev", tid, address, ctypes.create_string_buffer(data, len(data)), len(data))


def hole(tid: int, address: int, size: int) -> bool:
    """Whether a page of the range cannot be read: a byte of each, a thousand a system call. Raises Denied."""
    byte = ctypes.create_string_buffer(_IOV_MAX)
    pages = range(address, address + size, PAGE)
    for first in range(0, len(pages), _IOV_MAX):
        some = pages[first : first + _IOV_MAX]
        there = (_Span * len(some))(*(_Span(page, 1) for page in some))
        here = _Span(ctypes.addressof(byte), len(some))
        done = _libc.process_vm_readv(tid, ctypes.byref(here), 1, there, len(some), 0)
        if done < 0 and ctypes.get_errno() in (errno.EPERM, errno.ESRCH):
            raise Denied(ctypes.get_errno(), f"process_vm_readv of {tid}")
        if done != len(some):
            return True
    return False


def text(tid: int, address: int) -> bytes:
    """A C string of at most PATH_MAX, read page by page since the next page may not be there. Raises MemoryFault, Denied."""
    data = b""
    while len(data) < _PATH_MAX:
        piece = read(tid, address + len(data), PAGE - (address + len(data)) % PAGE)
        end = piece.find(b"\0")
        if end >= 0:
            return data + piece[:end]
        data += piece
    raise MemoryFault(f"{address:#x}: a path without an end")
