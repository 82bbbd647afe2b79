"""A trace without what identifies the machine: GPU UUIDs, serial numbers, addresses, the command line.

Each distinct value gets its own replacement, the same at every place, so that the trace still compares and replays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from nvproxy_model.fields import OpaquePointer, Role, UserPointer
from nvproxy_model.layout import Leaf
from nvproxy_model.trace.decode.catalog import Catalog, Shape
from nvproxy_model.trace.format import Header, Record, writing
from nvproxy_model.trace.reader import Reader, TraceError

__all__ = ["Scrubber", "scrub"]

_UUID: Final = re.compile(rb"(GPU|MIG)-([0-9a-f]{8})-([0-9a-f]{4})-([0-9a-f]{4})-([0-9a-f]{4})-([0-9a-f]{12})")
_UUID_TYPES: Final = ("NvUuid", "NvProcessorUuid", "NvUUID")
_SERIAL: Final = re.compile(r"serial", re.IGNORECASE)
_LIMIT: Final = 100_000
_PAGE: Final = 4096
_BASE: Final = 0x7000_0000_0000


class Scrubber:
    """Two passes: `learn` every record, then `clean` it."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.uuids: dict[bytes, bytes] = {}
        self.serials: dict[bytes, bytes] = {}
        self.pages: dict[int, int] = {}
        self.replaced = 0
        self._places: dict[int, tuple[list[Leaf], list[Leaf], list[Leaf]]] = {}
        self._all: re.Pattern[bytes] | None = None
        self._kept: list[Shape] = []

    # What to look for

    def _fields(self, shape: Shape) -> tuple[list[Leaf], list[Leaf], list[Leaf]]:
        """The leaves of a struct that hold UUIDs, serial numbers and addresses."""
        found = self._places.get(id(shape))
        if found is None:
            uuids, serials, addresses = [], [], []
            for leaf in shape.leaves:
                if "[]" in leaf.path:
                    continue
                role: Role | None = shape.roles.get(leaf.path)
                if leaf.base == "ptr" or isinstance(role, (UserPointer, OpaquePointer)):
                    addresses.append(leaf)
                elif _SERIAL.search(leaf.path) and leaf.base in ("u8", "s8", "u64"):
                    serials.append(leaf)
                elif leaf.size == 16 and (leaf.path.endswith(".uuid") or "uuid" in leaf.path.lower()):
                    uuids.append(leaf)
            self._kept.append(shape)
            found = self._places[id(shape)] = uuids, serials, addresses
        return found

    def _pieces(self, rec: Record) -> Iterator[tuple[Shape, bytes]]:
        if rec.k != "ioctl" or rec.kind == "other":
            return
        outer = self.catalog.outer(rec)
        inner = self.catalog.shape(rec.kind, rec.key) if rec.kind in ("control", "alloc") else None
        for shape, pair in ((outer, (rec.top0, rec.top1)), (inner, (rec.par0, rec.par1))):
            if shape is not None:
                for data in pair:
                    if data is not None and len(data) >= shape.size:
                        yield shape, data

    def learn(self, rec: Record) -> None:
        """Collect the values of one record."""
        for data in (rec.top0, rec.top1, rec.par0, rec.par1, *(b for _, *pair in rec.bufs for b in pair)):
            if data and b"-" in data:
                for match in _UUID.finditer(data):
                    self._uuid(bytes.fromhex(b"".join(match.groups()[1:]).decode()))
        for shape, data in self._pieces(rec):
            uuids, serials, addresses = self._fields(shape)
            for leaf in uuids:
                value = data[leaf.offset : leaf.offset + 16]
                if any(value):
                    self._uuid(value)
            for leaf in serials:
                value = data[leaf.offset : leaf.offset + leaf.size].rstrip(b"\0")
                if len(value) >= 4 and len(self.serials) < _LIMIT:
                    self.serials.setdefault(value, _digits(len(self.serials) + 1, len(value)))
            for leaf in addresses:
                self._address(int.from_bytes(data[leaf.offset : leaf.offset + 8], "little"))

    def _uuid(self, value: bytes) -> None:
        if value not in self.uuids and len(self.uuids) < _LIMIT:
            self.uuids[value] = b"\0\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd" + (
                len(self.uuids) + 1
            ).to_bytes(2, "big")

    def _address(self, value: int) -> int:
        """The same offset in a page of our own for each page of the program's."""
        if value < _PAGE:
            return value
        page = self.pages.get(value // _PAGE)
        if page is None:
            if len(self.pages) >= _LIMIT * 10:
                self.pages.clear()
            page = self.pages[value // _PAGE] = len(self.pages) + 1
        return _BASE + page * _PAGE + value % _PAGE

    # Replacing

    def _replacement(self, match: re.Match[bytes]) -> bytes:
        self.replaced += 1
        found = match[0]
        if found in self.uuids:
            return self.uuids[found]
        if found in self.serials:
            return self.serials[found]
        text = _UUID.fullmatch(found)
        assert text is not None
        new = self.uuids[bytes.fromhex(b"".join(text.groups()[1:]).decode())].hex()
        return text[1] + f"-{new[:8]}-{new[8:12]}-{new[12:16]}-{new[16:20]}-{new[20:]}".encode()

    def _pattern(self) -> re.Pattern[bytes]:
        if self._all is None:
            known = [re.escape(value) for value in (*self.uuids, *self.serials)]
            self._all = re.compile(
                b"|".join([_UUID.pattern.replace(b"(", b"(?:").replace(b"(?:?:", b"(?:"), *known]), re.DOTALL
            )
        return self._all

    def _bytes(self, data: bytes, shape: Shape | None) -> bytes:
        new = self._pattern().sub(self._replacement, data)
        if shape is None or len(data) < shape.size:
            return new
        out = bytearray(new)
        for leaf in self._fields(shape)[2]:
            old = int.from_bytes(data[leaf.offset : leaf.offset + 8], "little")
            changed = self._address(old)
            if changed != old:
                self.replaced += 1
                out[leaf.offset : leaf.offset + 8] = changed.to_bytes(8, "little")
        return bytes(out)

    def clean(self, rec: Record) -> dict[str, Any]:
        """One record's JSON object, cleaned."""
        obj = dict(rec.raw)
        outer = self.catalog.outer(rec) if rec.k == "ioctl" and rec.kind != "other" else None
        inner = self.catalog.shape(rec.kind, rec.key) if rec.kind in ("control", "alloc") else None
        for name, shape in (("top0", outer), ("top1", outer), ("par0", inner), ("par1", inner)):
            data = getattr(rec, name)
            if data:
                obj[name] = self._bytes(data, shape).hex()
        if rec.bufs:
            obj["bufs"] = [[at, *(self._bytes(b, None).hex() for b in pair if b is not None)] for at, *pair in rec.bufs]
        for name in ("addr", "va"):
            if isinstance(obj.get(name), int):
                obj[name] = self._address(obj[name])
        if rec.k == "process":
            obj["command"] = _command(obj.get("command"))
        if rec.k == "exec" and isinstance(rec.dev, str):
            obj["path"] = rec.dev.rpartition("/")[2]
        return obj


def _digits(number: int, size: int) -> bytes:
    return str(number).rjust(size, "0").encode()[-size:]


def _command(words: Any) -> list[str]:
    return [str(words[0]).rpartition("/")[2]] if isinstance(words, list) and words else []


def scrub(source: Path, output: Path, catalog: Catalog) -> tuple[Reader, Scrubber]:
    """Write ``source`` cleaned to ``output``. The second reader, for its problems, and the scrubber.

    Raises TraceError, for a source that cannot be read twice too.
    """
    if str(source) == "-":
        raise TraceError("standard input cannot be read twice: scrub a file")
    scrubber = Scrubber(catalog)
    first = Reader(source)
    for rec in first:
        scrubber.learn(rec)
    head = first.header
    clean = Header(
        driver=first.driver,
        arch=head.arch,
        recorder=head.recorder,
        command=tuple(_command(list(head.command))),
        values=head.values,
    )
    second = Reader(source)
    with writing(output, clean, inputs=(source,)) as writer:
        for rec in second:
            writer.put({**scrubber.clean(rec), "pid": rec.pid})
        writer.lose(second.problems)
    return second, scrubber
