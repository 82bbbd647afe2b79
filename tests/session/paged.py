"""Guest memory in pages, some of which may be missing or read-only, as mmap(2) and mprotect(2) leave them."""

from __future__ import annotations

import errno

from nvproxy_model import MemoryFault

PAGE = 4096


class Paged:
    """Every page is mapped or not, and may be written or not. A write stops at the first page that may not be."""

    def __init__(self) -> None:
        self.pages: dict[int, bytearray] = {}
        self.read_only: set[int] = set()

    def map(self, address: int, size: int, *, writable: bool = True) -> None:
        for page in range(address // PAGE, -(-(address + size) // PAGE)):
            self.pages.setdefault(page, bytearray(PAGE))
            (self.read_only.discard if writable else self.read_only.add)(page)

    def protect(self, address: int) -> None:
        self.read_only.add(address // PAGE)

    def unmap(self, address: int) -> None:
        del self.pages[address // PAGE]

    def read(self, address: int, size: int) -> bytes:
        out = bytearray()
        while len(out) < size:
            page, at = divmod(address + len(out), PAGE)
            if page not in self.pages:
                raise MemoryFault(f"{address:#x}")
            out += self.pages[page][at : at + size - len(out)]
        return bytes(out)

    def write(self, address: int, data: bytes) -> None:
        done = 0
        while done < len(data):
            page, at = divmod(address + done, PAGE)
            if page not in self.pages or page in self.read_only:
                raise MemoryFault(f"{address + done:#x}")
            chunk = data[done : done + PAGE - at]
            self.pages[page][at : at + len(chunk)] = chunk
            done += len(chunk)


class Pinning(Paged):
    """The same with the optional port: pages are pinned, each once for each call, until they are unpinned."""

    def __init__(self) -> None:
        super().__init__()
        self.pinned: list[tuple[int, int]] = []

    def pin(self, address: int, size: int, writable: bool) -> int:
        for page in range(address // PAGE, (address + size) // PAGE):
            if page not in self.pages:
                return errno.EFAULT
            if writable and page in self.read_only:
                return errno.EPERM
        self.pinned.append((address, size))
        return 0
