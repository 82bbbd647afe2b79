"""One ioctl's bytes in another process: the argument, its parameters, and the buffers behind their pointers, before and after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from nvproxy_model import ioctl
from nvproxy_model.trace.devices import device_kind, ioctl_kind
from nvproxy_model.trace.format import TRUNCATED
from nvproxy_model.trace.record import table
from nvproxy_model.trace.record.table import Entry

__all__ = ["Arguments", "Looked", "Read"]

Read = Callable[[int, int], bytes | None]
"""(address, size) -> bytes of the process; None where it has none."""

_MAX_PARAMS: Final = 1 << 20
_MAX_BUFFERS: Final = 1 << 20
_KINDS: Final = {table.CONTROL: "control", table.ALLOC: "alloc"}


class _Piece(NamedTuple):
    """Where a part of the argument lies, and what it held before the call."""

    address: int
    data: bytes


class Looked(NamedTuple):
    """One call before it happens: its record so far, and where its bytes are."""

    record: dict[str, Any]
    top: _Piece | None
    par: _Piece | None
    bufs: list[tuple[int, _Piece]]
    status: int
    """Offset of the NV status in the argument, or table.NONE."""


class Arguments:
    """Reads calls by the tables of a driver release. Without ``values`` records hold numbers, sizes and statuses only."""

    def __init__(self, entries: Sequence[Entry], values: bool = True) -> None:
        self.values = values
        self._entries = {(e.space, e.number, e.size if e.space == table.FRONTEND else 0): e for e in entries}

    def before(self, read: Read, device: str, fd: int, number: int, address: int) -> Looked:
        """What a call on a device is about to ask."""
        kind = ioctl_kind(device)
        frontend = device_kind(device) == "frontend"
        key = number & 0xFF if frontend else number
        space = table.FRONTEND if frontend else table.UVM
        size = ioctl.size(number) if kind != "uvm" else 0
        entry = self._entries.get((space, key, size)) if kind != "other" else None
        if kind == "uvm" and entry is not None:
            size = entry.size
        record: dict[str, Any] = {"k": "ioctl", "fd": fd, "dev": device, "req": hex(number)}
        top = _piece(read, address, size) if size else None
        if top is None and size:
            record["fault"] = True
        par = None
        bufs: list[tuple[int, _Piece]] = []
        if entry is not None and top is not None:
            bufs += self._buffers(read, entry, top.data)
            if entry.params_offset != table.NONE:
                kind = _KINDS[entry.inner]
                key = int.from_bytes(top.data[entry.key_offset : entry.key_offset + 4], "little")
                par, inner = self._parameters(read, entry, top.data, key, record)
                if inner is not None and par is not None:
                    bufs += self._buffers(read, inner, par.data)
        record |= {"kind": kind, "key": hex(key)}
        if self.values:
            for name, piece in (("top0", top), ("par0", par)):
                if piece is not None:
                    record[name] = piece.data.hex()
            if bufs:
                record["bufs"] = [[offset, piece.data.hex()] for offset, piece in bufs]
        return Looked(record, top, par, bufs, entry.status_offset if entry is not None else table.NONE)

    def after(self, read: Read, looked: Looked, ret: int, error: int) -> dict[str, Any]:
        """The record of the same call once it has returned."""
        record, top, par, bufs, status = looked
        record["ret"] = ret
        if error:
            record["err"] = error
        after = read(top.address, len(top.data)) if top is not None else None
        if top is not None and after is None:
            record["fault"] = True
        if after is not None and status != table.NONE and not error:
            record["status"] = hex(int.from_bytes(after[status : status + 4], "little"))
        if self.values:
            if top is not None and after is not None and after != top.data:
                record["top1"] = after.hex()
            if par is not None:
                after = read(par.address, len(par.data))
                if after is not None and after != par.data:
                    record["par1"] = after.hex()
            for item, (_, piece) in zip(record.get("bufs", ()), bufs, strict=True):
                after = read(piece.address, len(piece.data))
                if after is not None and after != piece.data:
                    item.append(after.hex())
        return record

    def _parameters(
        self, read: Read, entry: Entry, top: bytes, key: int, record: dict[str, Any]
    ) -> tuple[_Piece | None, Entry | None]:
        address = int.from_bytes(top[entry.params_offset : entry.params_offset + 8], "little")
        size = 0
        if entry.size_offset != table.NONE:
            size = int.from_bytes(top[entry.size_offset : entry.size_offset + 4], "little")
        inner = self._entries.get((entry.inner, key, 0))
        if entry.inner == table.ALLOC and inner is not None and inner.size:
            size = inner.size
        if not address or not size:
            return None, inner
        kept = min(size, _MAX_PARAMS)
        if kept < size:
            record["fl"] = TRUNCATED
        if kept < size or not self.values:
            record["psize"] = size
        par = _piece(read, address, kept)
        if par is None:
            record["fault"] = True
        return par, inner

    @staticmethod
    def _buffers(read: Read, entry: Entry, data: bytes) -> list[tuple[int, _Piece]]:
        result: list[tuple[int, _Piece]] = []
        left = _MAX_BUFFERS
        for pointer in entry.pointers:
            address = int.from_bytes(data[pointer.offset : pointer.offset + 8], "little")
            count = pointer.fixed
            if pointer.count_offset != table.NONE:
                count = int.from_bytes(
                    data[pointer.count_offset : pointer.count_offset + pointer.count_width], "little"
                )
            if pointer.square:
                count *= count
            size = count * pointer.element
            if address and 0 < size <= min(pointer.limit, left):
                piece = _piece(read, address, size)
                if piece is not None:
                    result.append((pointer.offset, piece))
                    left -= size
        return result


def _piece(read: Read, address: int, size: int) -> _Piece | None:
    data = read(address, size)
    return None if data is None else _Piece(address, data)
