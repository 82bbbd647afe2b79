"""The little of ELF that the launcher, the doctor and conform read: headers, wherever they lie, and exported names."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

PT_LOAD, PT_DYNAMIC, PT_INTERP = 1, 2, 3
ET_EXEC, ET_DYN = 2, 3
_CLASSES = {1: 32, 2: 64}
_MACHINES = {3: "i386", 40: "arm", 62: "x86-64", 183: "aarch64"}
_MOST_HEADERS = 1024


class ElfError(ValueError):
    """Not an ELF image that can be read; the message says why."""


@dataclass(frozen=True)
class Header:
    """bits: 32 or 64. machine: e_machine. type: e_type."""

    bits: int
    machine: int
    type: int


@dataclass(frozen=True)
class Segment:
    """A program header. kind: p_type. offset: p_offset. address: p_vaddr. size: p_filesz, in bytes."""

    kind: int
    offset: int
    address: int
    size: int


def headers(read: Callable[[int, int], bytes | bytearray]) -> tuple[Header, list[Segment]]:
    """The header and the program headers of an image. read: (offset, size) -> exactly that; what it raises goes through.

    ElfError for what is not little-endian ELF, or has program headers of another size or more than 1,024.
    """
    ident = read(0, 16)
    if not ident.startswith(b"\x7fELF"):
        raise ElfError("not ELF")
    if ident[4] not in _CLASSES or ident[5] != 1:
        raise ElfError("neither 32-bit nor 64-bit little-endian ELF")
    wide = ident[4] == 2
    fields = struct.unpack("<HHIQQQIHHHHHH" if wide else "<HHIIIIIHHHHHH", read(16, 48 if wide else 36))
    kind, machine, at, entry_size, count = fields[0], fields[1], fields[4], fields[8], fields[9]
    if entry_size != (56 if wide else 32) or count > _MOST_HEADERS:
        raise ElfError("malformed program headers")
    segments = []
    for entry in struct.iter_unpack(
        "<IIQQQQQQ" if wide else "<IIIIIIII", read(at, entry_size * count) if count else b""
    ):
        offset, address, size = (entry[2], entry[3], entry[5]) if wide else (entry[1], entry[2], entry[4])
        segments.append(Segment(entry[0], offset, address, size))
    return Header(_CLASSES[ident[4]], machine, kind), segments


@dataclass(frozen=True)
class Elf:
    """bits: 32 or 64. machine: e_machine. interpreter: PT_INTERP's path, None for a static or shared object."""

    bits: int
    machine: int
    interpreter: str | None

    @property
    def kind(self) -> str:
        """For people: "64-bit x86-64"."""
        return f"{self.bits}-bit {_MACHINES.get(self.machine, f'machine {self.machine}')}"


def _reader(file: BinaryIO) -> Callable[[int, int], bytes]:
    def read(offset: int, size: int) -> bytes:
        try:
            file.seek(offset)
        except (OverflowError, OSError):
            raise ElfError("truncated") from None
        data = file.read(size)
        if len(data) != size:
            raise ElfError("truncated")
        return data

    return read


def read(path: Path) -> Elf:
    """The header and interpreter of a file. ElfError, or OSError if it cannot be read."""
    with path.open("rb") as file:
        if file.read(4) != b"\x7fELF":
            raise ElfError("not ELF")
        exactly = _reader(file)
        header, segments = headers(exactly)
        interpreter = None
        for segment in segments:
            if segment.kind == PT_INTERP:
                if not 0 < segment.size <= 4096:
                    raise ElfError("malformed PT_INTERP")
                text = exactly(segment.offset, segment.size)
                interpreter = text.split(b"\0")[0].decode("utf-8", "surrogateescape")
        return Elf(header.bits, header.machine, interpreter)
