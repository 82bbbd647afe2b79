"""The ports of a session: the guest's memory and descriptors, the host's driver, and what passes through
them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, get_args, runtime_checkable

from nvproxy_model.fields import FileKind
from nvproxy_model.policy.decision import Decision
from nvproxy_model.policy.policy import Entry, Policy
from nvproxy_model.session.events import Events
from nvproxy_model.session.mistakes import a, descriptor
from nvproxy_model.session.objects import Graph

__all__ = [
    "Buffer",
    "FdTable",
    "File",
    "Files",
    "GuestMemory",
    "Host",
    "MapContext",
    "MemoryType",
    "Pages",
    "PinningMemory",
    "Process",
    "Result",
]


class GuestMemory(Protocol):
    """The guest's address space. Both raise MemoryFault for an address that the guest does not have."""

    def read(self, address: int, size: int, /) -> bytes:
        """``size`` bytes at ``address``."""
        ...

    def write(self, address: int, data: bytes, /) -> None:
        """Put ``data`` at ``address``. Pages before the one that faults may have been written."""
        ...


@runtime_checkable
class PinningMemory(Protocol):
    """An optional part of GuestMemory, for NV01_MEMORY_SYSTEM_OS_DESCRIPTOR.

    Without it a session reads a byte of every page, so that a hole is EFAULT, and cannot tell a read-only
    page.
    """

    def pin(self, address: int, size: int, writable: bool, /) -> int:
        """Pin the pages of a page-aligned range: 0, or the errno for the first page, from the start, that
        cannot be pinned.

        EFAULT for a hole; EPERM for a page that the guest may only read, if ``writable``. A range that was
        pinned is named by `Result.unpin` once, when its object is freed or if the call fails; one that was
        not pinned is not named.
        """
        ...


@dataclass(frozen=True, slots=True)
class Pages:
    """Guest memory itself, in place of a copy: ``size`` bytes at ``address``, to be ``writable`` by the
    driver or not.

    They must be pinned for the host call and until `Result.unpin` names them. A host that cannot pin all of
    them answers EFAULT and calls no driver.
    """

    address: int
    size: int
    writable: bool


class Buffer:
    """What the host is given: ``data``, and in ``pointers`` what each pointer in it points at, by the
    pointer's offset in bytes.

    The pointers' own bytes are 0. A host puts real addresses there for the length of its call. The length of
    ``data`` is fixed.
    """

    __slots__ = ("data", "pointers")

    def __init__(self, data: bytearray, pointers: dict[int, Buffer | Pages] | None = None) -> None:
        self.data = data
        self.pointers = {} if pointers is None else pointers

    def __repr__(self) -> str:
        return f"Buffer({bytes(self.data).hex()}, {self.pointers})"


class Host(Protocol):
    """The driver."""

    def ioctl(self, host_fd: int, request: int, arg: Buffer | None, /) -> int:
        """Do an ioctl(2): change ``arg`` in place and return an errno, 0 for success.

        It must not raise OSError or change the length of any ``data``: a session raises HostError for that.
        """
        ...


MemoryType = Literal["write-back", "write-combine", "uncached"]
"""How the processor caches memory that is mapped: as the mapping must have it."""


class MapContext(NamedTuple):
    """What a file may be mapped as, once: ``length`` bytes from offset 0, with that ``memory_type``."""

    length: int
    memory_type: MemoryType


@dataclass(slots=True, eq=False)
class File:
    """One open file of the guest.

    ``kind``: what it is. ``host_fd``: the host's descriptor for it. ``control_device``: for a frontend file,
    whether it is /dev/nvidiactl. ``mapping``: what it may be mapped as, once a call has said so.
    ``references`` counts descriptors and mappings: the clients of a frontend file live as long as either
    (frontend_mmap.go). ``pins``: (address, size) of guest pages that the driver keeps pinned until the file is
    closed, for UVM's event trackers. Raises ValueError for another kind or a negative descriptor, TypeError for
    a descriptor that is no int.
    """

    kind: FileKind
    host_fd: int
    control_device: bool = True
    mapping: MapContext | None = None
    references: int = 1
    pins: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ValueError(f"File(kind={self.kind!r}): want one of {', '.join(_KINDS)}")
        descriptor("File(host_fd={})", self.host_fd)


_KINDS = get_args(FileKind)


class FdTable(Protocol):
    """The guest's descriptors."""

    def get(self, fd: int, /) -> File | None:
        """The file behind a descriptor, None if it is not open."""
        ...

    def install(self, file: File, /) -> int:
        """Give a file the lowest free number. Raises OSError with the errno for the guest."""
        ...

    def remove(self, fd: int, /) -> File | None:
        """Take a number away, as close(2) does."""
        ...


class Files(dict[int, File]):
    """The plain FdTable: numbers to files. Take them away with `remove`, which knows where the lowest free
    number may be.

    What is put in must be a File (TypeError) under a descriptor that a guest can have (TypeError, ValueError).
    """

    _lowest = 0

    def __init__(self, files: Mapping[int, File] | Iterable[tuple[int, File]] = (), /) -> None:
        super().__init__()
        self.update(files)

    def __setitem__(self, fd: int, file: File, /) -> None:
        descriptor("Files[{}]", fd)
        if not isinstance(file, File):
            raise TypeError(f"Files[{fd}] = {file!r}: want a File, such as File('frontend', host_fd); got {a(file)}")
        super().__setitem__(fd, file)

    def update(self, files: Mapping[int, File] | Iterable[tuple[int, File]] = (), /) -> None:  # type: ignore[override]
        """Put these in."""
        for fd, file in dict(files).items():
            self[fd] = file

    def install(self, file: File) -> int:
        """Give a file the lowest free number, from 0."""
        fd = self._lowest
        while fd in self:
            fd += 1
        self[fd] = file
        self._lowest = fd + 1
        return fd

    def remove(self, fd: int) -> File | None:
        """Take a number away; the file that had it, None if it is not open."""
        file = self.pop(fd, None)
        if file is not None:
            self._lowest = min(self._lowest, fd)
        return file


class Result(NamedTuple):
    """What a system call answers, and what the embedder may now let go.

    ``ret``: 0, or -1 with an ``errno``. ``decision``: what the policy and the session decided, None where the
    argument could not be read or written or the descriptor takes no such call. ``unpin``: (address, size) of
    guest pages that need no longer stay pinned. ``close``: host descriptors that nothing of the guest refers
    to any more.
    """

    ret: int
    errno: int
    decision: Decision | None = None
    unpin: tuple[tuple[int, int], ...] = ()
    close: tuple[int, ...] = ()


class Process(Protocol):
    """What the calls of a session share: its ports, its objects, and what its next Result lets go.

    ``frontend``, ``uvm``, ``controls`` and ``classes`` are the policy's entries by number. ``passed`` has the
    result of every command, seen so far, that is passed on whole whatever its parameters are. ``unpin`` and
    ``close_host`` become the fields of the next Result. ``events`` is None but for the hardened profile.
    """

    policy: Policy
    memory: GuestMemory
    fds: FdTable
    host: Host
    graph: Graph
    events: Events | None
    unpin: list[tuple[int, int]]
    close_host: list[int]
    controls: Mapping[int, Entry]
    passed: dict[int, Result]
    classes: Mapping[int, Entry]
