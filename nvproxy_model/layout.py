"""Where the bytes of a C record are: one shape for what our definitions say and for what driver headers say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

__all__ = ["MAX_MEMBERS", "Field", "Layout", "Leaf", "RecordKind"]

MAX_MEMBERS: Final = 4096
"""Members of a record that is read from outside, counted with those of the records in it; the largest of any release has 350.

In a chain of structs, each of which holds the one before twice, the count doubles with each; a comparison looks at all.
"""

RecordKind = Literal["struct", "union"]


class Field(NamedTuple):
    """One member of a record.

    ``offset`` is in bytes from the start of the record that holds it. ``size`` is the whole member's, arrays
    included. An anonymous member is named ``<union@offset>`` or ``<struct@offset>``.
    """

    name: str
    offset: int
    size: int
    type: str
    """The element's type as NVIDIA spells it: ``NvU32``, ``NvHandle``, ``NvP64``, a typedef, an enum's name."""
    base: str
    """What the machine sees: ``u8`` .. ``u64``, ``s8`` .. ``s64``, ``f32``, ``f64``, ``ptr`` (NvP64 and C pointers), ``record``."""
    dims: tuple[int, ...] = ()
    """C array dimensions, outermost first; empty for a scalar."""
    record: Layout | None = None
    """The element's own layout when ``base`` is ``record``."""


class Leaf(NamedTuple):
    """A scalar, or an array of scalars, with its dotted path and its offset from the start of the outermost record."""

    path: str
    offset: int
    size: int
    type: str
    base: str
    dims: tuple[int, ...] = ()


class Layout(NamedTuple):
    """A struct or union: ``size`` and ``align`` in bytes, members in the order of declaration."""

    name: str
    kind: RecordKind
    size: int
    align: int
    fields: tuple[Field, ...]

    def leaves(self, prefix: str = "", base: int = 0) -> Iterator[Leaf]:
        """Every scalar below this record, in order. An array of records is walked once, as ``name[]``, at its first element."""
        for field in self.fields:
            path, offset = prefix + field.name, base + field.offset
            if field.record is None:
                yield Leaf(path, offset, field.size, field.type, field.base, field.dims)
            else:
                yield from field.record.leaves(path + ("[]" * len(field.dims)) + ".", offset)
