"""What a trace holds: counts, rates, time by kind and the slowest calls, in one pass and flat memory."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from nvproxy_model.trace.format import TRUNCATED, UNFINISHED, Record

__all__ = ["DISTINCT_LIMIT", "OTHERS", "Durations", "Stats", "Tally"]

DISTINCT_LIMIT: Final = 100_000
OTHERS: Final = ("other", 0xFFFFFFFFFFFFFFFF)


class Tally(Counter[Any]):
    """A Counter of at most DISTINCT_LIMIT keys; ``overflow`` counts what came after. A hostile file cannot fill memory with it."""

    def __init__(self) -> None:
        super().__init__()
        self.overflow = 0

    def hit(self, key: Any) -> None:
        if key in self:
            self[key] += 1
        elif len(self) < DISTINCT_LIMIT:
            self[key] = 1
        else:
            self.overflow += 1


class Durations:
    """A histogram of nanoseconds in buckets of at most 1/32: a quantile is right to 3 percent at any count."""

    def __init__(self) -> None:
        self.total = 0
        self.count = 0
        self.max = 0
        self._buckets: Counter[int] = Counter()

    def add(self, ns: int) -> None:
        self.total += ns
        self.count += 1
        self.max = max(self.max, ns)
        shift = max(ns.bit_length() - 6, 0)
        self._buckets[(ns >> shift) << shift] += 1

    def quantile(self, q: float) -> int:
        """The lower end of the bucket that holds the quantile; 0 for no values."""
        rank = int(q * (self.count - 1)) if self.count else 0
        for value in sorted(self._buckets):
            rank -= self._buckets[value]
            if rank < 0:
                return value
        return 0

    def as_json(self) -> dict[str, int]:
        return {
            "count": self.count,
            "total_ns": self.total,
            "median_ns": self.quantile(0.5),
            "p99_ns": self.quantile(0.99),
            "max_ns": self.max,
        }


class Stats:
    """Feed it records, then read it."""

    def __init__(self, slowest: int = 10) -> None:
        self.calls = Tally()
        """(kind, number) -> count."""
        self.statuses = Tally()
        """(kind, number, status) -> count, for statuses and errnos other than 0."""
        self.by_kind: dict[str, Durations] = {}
        self.processes = Tally()
        self.devices = Tally()
        self.threads: set[tuple[int, int]] = set()
        self.first: int | None = None
        self.last = 0
        self.truncated = 0
        self.unfinished = 0
        self.bytes = 0
        self._keep = slowest
        self._slowest: list[tuple[int, int, str, int]] = []

    def feed(self, records: Iterable[Record]) -> Stats:
        for rec in records:
            self.one(rec)
        return self

    def one(self, rec: Record) -> None:
        kind = rec.kind if rec.k == "ioctl" else rec.k
        self.calls.hit(rec.number)
        self.processes.hit(rec.pid)
        if len(self.threads) < DISTINCT_LIMIT:
            self.threads.add((rec.pid, rec.tid))
        if rec.dev is not None:
            self.devices.hit(rec.dev)
        if rec.status or rec.err:
            self.statuses.hit((*rec.number, rec.status or 0, rec.err))
        self.first = rec.t if self.first is None else min(self.first, rec.t)
        self.last = max(self.last, rec.t + (rec.d or 0))
        self.truncated += bool(rec.fl & TRUNCATED)
        self.unfinished += bool(rec.fl & UNFINISHED)
        for data in (rec.top0, rec.top1, rec.par0, rec.par1):
            if data is not None:
                self.bytes += len(data)
        if rec.d is not None:
            durations = self.by_kind.get(kind)
            if durations is None:
                durations = self.by_kind[kind] = Durations()
            durations.add(rec.d)
            item = (rec.d, -rec.line, kind, rec.key)
            if len(self._slowest) < self._keep:
                heapq.heappush(self._slowest, item)
            elif self._keep and item > self._slowest[0]:
                heapq.heapreplace(self._slowest, item)

    @property
    def span(self) -> int:
        """Nanoseconds from the first record to the end of the last."""
        return self.last - self.first if self.first is not None else 0

    @property
    def ioctls(self) -> int:
        return sum(n for (kind, _), n in self.calls.items() if kind in ("fe", "control", "alloc", "uvm", "other"))

    def slowest(self) -> list[tuple[int, int, str, int]]:
        """(nanoseconds, line, kind, number), the slowest first."""
        return [(d, -line, kind, key) for d, line, kind, key in sorted(self._slowest, reverse=True)]
