"""Which releases a log can be from: the sizes that its frontend requests carry, against the sizes of every recorded release."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from nvproxy_model.drivers import facts as recorded
from nvproxy_model.trace.format import Record, ioc_nr, ioc_size

__all__ = ["SIZED", "Era", "infer", "sizes"]

SIZED: Final = {
    0x27: ("nv_ioctl_nvos02_parameters_with_fd",),
    0x29: ("NVOS00_PARAMETERS",),
    0x2A: ("NVOS54_PARAMETERS",),
    0x2B: ("NVOS64_PARAMETERS", "NVOS21_PARAMETERS"),
    0x34: ("NVOS55_PARAMETERS",),
    0x35: ("NVOS57_PARAMETERS",),
    0x4A: ("NVOS32_PARAMETERS",),
    0x4E: ("nv_ioctl_nvos33_parameters_with_fd",),
    0x4F: ("NVOS34_PARAMETERS",),
    0x54: ("NVOS39_PARAMETERS",),
    0x57: ("NVOS46_PARAMETERS",),
    0x58: ("NVOS47_PARAMETERS",),
    0x5E: ("NVOS56_PARAMETERS",),
    0xC9: ("nv_ioctl_register_fd_t",),
    0xD2: ("nv_ioctl_rm_api_version_t",),
    0xD9: ("nv_ioctl_export_to_dma_buf_fd_t",),
}
"""Escape -> the structs that it takes, any of them (escape.c: RmIoctl(); nv.c: nvidia_ioctl())."""


@dataclass(frozen=True, slots=True)
class Era:
    """``versions``: the recorded releases that have all of these sizes, in ancestry order. ``evidence``: (escape, bytes) seen.

    ``foreign`` are sizes that no recorded release has: an older or newer driver, or another device's requests.
    """

    versions: tuple[str, ...]
    evidence: tuple[tuple[int, int], ...]
    foreign: tuple[tuple[int, int], ...]
    total: int

    def __str__(self) -> str:
        if not self.evidence and not self.foreign:
            return "driver era unknown: no request whose size tells"
        told = ", ".join(f"{number:#x} of {size:#x} bytes" for number, size in self.evidence + self.foreign)
        if not self.versions:
            return f"driver era unknown: no recorded release has {told}"
        if len(self.versions) == self.total:
            return f"driver era ambiguous: every recorded release has {told}"
        return f"driver era {' to '.join(self.branches)} ({len(self.versions)} of {self.total} recorded releases), by {told}"

    @property
    def branches(self) -> tuple[str, ...]:
        """The first and the last of the versions, by number; one when they are the same."""
        ordered = sorted(self.versions, key=lambda name: tuple(int(part) for part in name.split(".")))
        return (ordered[0],) if len(ordered) == 1 else (ordered[0], ordered[-1])

    def as_json(self) -> dict[str, Any]:
        return {
            "versions": list(self.versions),
            "evidence": [{"number": number, "size": size} for number, size in self.evidence],
            "foreign": [{"number": number, "size": size} for number, size in self.foreign],
            "text": str(self),
        }


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
    for number, size in sorted(set(requests)):
        by_size = known.get(number)
        if by_size is None:
            continue
        if size in by_size:
            evidence.append((number, size))
            left &= by_size[size]
        else:
            foreign.append((number, size))
    if foreign:
        left = set()
    return Era(tuple(name for name in every if name in left), tuple(evidence), tuple(foreign), len(every))


def sized(rec: Record) -> tuple[int, int] | None:
    """The (escape, size) of a record that is evidence."""
    if rec.k != "ioctl" or rec.kind not in ("fe", "control", "alloc") or not ioc_size(rec.req):
        return None
    return ioc_nr(rec.req), ioc_size(rec.req)
