"""The little of ELF that a launcher must know before it trusts LD_PRELOAD to the dynamic loader."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_PT_INTERP = 3
_CLASSES = {1: "32-bit", 2: "64-bit"}
_MACHINES = {3: "i386", 40: "arm", 62: "x86-64", 183: "aarch64"}
_MOST_HEADERS = 1024


class ElfError(ValueError):
    """Not an ELF file that can be read; the message says why."""


@dataclass(frozen=True)
class Elf:
    """bits: 32 or 64. machine: e_machine. interpreter: PT_INTERP's path, None for a static or shared object."""

    bits: int
    machine: int
    interpreter: str | None

    @property
    def kind(self) -> str:
        return f"{self.bits}-bit {_MACHINES.get(self.machine, f'machine {self.machine}')}"


def _exactly(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    data = file.read(size)
    if len(data) != size:
        raise ElfError("truncated")
    return data


def read(path: Path) -> Elf:
    """The header and interpreter of a file. ElfError, or OSError if it cannot be read."""
    with path.open("rb") as file:
        ident = file.read(16)
        if not ident.startswith(b"\x7fELF"):
            raise ElfError("not ELF")
        if len(ident) < 16 or ident[4] not in _CLASSES or ident[5] != 1:
            raise ElfError("neither 32-bit nor 64-bit little-endian ELF")
        wide = ident[4] == 2
        header = struct.unpack("<HHIQQQIHHHHHH" if wide else "<HHIIIIIHHHHHH", _exactly(file, 16, 48 if wide else 36))
        machine, offset, entry_size, count = header[1], header[4], header[8], header[9]
        interpreter = None
        if entry_size != (56 if wide else 32) or count > _MOST_HEADERS:
            raise ElfError("malformed program headers")
        table = _exactly(file, offset, entry_size * count)
        for at in range(0, len(table), entry_size):
            if wide:
                kind, _, start, _, _, size = struct.unpack_from("<IIQQQQ", table, at)
            else:
                kind, start, _, _, size = struct.unpack_from("<IIIII", table, at)
            if kind == _PT_INTERP:
                if not 0 < size <= 4096:
                    raise ElfError("malformed PT_INTERP")
                interpreter = _exactly(file, start, size).split(b"\0")[0].decode("utf-8", "surrogateescape")
        return Elf(64 if wide else 32, machine, interpreter)
