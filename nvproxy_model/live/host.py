"""The machine's own driver as a Host: ioctl(2) with real addresses in place of the pointers for the length of the call."""

from __future__ import annotations

import ctypes
import errno
import fcntl

from nvproxy_model.session.ports import Buffer, Pages

__all__ = ["Driver"]


def _pointed(buffer: Buffer) -> list[object]:
    """Put the addresses in; what must live until the call is over."""
    held: list[object] = []
    for at, behind in buffer.pointers.items():
        assert not isinstance(behind, Pages)
        held += _pointed(behind)
        array = (ctypes.c_char * max(len(behind.data), 1)).from_buffer(behind.data or bytearray(1))
        held.append(array)
        buffer.data[at : at + 8] = ctypes.addressof(array).to_bytes(8, "little")
    return held


class Driver:
    """Host. Safe to use from several threads: Python's lock is not held during the call."""

    def ioctl(self, host_fd: int, request: int, arg: Buffer | None) -> int:
        """The errno, 0 for success. Pages of another process cannot be pinned from here: EFAULT, as `Pages` says."""
        if arg is not None and any(isinstance(behind, Pages) for behind in arg.pointers.values()):
            return errno.EFAULT
        held = [] if arg is None else _pointed(arg)
        try:
            fcntl.ioctl(host_fd, request, 0 if arg is None else arg.data, True)
        except OSError as error:
            return error.errno or errno.EIO
        finally:
            del held
        return 0
