"""One Go struct against the driver's: members by place, size and kind, and the Go types that stand for a union's members."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from nvproxy_model.layout import Field, Layout

__all__ = ["VARIANT", "Difference", "Kind", "compare_layouts", "overlaid", "plain", "union_types"]

_PAD = re.compile(
    r"_|(pad|padding|reserved|rsvd)[0-9a-z]*|.*(_pad|_padding|_reserved|padding[0-9]*|reserved[0-9]*)", re.IGNORECASE
)
_GO_PAD = re.compile(r"_|[Pp]ad(ding)?\d*")
VARIANT = re.compile(r"_?V(\d{3})$")
"""The end of a Go type's name that says from which branch of the driver it is: X_V550."""

Kind = Literal[
    "number-differs",
    "name-missing",
    "struct-missing",
    "size-differs",
    "field-missing",
    "field-extra",
    "pointer-differs",
    "handle-differs",
    "sign-differs",
    "type-differs",
    "union-member-differs",
    "simple-pointer",
    "simple-fd",
    "simple-pid",
    "handler-struct",
    "rows-unmatched",
    "constant-differs",
    "version-unknown",
    "model-lacks",
    "gvisor-lacks",
    "model-refuses",
    "caps-differ",
    "struct-differs",
    "layout-differs",
    "name-differs",
    "number-unnamed",
    "caps-flip",
    "row-dropped",
    "no-struct-named",
    "newer",
    "contradicted",
    "model-only",
]
"""What differs; `nvproxy_model.drivers.gvisor.parity.KINDS` says it in words."""


class Difference(NamedTuple):
    """What differs between two sides, before it is known whose and when."""

    kind: Kind
    detail: str
    base: int | str | None
    next: int | str | None


def plain(name: str) -> str:
    """A name without what Go and C spell differently."""
    return name.replace("_", "").lower()


@dataclass(frozen=True, slots=True)
class _Span:
    path: str
    offset: int
    size: int
    type: str
    base: str
    pad: bool

    @property
    def end(self) -> int:
        return self.offset + self.size


def _spans(layout: Layout, prefix: str = "", base: int = 0) -> Iterator[_Span]:
    """Scalars and arrays of scalars; an array of records at its first element, and its whole extent as one span."""
    for member in layout.fields:
        path, offset = prefix + member.name, base + member.offset
        pad = _GO_PAD.fullmatch(member.name) is not None
        if member.record is None or member.base != "record":
            yield _Span(path, offset, member.size, member.type, member.base, pad)
            continue
        if member.dims:
            yield _Span(path + "[]" * len(member.dims), offset, member.size, "array", "record", pad)
        yield from _spans(member.record, path + "[]" * len(member.dims) + ".", offset)


def _extents(layout: Layout, base: int = 0) -> Iterator[tuple[int, int]]:
    """Offset and size of every member, records and unions included."""
    for member in layout.fields:
        yield base + member.offset, member.size
        if member.record is not None:
            yield from _extents(member.record, base + member.offset)


def compare_layouts(go: Layout, driver: Layout) -> Iterator[Difference]:
    """Differences of a Go layout (first value) from a driver's (second): (kind, detail, Go's, driver's).

    A Go byte array may stand for a whole record or union of the driver, a Go member for one member of a union.
    """
    if go.size != driver.size:
        yield Difference("size-differs", "size", go.size, driver.size)
    ours = list(_spans(go))
    theirs = list(_spans(driver))
    by_place: dict[tuple[int, int], list[_Span]] = {}
    for span in theirs:
        by_place.setdefault((span.offset, span.size), []).append(span)
    extents = set(_extents(driver)) | {(0, driver.size)}
    covered: list[tuple[int, int]] = []
    for span in ours:
        if span.pad:
            continue
        covered.append((span.offset, span.end))
        matches = by_place.get((span.offset, span.size))
        if matches:
            yield from _compare_span(span, _best(span, matches))
        elif not (span.base == "u8" and (span.offset, span.size) in extents):
            there = [t.path for t in theirs if t.offset < span.end and span.offset < t.end and not _is_padding(t)]
            has = ", ".join(there[:3]) or "nothing"
            detail = f"{span.path} at {span.offset}, {span.size} bytes; the driver has {has} there"
            yield Difference("field-extra", detail, span.offset, None)
    for span in theirs:
        if not _is_padding(span) and not any(start < span.end and span.offset < end for start, end in covered):
            yield Difference("field-missing", f"{span.path} at {span.offset}, {span.size} bytes", None, span.offset)


def _is_padding(span: _Span) -> bool:
    return _PAD.fullmatch(span.path.rpartition(".")[2]) is not None


def _best(span: _Span, matches: list[_Span]) -> _Span:
    """Of a union's members in one place the one with the Go member's kind and name."""
    wanted = plain(span.path.rpartition(".")[2])
    return min(matches, key=lambda m: (m.base != span.base, plain(m.path.rpartition(".")[2]) != wanted, m.path))


def _compare_span(ours: _Span, theirs: _Span) -> Iterator[Difference]:
    detail = f"{ours.path} at {ours.offset}, the driver's {theirs.path}"
    if (ours.base == "ptr") != (theirs.base == "ptr"):
        yield Difference("pointer-differs", detail, ours.type, theirs.type)
    elif (ours.type == "Handle") != (theirs.type == "NvHandle"):
        yield Difference("handle-differs", detail, ours.type, theirs.type)
    elif ours.base[1:] != theirs.base[1:]:
        if ours.base != "u8":  # bytes may stand for anything
            yield Difference("type-differs", detail, ours.type, theirs.type)
    elif ours.base != theirs.base and ours.base[1:] != "8":  # char is neither signed nor unsigned to either side
        yield Difference("sign-differs", detail, ours.type, theirs.type)
    left, right = (plain(span.path.rpartition(".")[2]) for span in (ours, theirs))
    # Go names drop NVIDIA's prefixes: Bar1Mapping is bBar1Mapping, InfoList is busInfoList.
    if not (left.endswith(right) or right.endswith(left)):
        yield Difference("name-differs", f"at {ours.offset}", ours.path, theirs.path)


def overlaid(go: Layout, driver: Layout) -> Iterator[Field]:
    """Members of the driver's unions that the Go type has as a byte array."""
    arrays = {(f.offset, f.size) for f in go.fields if f.base == "u8" and f.dims}
    for member in driver.fields:
        union = member.record
        if union is not None and union.kind == "union" and not member.dims and (member.offset, member.size) in arrays:
            yield from (inner for inner in union.fields if inner.record is not None)


def union_types(go_type: str, member: str, types: Mapping[str, Layout]) -> list[str]:
    """Go types named after a struct and one of its union's members: NVOS32_PARAMETERS, AllocSize -> NVOS32AllocSize."""
    stem = re.sub(r"(_?V\d{3})?$", "", go_type)
    stem = re.sub(r"_?(PARAMETERS|PARAMS|Parameters|Params)$", "", stem)
    return [name for name in types if plain(VARIANT.sub("", name)) == plain(stem + member)]
