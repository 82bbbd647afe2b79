"""One call of a guest's as a value, and how a session is given it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from nvproxy_model.session.ports import FdTable, Result
from nvproxy_model.session.session import Session

__all__ = ["BLOCK", "GuestCall", "apply"]

BLOCK = 0x10000
"""Where in guest memory a call's bytes go if nothing is said. They take less than 16 KiB."""
_ALIGNED = 16
_DESCRIPTORS = 1024


class GuestCall(NamedTuple):
    """One ioctl of a guest's: the argument struct, and the block that its parameter pointer names, if it has
    one."""

    device: Literal["frontend", "uvm"]
    """The kind of file that is asked."""
    request: int
    argument: bytes
    params: bytes | None = None
    address: int = BLOCK
    """Where in guest memory the argument expects the parameters."""


def apply(call: GuestCall, session: Session) -> Result:
    """Make a call as its guest would: its bytes into guest memory, the parameters at ``call.address`` and the
    argument behind them, then the ioctl on the lowest descriptor of its kind.

    Raises LookupError if no such file is open below 1024, and MemoryFault if the guest has no memory there.
    """
    params = call.params or b""
    argument = call.address + -(-len(params) // _ALIGNED) * _ALIGNED
    session.memory.write(call.address, params)
    session.memory.write(argument, call.argument)
    return session.ioctl(_descriptor(call.device, session.fds), call.request, argument)


def _descriptor(device: str, fds: FdTable) -> int:
    for fd in range(_DESCRIPTORS):
        file = fds.get(fd)
        if file is not None and file.kind == device:
            return fd
    raise LookupError(f"the guest has no {device} file open: put a File({device!r}, host_fd) into its table")
