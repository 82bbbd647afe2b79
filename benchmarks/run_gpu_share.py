"""Two processes that share one CUDA allocation by descriptor: the parent exports, the child imports, maps and reads it.

Nothing but libcuda.so.1 is needed.
"""

from __future__ import annotations

import ctypes
import os
import socket


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Properties(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


SIZE = 2 << 20
WANTED = Properties(type=1, handle_types=1, location=Location(1, 0))


class Cuda:
    """libcuda's primary context of device 0."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self("cuInit", 0)
        self("cuDeviceGet", ctypes.byref(device), 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self("cuCtxSetCurrent", context)

    def __call__(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise SystemExit(f"{os.getpid()} {name}: CUDA error {status}")

    def map(self, handle: ctypes.c_uint64) -> ctypes.c_uint64:
        address, size, zero = ctypes.c_uint64(), ctypes.c_size_t(SIZE), ctypes.c_uint64(0)
        self("cuMemAddressReserve", ctypes.byref(address), size, ctypes.c_size_t(0), zero, zero)
        self("cuMemMap", address, size, ctypes.c_size_t(0), handle, zero)
        self("cuMemSetAccess", address, size, ctypes.byref(Access(Location(1, 0), 3)), ctypes.c_size_t(1))
        return address


def child(channel: socket.socket) -> None:
    _, fds, _, _ = socket.recv_fds(channel, 1, 1)
    if not fds:
        raise SystemExit("the parent failed")
    cuda, handle, back = Cuda(), ctypes.c_uint64(), ctypes.c_ubyte()
    cuda("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(fds[0]), 1)
    cuda("cuMemcpyDtoH_v2", ctypes.byref(back), cuda.map(handle), ctypes.c_size_t(1))
    print(f"the child reads {back.value:#x}", flush=True)
    os._exit(back.value != 0x5A)


def main() -> None:
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        child(theirs)
    theirs.close()
    cuda, handle, fd = Cuda(), ctypes.c_uint64(), ctypes.c_int()
    cuda("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(SIZE), ctypes.byref(WANTED), ctypes.c_uint64(0))
    cuda("cuMemsetD8_v2", cuda.map(handle), ctypes.c_ubyte(0x5A), ctypes.c_size_t(SIZE))
    cuda("cuCtxSynchronize")
    cuda("cuMemExportToShareableHandle", ctypes.byref(fd), handle, 1, ctypes.c_uint64(0))
    socket.send_fds(ours, [b"x"], [fd.value])
    os.close(fd.value)
    _, status = os.waitpid(pid, 0)
    raise SystemExit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
