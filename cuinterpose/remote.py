"""Another process's memory: its loaded objects, their symbols and the slots that the dynamic loader filled in.

Read with process_vm_readv from what is mapped, so deleted files and other mount namespaces do not matter. What is read
belongs to that process, which may be hostile: every size is bounded, and nonsense is an object that cannot be read.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from dataclasses import dataclass, field

_ET_DYN_OR_EXEC = (2, 3)
_PT_DYNAMIC = 2
_DT = {
    2: "PLTRELSZ",
    5: "STRTAB",
    6: "SYMTAB",
    7: "RELA",
    8: "RELASZ",
    10: "STRSZ",
    14: "SONAME",
    23: "JMPREL",
    0x6FFFFEF5: "GNU_HASH",
}
# JUMP_SLOT, GLOB_DAT and a word with an address
_SLOT_KINDS = {62: (7, 6, 1), 183: (1026, 1025, 257)}
_MOST = 128 << 20  # bytes of one table; libtorch's relocations take some ten MiB
_LONGEST_CHAIN = 1 << 16
_LONGEST_NAME = 64  # longer than any that is looked for
_libc = ctypes.CDLL(None, use_errno=True)


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


class Unreadable(Exception):
    """Something of the process that cannot be read; the message says what."""


def read_memory(pid: int, address: int, size: int) -> bytes:
    """Exactly size bytes. PermissionError, ProcessLookupError, or Unreadable for what is not mapped."""
    if not 0 < size <= _MOST:
        raise Unreadable(f"{size} bytes at {address:#x}")
    buffer = ctypes.create_string_buffer(size)
    local = _IoVec(ctypes.cast(buffer, ctypes.c_void_p), size)
    remote = _IoVec(address % 2**64, size)
    got = _libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
    if got < 0:
        error = OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        if isinstance(error, (PermissionError, ProcessLookupError)):
            raise error
    if got != size:
        raise Unreadable(f"{size} bytes at {address:#x}")
    return buffer.raw


@dataclass(frozen=True)
class Slot:
    """Where an object keeps the address of a symbol that it refers to."""

    symbol: str
    address: int
    value: int


@dataclass
class Object:
    """One loaded ELF object. symbols: what it defines, by name; slots: what it refers to."""

    path: str
    base: int
    end: int
    soname: str = ""
    symbols: dict[str, int] = field(default_factory=dict)
    slots: list[Slot] = field(default_factory=list)
    unreadable: str = ""

    @property
    def name(self) -> str:
        return self.soname or os.path.basename(self.path)

    def holds(self, address: int) -> bool:
        return self.base <= address < self.end


def _is_device(pid: int, path: str) -> bool:
    """A mapping of /dev/nvidia0 is no object, and reading it through another process's memory fails."""
    try:
        return path.startswith("/dev/") and stat.S_ISCHR(os.stat(f"/proc/{pid}/root{path}").st_mode)
    except OSError:
        return False


def objects(pid: int, names: frozenset[str]) -> list[Object]:
    """Every mapped ELF object, with those of its symbols and slots that names lists. OSError if the process is out of reach."""
    spans: dict[tuple[str, str], Object] = {}
    found = []
    current: Object | None = None
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            fields = line.rstrip("\n").split(maxsplit=5)
            if len(fields) < 6 or not fields[5].startswith("/"):
                continue
            start, end = (int(part, 16) for part in fields[0].split("-"))
            path, inode = fields[5].removesuffix(" (deleted)"), fields[4]
            if _is_device(pid, path):
                continue
            if int(fields[2], 16) == 0 and "r" in fields[1] and (current is None or start >= current.end):
                current = Object(path, start, end)
                spans[path, inode] = current
                found.append(current)
            elif (path, inode) in spans and spans[path, inode] is current:
                current.end = max(current.end, end)
    if not found:
        # An empty list means no right to look, or a kernel thread: never "nothing to report".
        raise PermissionError(f"/proc/{pid}/maps is empty")
    return [item for item in found if _fill(pid, item, names)]


def _fill(pid: int, item: Object, names: frozenset[str]) -> bool:
    """False: no ELF object after all."""
    try:
        header = read_memory(pid, item.base, 64)
        if not header.startswith(b"\x7fELF\2\1"):
            return False
        kind, machine = struct.unpack_from("<HH", header, 16)
        if kind not in _ET_DYN_OR_EXEC or machine not in _SLOT_KINDS:
            return False
        _read_dynamic(pid, item, header, machine, names)
    except Unreadable as error:
        item.unreadable = str(error)
    return True


def _read_dynamic(pid: int, item: Object, header: bytes, machine: int, names: frozenset[str]) -> None:
    table_at, entry_size, count = struct.unpack_from("<Q", header, 32)[0], *struct.unpack_from("<HH", header, 54)
    table = read_memory(pid, item.base + table_at, entry_size * count)
    dynamic = b""
    bias = item.base if struct.unpack_from("<H", header, 16)[0] == 3 else 0  # ET_DYN's addresses are relative
    for at in range(0, len(table) - 55, entry_size or len(table)):
        kind, _, _, address, _, size, _, _ = struct.unpack_from("<IIQQQQQQ", table, at)
        if kind == _PT_DYNAMIC:
            dynamic = read_memory(pid, bias + address, size)
    tags: dict[str, int] = {}
    for at in range(0, len(dynamic) - 15, 16):
        tag, value = struct.unpack_from("<QQ", dynamic, at)
        if tag == 0:
            break
        if tag in _DT:
            tags[_DT[tag]] = value
    if "STRTAB" not in tags or "SYMTAB" not in tags:
        return

    def address_of(tag: str) -> int:
        """glibc has written run-time addresses into a writable dynamic section."""
        return tags[tag] if tags[tag] >= bias else bias + tags[tag]

    strings = read_memory(pid, address_of("STRTAB"), tags.get("STRSZ", 0))

    def name(offset: int) -> str:
        return strings[offset : offset + _LONGEST_NAME].split(b"\0")[0].decode("utf-8", "replace")

    if "SONAME" in tags:
        item.soname = name(tags["SONAME"])
    relocations: list[tuple[int, int]] = []
    for tag, length in (("JMPREL", "PLTRELSZ"), ("RELA", "RELASZ")):
        if tag in tags and tags.get(length):
            table = read_memory(pid, address_of(tag), tags[length])
            relocations += [
                (place, info >> 32)
                for place, info, _ in struct.iter_unpack("<QQq", table[: len(table) // 24 * 24])
                if info & 0xFFFFFFFF in _SLOT_KINDS[machine]
            ]
    # No tag says how many symbols there are: as many as are referred to, and as are hashed.
    count = 1 + max((index for _, index in relocations), default=0)
    if "GNU_HASH" in tags:
        count = max(count, _hashed(pid, address_of("GNU_HASH")))
    symbols = read_memory(pid, address_of("SYMTAB"), count * 24)
    wanted: dict[int, str] = {}
    for index in range(count):
        offset, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", symbols, index * 24)
        if (text := name(offset)) in names:
            wanted[index] = text
            if section and value:
                item.symbols.setdefault(text, bias + value)
    for place, index in relocations:
        if index in wanted:
            value = struct.unpack("<Q", read_memory(pid, bias + place, 8))[0]
            item.slots.append(Slot(wanted[index], bias + place, value))


def _hashed(pid: int, at: int) -> int:
    """One more than the last symbol of a GNU hash table; 0 if it holds none."""
    buckets, first, words, _ = struct.unpack("<4I", read_memory(pid, at, 16))
    at += 16 + words * 8
    last: int = max(struct.unpack(f"<{buckets}I", read_memory(pid, at, buckets * 4)))
    if last < first:
        return 0
    at += buckets * 4
    end = last + _LONGEST_CHAIN
    while not struct.unpack("<I", read_memory(pid, at + (last - first) * 4, 4))[0] & 1:
        last += 1
        if last == end:
            raise Unreadable(f"a hash chain at {at:#x} without an end")
    return last + 1
