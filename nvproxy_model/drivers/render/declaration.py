"""A struct's layout as a C declaration, written from the facts: names, types, sizes, with its paddings checked."""

from __future__ import annotations

from collections.abc import Iterator

from nvproxy_model.layout import Field, Layout

__all__ = ["declaration", "holes", "picture"]

_STDINT = {
    "u8": "uint8_t",
    "u16": "uint16_t",
    "u32": "uint32_t",
    "u64": "uint64_t",
    "s8": "int8_t",
    "s16": "int16_t",
    "s32": "int32_t",
    "s64": "int64_t",
    "f32": "float",
    "f64": "double",
    "ptr": "uint64_t",
}


def picture(layout: Layout, prefix: str = "", base: int = 0) -> Iterator[tuple[str, int, int, Field | None]]:
    """(dotted path, offset, size, member) of every member at any depth in the order of declaration, and of every hole
    between members, for which the member is None. An array of records is walked once, as ``name[]``."""
    end = 0
    for field in layout.fields:
        if layout.kind == "struct":
            if field.offset > end:
                yield f"{prefix}(hole)", base + end, field.offset - end, None
            end = max(end, field.offset + field.size)
        yield prefix + field.name, base + field.offset, field.size, field
        if field.record is not None:
            yield from picture(field.record, f"{prefix}{field.name}{'[]' * len(field.dims)}.", base + field.offset)
    if layout.kind == "struct" and layout.size > end:
        yield f"{prefix}(hole)", base + end, layout.size - end, None


def holes(layout: Layout) -> Iterator[tuple[int, int]]:
    """(offset, size) of the bytes of a struct that no direct member covers, the tail included."""
    return ((offset, size) for path, offset, size, field in picture(layout) if field is None and "." not in path)


def declaration(layout: Layout) -> str:
    """A C11 declaration that a compiler for LP64 lays out like this, with assertions of size and offsets.

    It stands alone: scalars are stdint's (pointers, which are 64 bits on every driver, are uint64_t), records of fields
    are nested. NVIDIA's type is in a comment where it says more.
    """
    lines = ["#include <assert.h>", "#include <stddef.h>", "#include <stdint.h>", ""]
    lines += _record(layout, 0, f"{layout.kind} {layout.name}", "")
    lines[-1] += ";"
    subject = f"{layout.kind} {layout.name}"
    lines.append(f'static_assert(sizeof({subject}) == {layout.size}, "size of {layout.name}");')
    for field in layout.fields:
        if not field.name.startswith("<") and ":" not in field.type:
            lines.append(
                f'static_assert(offsetof({subject}, {field.name}) == {field.offset}, "offset of {field.name}");'
            )
    return "\n".join(lines) + "\n"


def _record(layout: Layout, depth: int, head: str, tail: str) -> list[str]:
    pad = "    " * depth
    lines = [f"{pad}{head} {{"]
    end, padding = 0, 0
    forced = layout.align
    for field in layout.fields:
        if layout.kind == "struct":
            natural = -(-end // _align(field)) * _align(field)
            if field.offset > natural:
                # A member that the header aligns beyond its type (NV_ALIGN_BYTES): say so rather than pad.
                lines.append(f"{pad}    uint8_t _pad{padding}[{field.offset - end}];")
                padding += 1
            end = field.offset + field.size
        lines += _member(field, depth + 1)
    if layout.kind == "struct" and layout.fields:
        natural = -(-end // max(map(_align, layout.fields))) * max(map(_align, layout.fields))
        if layout.size > natural:
            lines.append(f"{pad}    uint8_t _pad{padding}[{layout.size - end}];")
    own = max(map(_align, layout.fields), default=1)
    attribute = f" __attribute__((aligned({forced})))" if forced > own else ""
    lines.append(f"{pad}}}{tail}{attribute}")
    return lines


def _align(field: Field) -> int:
    if field.record is not None:
        return field.record.align
    if field.base == "ptr":
        return 8
    return max(1, int(field.base[1:]) // 8)


def _member(field: Field, depth: int) -> list[str]:
    pad = "    " * depth
    dims = "".join(f"[{length}]" for length in field.dims)
    if field.record is not None:
        name = "" if field.name.startswith("<") else f" {field.name}"
        lines = _record(field.record, depth, field.record.kind, f"{name}{dims}")
        comment = "" if field.type.startswith("<") else f"  /* {field.type} */"
        lines[-1] += f";{comment}"
        return lines
    bits = field.type.rpartition(":")[2] if ":" in field.type else ""
    if bits:
        width = bits.partition("@")[0]
        return [f"{pad}{_STDINT[field.base]} {field.name} : {width};"]
    return [f"{pad}{_STDINT.get(field.base, 'uint8_t')} {field.name}{dims};  /* {field.type} */"]
