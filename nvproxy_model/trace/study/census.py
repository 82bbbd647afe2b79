"""Numbers per process over many traces, the two windows that nvproxy does not look into included."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from nvproxy_model.trace.format import GSS_LEGACY_MASK, Record
from nvproxy_model.trace.study.stats import Tally

__all__ = ["WINDOWS", "Census", "window"]

NV2081_BINAPI: Final = 0x2081

WINDOWS: Final = ("legacy-gss", "binapi", "both")


def window(command: int) -> str | None:
    """The bypass window of a control command, or None.

    ``legacy-gss``: bit 15 (RM_GSS_LEGACY_MASK). ``binapi``: class NV2081_BINAPI. ``both``: both hold; nvproxy tests bit 15
    first, so such a command goes through that one (frontend.go: rmControl).
    """
    legacy = bool(command & GSS_LEGACY_MASK)
    binapi = command >> 16 == NV2081_BINAPI
    return "both" if legacy and binapi else "legacy-gss" if legacy else "binapi" if binapi else None


class Census:
    """Counts by process over any number of traces; a process is (trace, pid)."""

    def __init__(self) -> None:
        self.calls = Tally()
        """(trace, pid, kind, number) -> count."""

    def feed(self, name: str, records: Iterable[Record]) -> None:
        for rec in records:
            if rec.k == "ioctl":
                self.calls.hit((name, rec.pid, rec.kind, rec.key))

    def rows(self) -> list[dict[str, Any]]:
        """One row a process and number, in the order of trace, process, kind, number."""
        return [
            {
                "trace": name,
                "pid": pid,
                "kind": kind,
                "number": number,
                "window": window(number) if kind == "control" else None,
                "count": count,
            }
            for (name, pid, kind, number), count in sorted(self.calls.items())
        ]

    def windows(self) -> list[dict[str, Any]]:
        """One row a process that used a window: commands and calls by window."""
        result: dict[tuple[str, int], dict[str, dict[str, int]]] = {}
        for row in self.rows():
            if row["window"]:
                process = result.setdefault(
                    (row["trace"], row["pid"]), {name: {"numbers": 0, "calls": 0} for name in WINDOWS}
                )
                process[row["window"]]["numbers"] += 1
                process[row["window"]]["calls"] += row["count"]
        return [{"trace": trace, "pid": pid, **counts} for (trace, pid), counts in result.items()]
