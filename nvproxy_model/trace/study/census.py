"""Numbers per process over many traces, the two windows that nvproxy does not look into included."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from nvproxy_model.abi.windows import windows
from nvproxy_model.trace.format import Record
from nvproxy_model.trace.study.stats import Tally

__all__ = ["WINDOWS", "Census", "window"]

_LABELS: Final = {
    ("RM_GSS_LEGACY_MASK",): "legacy-gss",
    ("NV2081_BINAPI",): "binapi",
    ("RM_GSS_LEGACY_MASK", "NV2081_BINAPI"): "both",
}
WINDOWS: Final = tuple(_LABELS.values())


def window(command: int) -> str | None:
    """The bypass window of a control command as a census names it, or None; ``both``: it goes through the first."""
    return _LABELS.get(windows(command))


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
