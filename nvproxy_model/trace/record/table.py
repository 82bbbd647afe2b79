"""The table that the recorder reads: where a call keeps its command, pointers, sizes and status in one driver release.

It is derived from the struct definitions and their roles, so that the recorder itself knows no ABI.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from nvproxy_model.abi.escapes import NV_ESC_IOCTL_XFER_CMD, NV_ESC_RM_ALLOC, NV_ESC_RM_CONTROL
from nvproxy_model.fields import CStruct, Scalar, Status, UserPointer
from nvproxy_model.trace.decode.catalog import Catalog

__all__ = ["Entry", "Pointer", "entries", "pack"]

NONE: Final = 0xFFFF
FRONTEND, UVM, CONTROL, ALLOC, OTHER = range(5)
_SPACES: Final = {"fe": FRONTEND, "uvm": UVM, "control": CONTROL, "alloc": ALLOC}
_POINTERS: Final = 4
_ENTRY: Final = struct.Struct("=IIIHHHHHH")
_POINTER: Final = struct.Struct("=HHBBHIII")
_MAGIC: Final = b"NVTT"
_FIELDS: Final = 256


class Pointer(NamedTuple):
    """A buffer: the offset of its pointer; the offset and width of its count, or a fixed count; element size; bytes at most."""

    offset: int
    count_offset: int
    count_width: int
    square: int
    element: int
    fixed: int
    limit: int


class Entry(NamedTuple):
    """One struct: struct entry of recorder/look.c."""

    space: int
    number: int
    size: int
    key_offset: int = NONE
    params_offset: int = NONE
    size_offset: int = NONE
    status_offset: int = NONE
    inner: int = OTHER
    pointers: tuple[Pointer, ...] = ()


def _pointers(record: CStruct) -> Iterator[Pointer]:
    places = {path: (offset, member.size) for path, offset, member in record.walk()}
    for path, offset, member in record.walk():
        role = member.role
        if not isinstance(role, UserPointer) or member.dims or role.to is None:
            continue
        count_offset, width, square, fixed = NONE, 0, 0, 0
        count: Any = role.count
        if isinstance(count, tuple):
            square, count = 1, count[1]
        if isinstance(count, int):
            fixed = count
        else:
            above = path.rpartition(".")[0]
            count_offset, width = places[f"{above}.{count}" if above else count]
        yield Pointer(offset, count_offset, width, square, role.to.sizeof(), fixed, min(role.limit, 0xFFFFFFFF))


def _status(record: CStruct) -> int:
    for _, offset, member in record.walk():
        if isinstance(member.role, Status):
            return offset
    return NONE


_WRAPPERS: Final[Mapping[int, tuple[int, str, str, str]]] = {
    NV_ESC_RM_CONTROL: (CONTROL, "cmd", "params", "paramsSize"),
    NV_ESC_RM_ALLOC: (ALLOC, "hClass", "pAllocParms", "paramsSize"),
}
"""The two escapes that carry a second number."""


def _frontend(number: int, record: CStruct) -> Entry:
    entry = Entry(FRONTEND, number, record.sizeof(), status_offset=_status(record), pointers=tuple(_pointers(record)))
    if number not in _WRAPPERS:
        return entry
    inner, key, params, size = _WRAPPERS[number]
    names = {member.name: member.offset for member in record.members}
    return entry._replace(
        key_offset=names[key],
        params_offset=names[params],
        size_offset=names.get(size, NONE),
        inner=inner,
        pointers=tuple(p for p in entry.pointers if p.offset != names[params]),
    )


def entries(catalog: Catalog) -> list[Entry]:
    """Every struct of a release that the model defines, and the sizes of those that only the recorded facts know."""
    result: dict[tuple[int, int, int], Entry] = {}

    def add(entry: Entry) -> None:
        size = entry.size if entry.space == FRONTEND else 0
        result.setdefault((entry.space, entry.number, size), entry)

    for kind, number, record in catalog.definitions():
        if isinstance(record, Scalar):
            add(Entry(_SPACES[kind], number, record.sizeof()))
        elif kind == "fe":
            add(_frontend(number, record))
        else:
            add(
                Entry(
                    _SPACES[kind],
                    number,
                    record.sizeof(),
                    status_offset=_status(record),
                    pointers=tuple(_pointers(record)),
                )
            )
    wrapper = catalog.shape("fe", NV_ESC_IOCTL_XFER_CMD)
    if wrapper is not None:
        places = {leaf.path: leaf for leaf in wrapper.leaves}
        size, pointer = places["size"], places["ptr"]
        inner = Pointer(pointer.offset, size.offset, size.size, 0, 1, 0, 1 << 14)
        add(Entry(FRONTEND, NV_ESC_IOCTL_XFER_CMD, wrapper.size, pointers=(inner,)))
    for kind, number, bytes_, status in catalog.sizes():
        add(Entry(_SPACES[kind], number, bytes_, status_offset=NONE if status is None else status))
    return [result[key] for key in sorted(result)]


def pack(table: list[Entry]) -> bytes:
    """What the recorder maps. Its own reader looks no further than 256 bytes into a struct for a field."""
    parts = [_MAGIC, struct.pack("=I", len(table))]
    for entry in table:
        places = [at for at in entry[3:6] if at != NONE] + [p.offset for p in entry.pointers]
        if any(at + 8 > _FIELDS for at in places):
            raise ValueError(
                f"a field of {entry.number:#x} lies beyond {_FIELDS} bytes: recorder/look.c reads no further"
            )
        pointers = entry.pointers[:_POINTERS]
        parts.append(_ENTRY.pack(*entry[:8], len(pointers)))
        for p in pointers:
            parts.append(
                _POINTER.pack(p.offset, p.count_offset, p.count_width, p.square, 0, p.element, p.fixed, p.limit)
            )
        parts.append(bytes(_POINTER.size * (_POINTERS - len(pointers))))
    return b"".join(parts)
