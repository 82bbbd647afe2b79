"""Another process's memory: its loaded objects, their symbols and the slots that the dynamic loader filled in.

Read with process_vm_readv from what is mapped, so deleted files and other mount namespaces do not matter. What is read
belongs to that process, which may be hostile: nonsense is an object that cannot be read, time and memory are linear in
what is read, and there is a bound to that for the process as a whole.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from . import elf

MOST_BYTES = 256 << 20  # of one process; all of torch's libraries have some 100 MiB of tables
MOST_OBJECTS = 4096
MOST_SLOTS = 4096  # that refer to a covered name
_LEAST = 4096  # what a read costs at least: the kernel maps a page for it
_LONGEST_NAME = 64  # longer than any that is looked for
# JUMP_SLOT, GLOB_DAT and a word with an address
_SLOT_KINDS = {62: (7, 6, 1), 183: (1026, 1025, 257)}
_RELA, _SYM = 24, 24  # bytes of an Elf64_Rela and an Elf64_Sym
_libc = ctypes.CDLL(None, use_errno=True)


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


class Unreadable(Exception):
    """Something of the process that cannot be read; the message says what."""


def read_memory(pid: int, address: int, size: int) -> bytearray:
    """Exactly size bytes. PermissionError, ProcessLookupError, or Unreadable for what is not mapped."""
    if not 0 < size <= MOST_BYTES:
        raise Unreadable(f"{size} bytes at {address:#x}")
    data = bytearray(size)
    local = _IoVec(ctypes.addressof(ctypes.c_char.from_buffer(data)), size)
    remote = _IoVec(address % 2**64, size)
    got = _libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
    if got < 0:
        error = OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        if isinstance(error, (PermissionError, ProcessLookupError)):
            raise error
    if got != size:
        raise Unreadable(f"{size} bytes at {address:#x}")
    return data


class Memory:
    """The memory of one process, of which no more than MOST_BYTES are read in all."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.left = MOST_BYTES

    def read(self, address: int, size: int) -> bytearray:
        """As read_memory. Unreadable once the limit is reached."""
        if max(size, _LEAST) > self.left:
            raise Unreadable(f"{size} bytes at {address:#x} would exceed the {MOST_BYTES >> 20} MiB read of a process")
        self.left -= max(size, _LEAST)
        return read_memory(self.pid, address, size)


@dataclass(frozen=True)
class Slot:
    """Where an object keeps the address of a symbol that it refers to."""

    symbol: str
    address: int
    value: int


@dataclass
class Object:
    """One loaded ELF object. symbols: what it defines, by name; slots: what it refers to; unreadable: why, or empty."""

    path: str
    base: int
    end: int
    soname: str = ""
    symbols: dict[str, int] = field(default_factory=dict)
    slots: list[Slot] = field(default_factory=list)
    unreadable: str = ""

    @property
    def name(self) -> str:
        """Its soname, or the name of its file."""
        return self.soname or os.path.basename(self.path)


def _mapped(memory: Memory) -> Iterator[Object]:
    """The mapped files that begin as ELF does, by address. Each one's end is right once the next is asked for."""
    current: tuple[str, str, Object] | None = None
    seen = False
    with open(f"/proc/{memory.pid}/maps", encoding="utf-8", errors="surrogateescape", newline="\n") as lines:
        for line in lines:
            fields = line.rstrip("\n").split(maxsplit=5)
            if len(fields) < 6 or not fields[5].startswith("/"):
                continue
            seen = True
            start, end = (int(part, 16) for part in fields[0].split("-"))
            path, inode = fields[5].removesuffix(" (deleted)"), fields[4]
            if int(fields[2], 16) == 0 and "r" in fields[1] and (current is None or start >= current[2].end):
                item = Object(path, start, end)
                try:
                    magic = memory.read(start, 4)
                except Unreadable as error:
                    if path.startswith("/dev/") and not path.startswith("/dev/shm/"):
                        continue  # a device's memory: no object, and it cannot be read this way
                    item.unreadable, magic = str(error), bytearray(b"\x7fELF")
                if magic == b"\x7fELF":
                    if current:
                        yield current[2]
                    current = path, inode, item
            elif current and (path, inode) == current[:2]:
                current[2].end = max(current[2].end, end)
    if current:
        yield current[2]
    if not seen:
        # An empty list means no right to look, or a kernel thread: never "nothing to report".
        raise PermissionError(f"/proc/{memory.pid}/maps is empty")


def objects(pid: int, names: frozenset[str]) -> tuple[list[Object], list[str]]:
    """Every mapped ELF object, by address, with those of its symbols and slots that names lists; what limits left out.

    OSError if the process is out of reach.
    """
    memory = Memory(pid)
    found: list[Object] = []
    beyond = 0
    for item in _mapped(memory):
        if len(found) < MOST_OBJECTS:
            found.append(item)
        else:
            beyond += 1
    left_out = [f"{beyond} objects beyond the first {MOST_OBJECTS}"] if beyond else []
    wanted = {name.encode(): name for name in names}
    slots = 0
    kept = []
    for item in found:
        if not item.unreadable and slots < MOST_SLOTS:
            try:
                if not _read_object(memory, item, wanted):
                    continue
            except (Unreadable, elf.ElfError) as error:
                item.unreadable = str(error)
        elif not item.unreadable:
            item.unreadable = f"not read: {MOST_SLOTS} references were found before"
        slots += len(item.slots)
        kept.append(item)
    return kept, left_out


def _read_object(memory: Memory, item: Object, names: dict[bytes, str]) -> bool:
    """False: not a 64-bit object of a machine that the shim is for, so nothing of it concerns the shim."""
    header, segments = elf.headers(lambda offset, size: memory.read(item.base + offset, size))
    if header.bits != 64 or header.type not in (elf.ET_EXEC, elf.ET_DYN) or header.machine not in _SLOT_KINDS:
        return False
    bias = item.base if header.type == elf.ET_DYN else 0  # ET_DYN's addresses are relative
    dynamic = bytearray()
    for segment in segments:
        if segment.kind == elf.PT_DYNAMIC:
            dynamic = memory.read(bias + segment.address, segment.size)
    tags = elf.tags(dynamic)
    if "STRTAB" in tags and "SYMTAB" in tags:
        _read_symbols(memory, item, bias, tags, names, _SLOT_KINDS[header.machine])
    return True


def _read_symbols(
    memory: Memory, item: Object, bias: int, tags: dict[str, int], names: dict[bytes, str], kinds: tuple[int, ...]
) -> None:
    def address_of(tag: str) -> int:
        """glibc has written run-time addresses into a writable dynamic section."""
        return tags[tag] if tags[tag] >= bias else bias + tags[tag]

    strings = memory.read(address_of("STRTAB"), tags.get("STRSZ", 0))

    def name(offset: int) -> bytes:
        end = strings.find(0, offset, offset + _LONGEST_NAME)
        return bytes(strings[offset : end if end >= 0 else offset + _LONGEST_NAME])

    if "SONAME" in tags:
        item.soname = name(tags["SONAME"]).decode("utf-8", "replace")
    relocations: list[memoryview[int]] = []
    for tag, length in (("JMPREL", "PLTRELSZ"), ("RELA", "RELASZ")):
        if tag in tags and tags.get(length, 0) >= _RELA:
            data = memory.read(address_of(tag), tags[length] // _RELA * _RELA)
            relocations.append(memoryview(data).cast("Q"))
    # No tag says how many symbols there are: as many as are referred to, and as are hashed.
    count = 1 + max((max(table[1::3]) >> 32 for table in relocations), default=0)
    if "GNU_HASH" in tags:
        count = max(count, elf.hashed(memory.read, address_of("GNU_HASH")))
    symbols = memory.read(address_of("SYMTAB"), count * _SYM)
    initials = {first[0] for first in names}
    wanted: dict[int, str] = {}
    for index, offset in enumerate(memoryview(symbols).cast("I")[:: _SYM // 4]):
        # most names begin otherwise: one look at a byte
        if offset < len(strings) and strings[offset] in initials and (text := names.get(name(offset))):
            if len(wanted) == MOST_SLOTS:
                raise Unreadable(f"more than {MOST_SLOTS} symbols with covered names")
            wanted[index] = text
            section, value = struct.unpack_from("<HQ", symbols, index * _SYM + 6)
            if section and value:
                item.symbols.setdefault(text, bias + value)
    for table in relocations:
        for entry, info in enumerate(table[1::3]):
            if info >> 32 in wanted and info & 0xFFFFFFFF in kinds:
                if len(item.slots) == MOST_SLOTS:
                    raise Unreadable(f"more than {MOST_SLOTS} references to covered names")
                place = bias + table[entry * 3]
                value = struct.unpack("<Q", memory.read(place, 8))[0]
                item.slots.append(Slot(wanted[info >> 32], place, value))
