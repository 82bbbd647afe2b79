"""The little of ELF that the launcher, the doctor and conform read: headers, wherever they lie, and exported names."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

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


Read: TypeAlias = Callable[[int, int], bytes | bytearray]
"""(address or offset, size) -> exactly size bytes; what it raises goes through."""


def headers(read: Read) -> tuple[Header, list[Segment]]:
    """The header and the program headers of an image that read reads by offset.

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


_TAGS = {
    2: "PLTRELSZ",
    4: "HASH",
    5: "STRTAB",
    6: "SYMTAB",
    7: "RELA",
    8: "RELASZ",
    10: "STRSZ",
    14: "SONAME",
    23: "JMPREL",
    0x6FFFFEF5: "GNU_HASH",
}
_LONGEST_CHAIN = 1024


def tags(dynamic: bytes | bytearray) -> dict[str, int]:
    """The entries of a 64-bit dynamic section that are read here, by name without DT_."""
    found = {}
    for tag, value in struct.iter_unpack("<QQ", dynamic[: len(dynamic) // 16 * 16]):
        if tag == 0:
            break
        if tag in _TAGS:
            found[_TAGS[tag]] = value
    return found


def hashed(read: Read, at: int) -> int:
    """One more than the last symbol of the GNU hash table at an address; 0 if it holds none. ElfError if it has no end."""
    buckets, first, words, _ = struct.unpack("<4I", read(at, 16))
    at += 16 + words * 8
    last: int = max(memoryview(read(at, buckets * 4)).cast("I"), default=0)
    if last < first:
        return 0
    at += buckets * 4
    end = last + _LONGEST_CHAIN
    while not struct.unpack("<I", read(at + (last - first) * 4, 4))[0] & 1:
        last += 1
        if last == end:
            raise ElfError(f"a hash chain at {at:#x} without an end")
    return last + 1


def exports(path: Path) -> list[str]:
    """The functions that a 64-bit shared object exports, sorted. ElfError, or OSError if it cannot be read."""
    with path.open("rb") as file:
        exactly = _reader(file)
        header, segments = headers(exactly)
        if header.bits != 64:
            raise ElfError("not 64-bit")

        def at(address: int, size: int) -> bytes:
            for segment in segments:
                if (
                    segment.kind == PT_LOAD
                    and segment.address <= address
                    and address + size <= segment.address + segment.size
                ):
                    return exactly(address - segment.address + segment.offset, size)
            raise ElfError(f"{size} bytes at {address:#x} are not in the file")

        dynamic = [segment for segment in segments if segment.kind == PT_DYNAMIC]
        found = tags(at(dynamic[0].address, dynamic[0].size)) if dynamic else {}
        if not {"STRTAB", "SYMTAB", "STRSZ"} <= found.keys():
            return []
        count = 0
        if "GNU_HASH" in found:
            count = hashed(at, found["GNU_HASH"])
        elif "HASH" in found:
            count = struct.unpack("<2I", at(found["HASH"], 8))[1]
        strings, names = at(found["STRTAB"], found["STRSZ"]), set()
        for name, info, _, section, _, _ in struct.iter_unpack(
            "<IBBHQQ", at(found["SYMTAB"], count * 24) if count else b""
        ):
            # STB_GLOBAL or STB_WEAK, defined; STT_FUNC or STT_GNU_IFUNC
            if info >> 4 in (1, 2) and section and info & 15 in (2, 10):
                names.add(strings[name : strings.find(0, name)].decode("utf-8", "surrogateescape"))
        return sorted(names)


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
    end = file.seek(0, io.SEEK_END)

    def read(offset: int, size: int) -> bytes:
        # Asked of the file first: an image may claim to be of any size.
        if not 0 <= offset <= end - size:
            raise ElfError("truncated")
        file.seek(offset)
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
