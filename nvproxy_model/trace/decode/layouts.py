"""From a layout to a reader of its bytes: a generated function for speed, and the same through construct as its oracle.

Values: integers; a pointer is an integer; an array is a list, of lists where C has dimensions; an array of bytes is a hex
string; an array of ``char`` is text up to its NUL; a record is a dict, an anonymous member named ``<union@offset>``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any, Final

from nvproxy_model.layout import Field, Layout

__all__ = ["changes", "partial", "reader", "through_construct"]

Fields = dict[str, Any]

_FORMAT: Final = {
    **{"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "ptr": "Q"},
    **{"s8": "b", "s16": "h", "s32": "i", "s64": "q", "f32": "f", "f64": "d"},
}


def _bytes_like(field: Field) -> bool:
    return bool(field.dims) and field.base in ("u8", "s8")


def _text(data: bytes) -> str:
    return data.split(b"\0", 1)[0].decode("latin-1")


def _split(values: list[Any], dims: tuple[int, ...]) -> list[Any]:
    for size in reversed(dims[1:]):
        values = [values[at : at + size] for at in range(0, len(values), size)]
    return values


def _rows(data: bytes, dims: tuple[int, ...], of: Callable[[bytes], str]) -> Any:
    if len(dims) == 1:
        return of(data)
    size = dims[-1]
    return _split([of(data[at : at + size]) for at in range(0, len(data), size)], dims[:-1])


def _each(read: Callable[[bytes], Fields], data: bytes, starts: range) -> list[Fields]:
    """The records of an array, equal ones read once: most of this ABI's arrays are mostly zero."""
    known: dict[bytes, Fields] = {}
    values = []
    for at in starts:
        piece = data[at : at + starts.step]
        if piece not in known:
            known[piece] = read(piece)
        values.append(known[piece])
    return values


class _Writer:
    """Collects the gather formats and the expression of one record."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names
        self.lines: list[str] = []

    def bind(self, prefix: str, value: Any) -> str:
        name = f"{prefix}{len(self.names)}"
        self.names[name] = value
        return name

    def record(self, layout: Layout, base: int) -> str:
        if layout.kind == "union":
            return self._dict([(f.name, self._member(f, base)) for f in layout.fields])
        # Each union and array of records reads for itself; all that lies between them comes from one unpack.
        items: list[tuple[str, str]] = []
        self._gather(layout, base, items, var=f"t{len(self.lines)}")
        return self._dict(items)

    @staticmethod
    def _dict(items: list[tuple[str, str]]) -> str:
        return "{" + ", ".join(f"{name!r}: {value}" for name, value in items) + "}"

    def _member(self, field: Field, base: int) -> str:
        alone = Layout("", "struct", field.offset + field.size, 1, (field,))
        items: list[tuple[str, str]] = []
        self._gather(alone, base, items, var=f"t{len(self.lines)}")
        return items[0][1]

    def _gather(self, layout: Layout, base: int, items: list[tuple[str, str]], var: str) -> None:
        place = len(self.lines)
        self.lines.append("")
        state = _Gather(base)
        self._fields(layout, base, items, var, state)
        if state.count:
            name = self.bind("s", struct.Struct("<" + state.format).unpack_from)
            self.lines[place] = f"{var} = {name}(d, {base})"

    def _fields(self, layout: Layout, base: int, items: list[tuple[str, str]], var: str, state: _Gather) -> None:
        for field in layout.fields:
            at = base + field.offset
            if field.record is not None:
                items.append((field.name, self._record(field, at, var, state)))
            else:
                items.append((field.name, self._scalar(field, at, var, state)))

    def _record(self, field: Field, at: int, var: str, state: _Gather) -> str:
        layout = field.record
        assert layout is not None
        if field.dims:
            element = self.bind("e", reader(layout))
            size, count = layout.size, prod(field.dims)
            text = f"each({element}, d, range({at}, {at + size * count}, {size or 1}))"
            return f"split({text}, {field.dims!r})" if len(field.dims) > 1 else text
        if layout.kind == "union":
            return self.record(layout, at)
        inner: list[tuple[str, str]] = []
        self._fields(layout, at, inner, var, state)
        return self._dict(inner)

    def _scalar(self, field: Field, at: int, var: str, state: _Gather) -> str:
        count = prod(field.dims)
        if _bytes_like(field):
            slot = f"{var}[{state.take(at, field.size, f'{field.size}s', 1)}]"
            if len(field.dims) > 1:
                of = "text" if field.type == "char" else "bytes.hex"
                return f"rows({slot}, {field.dims!r}, {of})"
            return f"text({slot})" if field.type == "char" else f"{slot}.hex()"
        code = _FORMAT[field.base]
        if not field.dims:
            return f"{var}[{state.take(at, field.size, code, 1)}]"
        first = state.take(at, field.size, f"{count}{code}", count)
        text = f"list({var}[{first}:{first + count}])"
        return f"split({text}, {field.dims!r})" if len(field.dims) > 1 else text


class _Gather:
    """One struct format that reads scattered fields, in ascending order."""

    def __init__(self, base: int) -> None:
        self.at = base
        self.format = ""
        self.count = 0

    def take(self, at: int, size: int, code: str, values: int) -> int:
        if at > self.at:
            self.format += f"{at - self.at}x"
        self.format += code
        self.at = at + size
        first = self.count
        self.count += values
        return first


@lru_cache(maxsize=4096)
def reader(layout: Layout) -> Callable[[bytes], Fields]:
    """A function from at least ``layout.size`` bytes to the fields. The same values as `through_construct`, many times faster.

    Equal records of an array are one object: a caller who changes one changes all.
    """
    names: dict[str, Any] = {"text": _text, "split": _split, "rows": _rows, "each": _each}
    writer = _Writer(names)
    expression = writer.record(layout, 0)
    body = "".join(f"    {line}\n" for line in writer.lines if line)
    source = f"def read(d):\n{body}    return {expression}\n"
    exec(compile(source, f"<reader of {layout.name}>", "exec"), names)
    function: Callable[[bytes], Fields] = names["read"]
    return function


def through_construct(layout: Layout) -> Any:
    """The layout as a construct; ``parse`` gives Containers that compare equal to `reader`'s fields."""
    import construct

    if layout.kind == "union":
        parts = []
        for field in layout.fields:
            parts.append(field.name / construct.Pointer(lambda c, o=field.offset: c._at + o, _construct_field(field)))
        return construct.Struct("_at" / construct.Tell, *parts, construct.Padding(layout.size))
    parts, end = [], 0
    for field in layout.fields:
        if field.offset > end:
            parts.append(construct.Padding(field.offset - end))
        parts.append(field.name / _construct_field(field))
        end = field.offset + field.size
    if layout.size > end:
        parts.append(construct.Padding(layout.size - end))
    return construct.Struct(*parts)


def _construct_field(field: Field) -> Any:
    import construct

    dims = field.dims
    if field.record is not None:
        element = through_construct(field.record)
    elif _bytes_like(field):
        of = _text if field.type == "char" else bytes.hex
        element = construct.ExprAdapter(construct.Bytes(dims[-1]), lambda obj, _: of(obj), lambda obj, _: obj)
        dims = dims[:-1]
    else:
        code = _FORMAT[field.base]
        element = construct.FormatField("<", {"I": "L", "i": "l"}.get(code, code))
    for size in reversed(dims):
        element = element[size]
    return element


def partial(layout: Layout, data: bytes) -> Fields:
    """The fields that lie wholly within bytes that are too short for the struct."""
    result: Fields = {}
    for field in layout.fields:
        if field.offset + field.size <= len(data):
            one = Layout("", "struct", field.offset + field.size, 1, (field,))
            result |= reader(one)(data)
        elif field.record is not None and not field.dims and field.offset < len(data):
            inner = partial(field.record, data[field.offset :])
            if inner:
                result[field.name] = inner
    return result


def changes(before: Fields, after: Fields) -> Fields:
    """What differs in ``after``: nested as the fields are; of a list the changed elements under ``[i]``."""
    result: Fields = {}
    for name, new in after.items():
        old = before.get(name)
        if old == new:
            continue
        if isinstance(new, dict) and isinstance(old, dict):
            result[name] = changes(old, new)
        elif isinstance(new, list) and isinstance(old, list) and len(new) == len(old):
            result[name] = changes(_indexed(old), _indexed(new))
        else:
            result[name] = new
    return result


def _indexed(values: list[Any]) -> Fields:
    return {f"[{i}]": value for i, value in enumerate(values)}
