"""Two traces of one workload: which calls differ, by kind, number and status.

Handles, addresses and descriptors are other numbers in every run. The key holds none of them, so a handle or descriptor
that was used again for something else can neither make a difference nor hide one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from nvproxy_model.trace.format import CallKind, Record
from nvproxy_model.trace.study.stats import Tally

__all__ = ["CLASSES", "Change", "Difference", "compare", "outcomes"]

Change = Literal["only-here", "only-there", "other-status", "other-count"]
CLASSES: Final[tuple[Change, ...]] = get_args(Change)
"""From the worst: a call that one trace lacks, one that was answered differently, one made another number of times."""

Key = tuple[CallKind, int, str | None]
Outcome = tuple[int | None, int]


@dataclass(frozen=True, slots=True)
class Difference:
    """``a`` and ``b`` count the call by outcome, (NV status or None, errno)."""

    change: Change
    kind: CallKind
    number: int
    device: str | None
    """The path, for an open; the device, for an mmap."""
    a: dict[Outcome, int]
    b: dict[Outcome, int]

    def as_json(self) -> dict[str, Any]:
        def side(counts: dict[Outcome, int]) -> list[dict[str, int | None]]:
            return [
                {"status": status, "errno": errno, "count": count}
                for (status, errno), count in sorted(counts.items(), key=lambda item: (item[0][0] or 0, item[0][1]))
            ]

        return {
            "change": self.change,
            "kind": self.kind,
            "number": self.number,
            "device": self.device,
            "a": side(self.a),
            "b": side(self.b),
        }


def outcomes(records: Iterable[Record], status_of: Any = None) -> Tally:
    """Counts by (kind, number, device) and outcome. ``status_of`` finds the NV status of calls that carry it in their struct."""
    tally = Tally()
    for rec in records:
        if rec.k == "ioctl":
            status = rec.status if rec.status is not None or status_of is None else status_of(rec)
            tally.hit(((rec.kind, rec.key, None), (status, rec.err)))
        elif rec.k in ("open", "mmap", "close"):
            device = rec.dev if rec.k != "close" else None
            tally.hit(((rec.k, 0, device), (None, rec.err)))
    return tally


def _by_key(tally: Tally) -> dict[Key, dict[Outcome, int]]:
    result: dict[Key, dict[Outcome, int]] = {}
    for (key, outcome), count in tally.items():
        result.setdefault(key, {})[outcome] = count
    return result


def compare(a: Tally, b: Tally) -> list[Difference]:
    """The differences between two tallies of `outcomes`, the weightiest class first, then by kind and number.

    A call with the same outcomes in other numbers is ``other-count``; with an outcome that the other side never had,
    ``other-status``.
    """
    left, right = _by_key(a), _by_key(b)
    result = []
    for key in left.keys() | right.keys():
        here, there = left.get(key, {}), right.get(key, {})
        if here == there:
            continue
        change: Change
        if not there:
            change = "only-here"
        elif not here:
            change = "only-there"
        else:
            change = "other-status" if here.keys() != there.keys() else "other-count"
        result.append(Difference(change, *key, here, there))
    return sorted(result, key=lambda d: (CLASSES.index(d.change), d.kind, d.number, d.device or ""))
