"""The spool as the launcher holds it: a file that programs map, kept allocated ahead of what they write.

A write through a mapping cannot fail, it can only fault. So every byte that a program may write is allocated here first, and
what could not be allocated is not written: the recorder counts it (docs/decisions/0007-a-spool-without-descriptors.md).
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from nvproxy_model import kernel
from nvproxy_model.errors import NvproxyError

__all__ = ["FRAMES_AT", "MAGIC", "Head", "Keeper", "SpoolError", "keeping"]

MAGIC: Final = b"NVTS"
_VERSION: Final = 1
_OPEN, _FULL, _CLOSED = range(3)
_TABLE_AT: Final = 1 << 16
"""A multiple of every page size that Linux has on the machines that the recorder is built for."""
_AHEAD: Final = 4 << 20
"""Bytes: more than the largest frame, which has 2 MiB of parameters and buffers."""
_MOST_AHEAD: Final = 64 << 20
_LEAST_AHEAD: Final = 1 << 12
_SECONDS: Final = 0.25
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1


class SpoolError(NvproxyError):
    """The spool cannot be made here."""


class Head(ctypes.Structure):
    """struct spool_head of recorder/spool.h."""

    _fields_ = [
        ("magic", ctypes.c_char * 4),
        ("version", ctypes.c_uint32),
        ("state", ctypes.c_uint32),
        ("values", ctypes.c_uint32),
        ("cursor", ctypes.c_uint64),
        ("limit", ctypes.c_uint64),
        ("lost", ctypes.c_uint64),
        ("lost_answers", ctypes.c_uint64),
        ("wanted", ctypes.c_uint32),
        ("pad", ctypes.c_uint32),
        ("table_at", ctypes.c_uint64),
        ("table_size", ctypes.c_uint64),
    ]


def _frames_at(table: bytes) -> int:
    return (_TABLE_AT + len(table) + 7) & ~7


FRAMES_AT: Final = _frames_at(b"")
"""Where the frames of a spool without a table begin."""


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class Keeper:
    """A new spool, and room ahead of its writers. One thread runs `keep` until another calls `stop`.

    ``table`` is what recorder/look.c reads; ``values`` whether the bytes of arguments are kept. Raises OSError where the file
    cannot be made (FileExistsError: there is one), SpoolError where it cannot be allocated and mapped.
    """

    def __init__(self, path: Path, table: bytes = b"", *, values: bool = True) -> None:
        self._fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            start = _frames_at(table)
            os.posix_fallocate(self._fd, 0, start + _LEAST_AHEAD)
            os.pwrite(self._fd, table, _TABLE_AT)
            self._map = mmap.mmap(self._fd, mmap.PAGESIZE)
        except (OSError, ValueError) as error:
            os.close(self._fd)
            path.unlink()
            raise SpoolError(
                f"no spool can be kept there: {getattr(error, 'strerror', None) or error}; "
                "choose another folder for the output, or use --seccomp"
            ) from None
        self.head = Head.from_buffer(self._map)
        self.head.version = _VERSION
        self.head.values = values
        self.head.cursor = start
        self.head.limit = start + _LEAST_AHEAD
        self.head.table_at = _TABLE_AT
        self.head.table_size = len(table)
        self.head.magic = MAGIC
        self._wanted = ctypes.byref(self.head, Head.wanted.offset)
        self._stopping = False
        self._seen = start
        self._grow()

    def _grow(self) -> None:
        """Room for four times what was written since the last look, within bounds. A full disk gives what it has."""
        cursor = self.head.cursor
        ahead = min(max(4 * (cursor - self._seen), _AHEAD), _MOST_AHEAD)
        self._seen = cursor
        while self.head.limit < cursor + ahead:
            try:
                os.posix_fallocate(self._fd, self.head.limit, cursor + ahead - self.head.limit)
            except InterruptedError:
                continue
            except OSError:
                if ahead > _LEAST_AHEAD:
                    ahead //= 2
                    continue
                self.head.state = _FULL
                return
            self.head.limit = cursor + ahead
        self.head.state = _OPEN

    def keep(self) -> None:
        """Make room whenever it is wanted, until `stop`."""
        pause = _Timespec(0, int(_SECONDS * 1e9))
        while not self._stopping:
            wanted = self.head.wanted
            self._grow()
            with contextlib.suppress(OSError):  # it rose meanwhile, or the time is over
                kernel.syscall("futex", self._wanted, _FUTEX_WAIT, wanted, ctypes.byref(pause), 0, 0)

    def stop(self) -> None:
        """Nothing is recorded from here on, by processes that still live either."""
        self._stopping = True
        self.head.state = _CLOSED
        self.head.wanted += 1
        kernel.syscall("futex", self._wanted, _FUTEX_WAKE, 1, 0, 0, 0)

    def close(self) -> None:
        del self.head, self._wanted
        # The last reference to the mapping may still be in a frame of a traceback.
        with contextlib.suppress(BufferError):
            self._map.close()
        os.close(self._fd)


@contextlib.contextmanager
def keeping(keeper: Keeper) -> Iterator[Keeper]:
    """Keep it in a thread while the body runs, then close it."""
    thread = threading.Thread(target=keeper.keep, name="spool", daemon=True)
    thread.start()
    try:
        yield keeper
    finally:
        keeper.stop()
        thread.join()
        keeper.close()
