"""The ports of a session: the guest's memory and fds, the host's driver, and what passes through them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from nvproxy_model.policy.decision import Decision

__all__ = ["Buffer", "FdTable", "File", "Files", "GuestMemory", "Host", "MapContext", "Pages", "Result"]


class GuestMemory(Protocol):
    """The guest's address space. Both raise MemoryFault for an address that is not there."""

    def read(self, address: int, size: int, /) -> bytes: ...
    def write(self, address: int, data: bytes, /) -> None: ...


@dataclass(frozen=True, slots=True)
class Pages:
    """Guest memory itself, pinned, in place of a copy: NV01_MEMORY_SYSTEM_OS_DESCRIPTOR.

    A host that cannot pin all of it answers EFAULT and calls no driver.
    """

    address: int
    size: int
    writable: bool


class Buffer:
    """What the host is given: bytes, and for each pointer in them, by its offset, what it points at.

    The pointers' own bytes are 0. A host puts real addresses there for the length of its call.
    """

    __slots__ = ("data", "pointers")

    def __init__(self, data: bytearray, pointers: dict[int, Buffer | Pages] | None = None) -> None:
        self.data = data
        self.pointers = {} if pointers is None else pointers

    def __repr__(self) -> str:
        return f"Buffer({bytes(self.data).hex()}, {self.pointers})"


class Host(Protocol):
    """The driver. Changes ``arg`` in place, as ioctl(2) would, and answers an errno, 0 for success."""

    def ioctl(self, host_fd: int, request: int, arg: Buffer | None, /) -> int: ...


class MapContext(NamedTuple):
    """What a file may be mapped as, once: ``length`` bytes from offset 0, ``memory_type`` write-back, write-combine or uncached."""

    length: int
    memory_type: str


@dataclass(slots=True, eq=False)
class File:
    """One open file of the guest's. ``kind`` is frontend, uvm, open-only, dma-buf or other.

    ``references`` counts fds and mappings: the clients of a frontend file live as long as either (frontend_mmap.go).
    """

    kind: str
    host_fd: int
    control_device: bool = True
    mapping: MapContext | None = None
    references: int = 1


class FdTable(Protocol):
    """The guest's fds."""

    def get(self, fd: int, /) -> File | None: ...

    def install(self, file: File, /) -> int:
        """Give a file the lowest free number. Raises OSError with the errno for the guest."""
        ...

    def remove(self, fd: int, /) -> File | None:
        """Take a number away, as close(2) does."""
        ...


class Files(dict[int, File]):
    """The plain FdTable: numbers to files. Take them away with `remove`, which knows where the lowest free number may be."""

    _lowest = 0

    def install(self, file: File) -> int:
        fd = self._lowest
        while fd in self:
            fd += 1
        self[fd] = file
        self._lowest = fd + 1
        return fd

    def remove(self, fd: int) -> File | None:
        file = self.pop(fd, None)
        if file is not None:
            self._lowest = min(self._lowest, fd)
        return file


class Result(NamedTuple):
    """What the system call answers, the decision behind it, and what the embedder may now let go."""

    ret: int
    errno: int
    decision: Decision | None = None
    unpin: tuple[tuple[int, int], ...] = ()
    """(address, size) of guest pages whose objects are gone."""
    close: tuple[int, ...] = ()
    """Host fds that nothing of the guest's refers to any more."""
