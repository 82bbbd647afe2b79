"""Which system calls of a program wait for the broker, as a BPF filter: as few as a filter can tell apart."""

from __future__ import annotations

import os
from typing import Final

from nvproxy_model import kernel

__all__ = ["ROOTS", "program"]

ROOTS: Final = ("chroot", "pivot_root", "setns", "unshare")
"""After one of these a path may mean another file to its caller; a new thread's root is looked at anyway."""

_FOREIGN: Final = {
    # asm/unistd_32.h: open, ioctl, openat, io_uring_setup, openat2.
    "x86_64": (0x40000003, (5, 54, 295, 425, 437)),
    # arch/arm/tools/syscall.tbl: the same.
    "aarch64": (0x40000028, (5, 54, 322, 425, 437)),
}
"""The 32-bit ABI of a machine: its audit number, and the calls that could reach a device."""

# x86-64's own open, ioctl, openat, io_uring_setup and openat2 through x32, whose ioctl has a number of its own too.
_X32: Final = (2, 16, 257, 425, 437, 514)

_NOT_A_DEVICE: Final = os.O_DIRECTORY | os.O_PATH | os.O_CREAT
"""open(2) flags that no opening of a device node has."""


def program() -> list[kernel.Instruction]:
    """Notified: opens that may be of a device, ioctls whose type byte is the driver's, and other ABIs' of both.

    The type byte is 'F' for the frontend and 0 for UVM, whose requests are plain numbers (uvm_ioctl.h); terminals, sockets and
    disks have others. A descriptor's own file cannot be seen from here.
    """
    table = kernel.SYSCALLS[kernel.MACHINE]
    notify, allow = kernel.result(kernel.USER_NOTIF), kernel.result(kernel.ALLOW)
    arch, numbers = _FOREIGN[kernel.MACHINE]
    foreign = [kernel.load(kernel.NUMBER)]
    for number in numbers:
        foreign += [kernel.jump(number, 0, 1), notify]
    foreign.append(allow)
    head = kernel.native_only(kernel.MACHINE, kernel.ALLOW)
    # Before a call of another architecture is let pass: is it the 32-bit ABI of this machine?
    lines = [head[0], kernel.jump(kernel.AUDIT_ARCH[kernel.MACHINE], len(foreign) + 2, 0)]
    lines += [kernel.jump(arch, 1, 0), allow, *foreign, kernel.load(kernel.NUMBER)]
    if kernel.MACHINE == "x86_64":
        x32 = [allow]
        for number in reversed(_X32):
            x32 = [kernel.jump(kernel.X32_BIT | number, 0, 1), notify, *x32]
        lines += [kernel.jump_if_set(kernel.X32_BIT, 0, len(x32)), *x32]
    lines += [
        kernel.jump(table["ioctl"], 0, 6),
        kernel.load(kernel.ARGUMENT[1]),
        kernel.mask(0xFF00),
        kernel.jump(ord("F") << 8, 1, 0),
        kernel.jump(0, 0, 1),
        notify,
        allow,
    ]
    for name, flags in (("open", 1), ("openat", 2)):
        if name in table:
            lines += [
                kernel.jump(table[name], 0, 4),
                kernel.load(kernel.ARGUMENT[flags]),
                kernel.jump_if_set(_NOT_A_DEVICE, 0, 1),
                allow,
                notify,
            ]
    for name in ("openat2", "io_uring_setup", *ROOTS):
        lines += [kernel.jump(table[name], 0, 1), notify]
    return [*lines, allow]
