"""Which fields had other values in two runs, where the calls and their statuses were the same.

Handles, descriptors, addresses and statuses are left out: by their roles in the model's structs, by their types elsewhere, and by
NVIDIA's names for those that are typed as plain integers. They are other numbers in every run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from nvproxy_model.trace.decode.catalog import Catalog, Shape
from nvproxy_model.trace.format import CallKind, Record
from nvproxy_model.trace.study.stats import DISTINCT_LIMIT

__all__ = ["MANY", "ValueDifference", "Values", "compare_values"]

MANY: Final = 16
"""A field with more distinct values than that tells runs apart by chance: it is not compared."""

_OTHER_EVERY_TIME: Final = re.compile(r"(?:^|\.)(?:h[A-Z]\w*|owner|target|\w*(?:[bB]ase|[aA]ddress|VA|Va|Ptr))$")
"""hClient, owner (a client), base: handles and addresses by name (nvos.h, uvm_ioctl.h)."""

Key = tuple[CallKind, int, int | None]


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """One field of one call: the values that it had after the calls of each trace."""

    kind: CallKind
    number: int
    status: int | None
    struct: str
    path: str
    a: tuple[int, ...]
    b: tuple[int, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "number": self.number,
            "status": self.status,
            "struct": self.struct,
            "field": self.path,
            "a": list(self.a),
            "b": list(self.b),
        }


class Values:
    """The distinct values of every comparable scalar field, per call and status."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.seen: dict[tuple[Key, str, str], set[int]] = {}
        self._paths: dict[int, tuple[Shape, list[tuple[str, list[str]]]]] = {}

    def feed(self, records: Iterable[Record]) -> Values:
        for rec in records:
            if rec.k == "ioctl" and rec.kind != "other":
                self._one(rec)
        return self

    def _one(self, rec: Record) -> None:
        inner = rec.kind in ("control", "alloc")
        shape = self.catalog.shape(rec.kind, rec.key) if inner else self.catalog.outer(rec)
        data = rec.par if inner else rec.top
        if shape is None or data is None or len(data) < shape.size:
            return
        fields = shape.read(data)
        key = (*rec.number, rec.status)
        for path, parts in self._comparable(shape):
            value: Any = fields
            for part in parts:
                value = value[part]
            values = self.seen.get((key, shape.name, path))
            if values is None:
                if len(self.seen) >= DISTINCT_LIMIT:
                    return
                values = self.seen[key, shape.name, path] = set()
            if len(values) <= MANY:
                values.add(value)

    def _comparable(self, shape: Shape) -> list[tuple[str, list[str]]]:
        found = self._paths.get(id(shape))
        if found is None:
            paths = [
                (leaf.path, leaf.path.split("."))
                for leaf in shape.leaves
                if not leaf.dims
                and "[]" not in leaf.path
                and leaf.path not in shape.roles
                and leaf.base != "ptr"
                and leaf.type not in ("NvHandle", "NV_STATUS")
                and not _OTHER_EVERY_TIME.search(leaf.path)
            ]
            found = self._paths[id(shape)] = (shape, paths)
        return found[1]


def compare_values(a: Values, b: Values) -> list[ValueDifference]:
    """Fields with other values, of calls that both traces made with the same status; by kind, number, status and field."""
    result = []
    for place in a.seen.keys() & b.seen.keys():
        left, right = a.seen[place], b.seen[place]
        if left != right and len(left) <= MANY and len(right) <= MANY:
            (kind, number, status), struct, path = place
            result.append(
                ValueDifference(kind, number, status, struct, path, tuple(sorted(left)), tuple(sorted(right)))
            )
    return sorted(result, key=lambda d: (d.kind, d.number, d.status or 0, d.path))
