"""A record's bytes from the names of its fields, and the names back from its bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

from nvproxy_model import versions
from nvproxy_model.lifetime import Lineage

__all__ = ["Values"]

_Patch = tuple[str, int, bytes]
"""A field's path, where its bytes begin, and the bytes."""
_Bytes = (bytes, bytearray, memoryview)


class Values:
    """What a struct or union does with values by name; `nvproxy_model.fields` says what its members are.

    A scalar is an int, a nested record a mapping, an array a list; an array of one-byte elements is bytes. Where
    they are given, a tuple is as good as a list, a whole nested record may be its bytes, and the elements of an
    array that are not given are zero.

    ``driver`` names the release whose layout is meant, by its name or as a policy's ``version``; None is the
    layout at hand, which is the newest one for a struct as it is imported. Raises UnknownDriverVersion, and
    ValueError for a release that has no such record.
    """

    ctype: str | None
    members: list[Any]
    _origin: Any
    """The record that this one is a release's layout of; itself, if it is none."""

    def make(self, /, *, driver: str | Lineage | None = None, **fields: Any) -> bytes:
        """The record's bytes, zero but for these fields.

        Raises TypeError for a field that the layout does not have, with the nearest that it has, and for a value
        of the wrong type; ValueError for a number out of its type's range, for too many elements, and for members
        of a union that contradict each other.
        """
        record = self._in(driver)
        return record._with(bytes(record.sizeof()), fields)

    def edit(self, data: bytes, /, *, driver: str | Lineage | None = None, **fields: Any) -> bytes:
        """These bytes with other values in these fields; all else stays, padding as well. Raises as `make` and
        `read` do."""
        record = self._in(driver)
        record._measure(data)
        return record._with(data, fields)

    def read(self, data: bytes, /, *, driver: str | Lineage | None = None) -> dict[str, Any]:
        """The fields by name, in the order of declaration; of a union, every member. Raises ValueError for another
        number of bytes, TypeError for what is not bytes."""
        record = self._in(driver)
        record._measure(data)
        return record._names(bytes(data), 0)

    def sizeof(self) -> int:
        """Bytes, padding included."""
        raise NotImplementedError

    def _in(self, driver: str | Lineage | None) -> Values:
        if driver is None:
            return self
        node = versions.load().find(driver, allow_unsupported=True) if isinstance(driver, str) else driver
        if not hasattr(node, "descends_from"):
            raise TypeError(f"driver={driver!r}: want a release's name, such as '580.126.20', a policy's version, or None")
        if not self._origin.exists(node):
            there = self._releases(lambda _: True)
            raise ValueError(f"{self._origin.ctype}: driver {node} has none; it is in {there}")
        record: Values = self._origin.at(node)
        return record

    def _releases(self, wanted: Callable[[Any], bool]) -> str:
        """The first and the last release, by number, in which this record is ``wanted``; "" if none is."""
        tree = versions.load()
        found = [node for node in tree.values() if self._origin.exists(node) and wanted(self._origin.at(node))]
        ends = sorted((node.name for node in found), key=versions.numbers)
        return " to ".join(dict.fromkeys((ends[0], ends[-1]))) if ends else ""

    def _measure(self, data: object) -> None:
        if not isinstance(data, _Bytes):
            raise TypeError(f"{self.ctype}: want its {self.sizeof()} bytes, not an object of type {type(data).__name__}")
        if len(data) != self.sizeof():
            raise ValueError(f"{self.ctype} has {self.sizeof()} bytes, not {len(data)}")

    def _with(self, data: bytes, fields: Mapping[str, Any]) -> bytes:
        out, given = bytearray(data), bytearray(len(data))
        for path, at, raw in self._patches(fields, str(self.ctype), 0):
            span = slice(at, at + len(raw))
            if any(given[span]) and any(
                taken and old != new for taken, old, new in zip(given[span], out[span], raw, strict=True)
            ):
                raise ValueError(f"{path}: another member of the union sets these bytes to something else; give one of them")
            out[span] = raw
            given[span] = b"\1" * len(raw)
        return bytes(out)

    def _patches(self, fields: Mapping[str, Any], path: str, base: int) -> Iterator[_Patch]:
        members = {member.name: member for member in self.members}
        for name, value in fields.items():
            member = members.get(name)
            if member is None:
                raise TypeError(f"{path} has no field {name!r}{self._advice(name)}")
            yield from _laid(member.element, member.dims, value, f"{path}.{name}", base + member.offset)

    def _advice(self, name: str) -> str:
        from difflib import get_close_matches

        there = self._releases(lambda record: any(member.name == name for member in record.members))
        if there:
            return f" here; with driver={there} it has"
        names = {member.name.lower(): member.name for member in self.members}
        near = get_close_matches(str(name).lower(), names, 1)
        return f"; did you mean {names[near[0]]}?" if near else f"; it has {', '.join(names.values())}"

    def _names(self, data: bytes, base: int) -> dict[str, Any]:
        return {
            member.name: _taken(member.element, member.dims, data, base + member.offset) for member in self.members
        }


def _laid(element: Any, dims: Sequence[int], value: Any, path: str, at: int) -> Iterator[_Patch]:
    """Where the bytes of one member's value go."""
    if dims:
        yield from _array(element, dims, value, path, at)
    elif not isinstance(element, Values):
        yield path, at, _packed(element, value, path)
    elif isinstance(value, _Bytes):
        element._measure(value)
        yield path, at, bytes(value)
    elif isinstance(value, Mapping):
        yield from element._patches(value, path, at)
    else:
        raise TypeError(f"{path}: want a mapping of {element.ctype}'s fields, or its bytes; got {value!r}")


def _array(element: Any, dims: Sequence[int], value: Any, path: str, at: int) -> Iterator[_Patch]:
    count, *inner = dims
    size = element.sizeof() * prod(inner)
    flat = size == 1 and not isinstance(element, Values) and not inner
    if not (isinstance(value, _Bytes) and flat) and (not isinstance(value, Sequence) or isinstance(value, (str, bytes))):
        raise TypeError(f"{path}: want {'bytes or ' if flat else ''}a list of at most {count} elements; got {value!r}")
    if len(value) > count:
        raise ValueError(f"{path}: {len(value)} elements; it has {count}")
    if isinstance(value, _Bytes):
        yield path, at, bytes(value)
    else:
        for index, each in enumerate(value):
            yield from _laid(element, inner, each, f"{path}[{index}]", at + index * size)
    yield path, at + len(value) * size, bytes((count - len(value)) * size)


def _packed(element: Any, value: Any, path: str) -> bytes:
    if not hasattr(value, "__index__"):
        raise TypeError(f"{path}: want an int ({element.ctype}); got {value!r}")
    try:
        return struct.pack(element.fmtstr, value)
    except struct.error:
        bits = 8 * element.sizeof()
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if element.fmtstr[1].islower() else (0, (1 << bits) - 1)
        raise ValueError(f"{path} = {value}: {element.ctype} holds {low} to {high}") from None


def _taken(element: Any, dims: Sequence[int], data: bytes, at: int) -> Any:
    """One member's value out of the whole record's bytes."""
    if not dims:
        return element._names(data, at) if isinstance(element, Values) else _scalars(element, 1, data, at)[0]
    count, *inner = dims
    size = element.sizeof() * prod(inner)
    if inner or isinstance(element, Values):
        return [_taken(element, inner, data, at + index * size) for index in range(count)]
    return data[at : at + count] if size == 1 else list(_scalars(element, count, data, at))


def _scalars(element: Any, count: int, data: bytes, at: int) -> tuple[Any, ...]:
    return struct.unpack_from(f"<{count}{element.fmtstr[1]}", data, at)
