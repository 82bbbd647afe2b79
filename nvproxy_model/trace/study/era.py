"""Which releases a log can be from: the sizes that its frontend requests carry, against the sizes of every recorded release."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from nvproxy_model import ioctl
from nvproxy_model.abi import escapes
from nvproxy_model.abi.escapes import ARGUMENTS
from nvproxy_model.drivers import facts as recorded
from nvproxy_model.trace.format import Record

__all__ = ["SIZED", "Era", "infer", "sizes"]

SIZED: Final = {
    number: ARGUMENTS[number]
    for number in (
        escapes.NV_ESC_RM_ALLOC_MEMORY,
        escapes.NV_ESC_RM_FREE,
        escapes.NV_ESC_RM_CONTROL,
        escapes.NV_ESC_RM_ALLOC,
        escapes.NV_ESC_RM_DUP_OBJECT,
        escapes.NV_ESC_RM_SHARE,
        escapes.NV_ESC_RM_VID_HEAP_CONTROL,
        escapes.NV_ESC_RM_MAP_MEMORY,
        escapes.NV_ESC_RM_UNMAP_MEMORY,
        escapes.NV_ESC_RM_ALLOC_CONTEXT_DMA2,
        escapes.NV_ESC_RM_MAP_MEMORY_DMA,
        escapes.NV_ESC_RM_UNMAP_MEMORY_DMA,
        escapes.NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO,
        escapes.NV_ESC_REGISTER_FD,
        escapes.NV_ESC_CHECK_VERSION_STR,
        escapes.NV_ESC_EXPORT_TO_DMABUF_FD,
    )
}
"""Escape -> the structs that it takes, of those whose request always has the size of one of them."""


@dataclass(frozen=True, slots=True)
class Era:
    """``versions``: the recorded releases that have all of these sizes, in ancestry order. ``evidence``: (escape, bytes) seen.

    ``foreign`` are sizes that no recorded release has: an older or newer driver, or another device's requests.
    """

    versions: tuple[str, ...]
    evidence: tuple[tuple[int, int], ...]
    foreign: tuple[tuple[int, int], ...]
    total: int
    ancient: tuple[tuple[int, int], ...] = ()
    """Requests of drivers before 515, the first with public source."""

    def __str__(self) -> str:
        """One line for people: the range of releases, and the sizes that show it."""
        if self.ancient:
            return f"driver era: older than any recorded release (515), by {_listed(self.ancient)}"
        if not self.evidence and not self.foreign:
            return "driver era unknown: no request with a size that depends on the release"
        sizes = _listed(self.evidence + self.foreign)
        if not self.versions:
            return f"driver era unknown: no recorded release has {sizes}"
        if len(self.versions) == self.total:
            return f"driver era ambiguous: every recorded release has {sizes}"
        return f"driver era {' to '.join(self.branches)} ({len(self.versions)} of {self.total} recorded releases), by {sizes}"

    @property
    def branches(self) -> tuple[str, ...]:
        """The first and the last of the versions, by number; one when they are the same."""
        ordered = sorted(self.versions, key=lambda name: tuple(int(part) for part in name.split(".")))
        return (ordered[0],) if len(ordered) == 1 else (ordered[0], ordered[-1])

    def as_json(self) -> dict[str, Any]:
        """The era as JSON."""
        return {
            "versions": list(self.versions),
            "evidence": [{"number": number, "size": size} for number, size in self.evidence],
            "foreign": [{"number": number, "size": size} for number, size in self.foreign],
            "text": str(self),
        }


def _listed(requests: tuple[tuple[int, int], ...]) -> str:
    return ", ".join(f"{number:#x} of {size:#x} bytes" for number, size in requests)


ANCIENT: Final = {(0xC8, 0xA00), (0xCA, 4)}
"""NV_ESC_CARD_INFO with 32 cards of 80 bytes and NV_ESC_ENV_INFO, which drivers before 515 had."""


@cache
def sizes(facts: recorded.Facts | None = None) -> dict[int, dict[int, frozenset[str]]]:
    """Escape -> size in bytes -> the recorded releases in which a struct of it has that size."""
    facts = recorded.load() if facts is None else facts
    result: dict[int, dict[int, set[str]]] = {}
    for number, names in SIZED.items():
        for name in names:
            runs = facts.runs("structs", name)
            for (start, key), end in zip(runs, [at for at, _ in runs[1:]] + [len(facts.versions)], strict=True):
                layout = facts.layout(key)
                if layout is not None:
                    result.setdefault(number, {}).setdefault(layout.size, set()).update(facts.versions[start:end])
    return {number: {size: frozenset(names) for size, names in by_size.items()} for number, by_size in result.items()}


def infer(requests: Iterable[tuple[int, int]], facts: recorded.Facts | None = None) -> Era:
    """The era of (escape, size) pairs."""
    known = sizes(facts)
    every = (recorded.load() if facts is None else facts).versions
    left = set(every)
    evidence, foreign = [], []
    requests = set(requests)
    for number, size in sorted(requests):
        by_size = known.get(number)
        if by_size is None:
            continue
        if size in by_size:
            evidence.append((number, size))
            left &= by_size[size]
        else:
            foreign.append((number, size))
    ancient = tuple(sorted(requests & ANCIENT))
    if foreign or ancient:
        left = set()
    return Era(tuple(name for name in every if name in left), tuple(evidence), tuple(foreign), len(every), ancient)


def sized(rec: Record) -> tuple[int, int] | None:
    """The (escape, size) of a record that is evidence."""
    if rec.k != "ioctl" or rec.kind not in ("fe", "control", "alloc") or not ioctl.size(rec.req):
        return None
    return ioctl.number(rec.req), ioctl.size(rec.req)
