"""A program for trace_gpu.sh: CUDA virtual memory through libcuda's own functions, N rounds of create, map, use, export, unmap.

Nothing but libcuda.so.1 is needed. Prints what it did, the same in every run.
"""

from __future__ import annotations

import ctypes
import os
import sys


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *args: object) -> None:
        status = getattr(cuda, name)(*args)
        if status:
            raise SystemExit(f"{name}: CUDA error {status}")

    class Location(ctypes.Structure):
        _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]

    class Flags(ctypes.Structure):
        _fields_ = [
            ("compression", ctypes.c_ubyte),
            ("rdma", ctypes.c_ubyte),
            ("usage", ctypes.c_ushort),
            ("reserved", ctypes.c_ubyte * 4),
        ]

    class Properties(ctypes.Structure):
        _fields_ = [
            ("type", ctypes.c_int),
            ("handle_types", ctypes.c_int),
            ("location", Location),
            ("win32", ctypes.c_void_p),
            ("flags", Flags),
        ]

    class Access(ctypes.Structure):
        _fields_ = [("location", Location), ("flags", ctypes.c_int)]

    device, context, version = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
    call("cuInit", 0)
    call("cuDriverGetVersion", ctypes.byref(version))
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    wanted = Properties(type=1, handle_types=1, location=Location(1, 0))
    size, address, handle = ctypes.c_size_t(), ctypes.c_uint64(), ctypes.c_uint64()
    call("cuMemGetAllocationGranularity", ctypes.byref(size), ctypes.byref(wanted), 0)
    total = 0
    for _ in range(rounds):
        call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(wanted), ctypes.c_uint64(0))
        call(
            "cuMemAddressReserve",
            ctypes.byref(address),
            size,
            ctypes.c_size_t(0),
            ctypes.c_uint64(0),
            ctypes.c_uint64(0),
        )
        call("cuMemMap", address, size, ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
        access = Access(Location(1, 0), 3)
        call("cuMemSetAccess", address, size, ctypes.byref(access), ctypes.c_size_t(1))
        call("cuMemsetD8_v2", address, ctypes.c_ubyte(0x5A), size)
        back = ctypes.c_ubyte()
        call("cuMemcpyDtoH_v2", ctypes.byref(back), address, ctypes.c_size_t(1))
        total += back.value
        fd = ctypes.c_int()
        call("cuMemExportToShareableHandle", ctypes.byref(fd), handle, 1, ctypes.c_uint64(0))
        os.close(fd.value)
        call("cuMemUnmap", address, size)
        call("cuMemAddressFree", address, size)
        call("cuMemRelease", handle)
    call("cuDevicePrimaryCtxRelease_v2", device)
    print(f"{rounds} rounds of {size.value} bytes, sum {total}")


if __name__ == "__main__":
    main()
