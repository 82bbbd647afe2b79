"""What is counted while a program runs, and the smallest capability set that follows from it."""

from __future__ import annotations

import errno
import itertools
import threading
from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, Literal

from nvproxy_model.caps import SUPPORTED, Caps
from nvproxy_model.live.in_place import Place
from nvproxy_model.policy.decision import Decision, Why
from nvproxy_model.policy.policy import Policy
from nvproxy_model.rules import Table

__all__ = ["Refusal", "Tally", "smallest_caps"]

_DISTINCT: Final = 10_000
_SAMPLES: Final = 4096


@dataclass(slots=True)
class Refusal:
    """One call that was refused, and how often. An open has the table ``open`` and its path as the name."""

    by: Literal["nvproxy", "driver"]
    """``driver`` where the driver's own answer was NV_ERR_INVALID_CLASS or NV_ERR_NOT_SUPPORTED."""
    table: Literal[Table, "open"]
    number: int
    name: str | None
    answer: str
    why: str
    admits: tuple[str, ...] = ()
    """Capabilities, any of which would admit it."""
    harmless: bool = False
    """Programs are known to go on without it."""
    count: int = 0

    @property
    def way_out(self) -> str:
        """What would let it pass, in words."""
        if self.by == "driver":
            return "the driver refuses it outside a sandbox too"
        if self.table == "open":
            return "nvproxy has no such device"
        return f"passes with {' or '.join(self.admits)}" if self.admits else self.why

    def as_json(self) -> dict[str, Any]:
        return {
            "by": self.by,
            "table": self.table,
            "number": self.number,
            "name": self.name,
            "answer": self.answer,
            "why": self.why,
            "capabilities": list(self.admits),
            "harmless": self.harmless,
            "count": self.count,
        }


def _answer(decision: Decision) -> str:
    if decision.status is not None:
        return f"status {decision.status:#x}"
    return errno.errorcode.get(decision.errno, str(decision.errno))


def _admits(decision: Decision, policy: Policy) -> tuple[str, ...]:
    if decision.why is not Why.CAPABILITY:
        return ()
    rule = decision.rule or getattr(policy, decision.call.table).get(decision.number)
    return rule.caps.names if rule is not None else ()


class Tally:
    """Counts while the program runs. Every method may be called from any thread."""

    def __init__(self, policy: Policy, harmless: Collection[tuple[str, int | str]] = ()) -> None:
        self.policy = policy
        self.harmless = harmless
        self.refusals: dict[tuple[Any, ...], Refusal] = {}
        self.decided: Counter[tuple[Table, int]] = Counter()
        self.places: Counter[tuple[str, int, str]] = Counter()
        self.calls: Counter[str] = Counter()
        """performed, in place, refused, other ABI, not ours, unseen, opens, ended: calls by what became of them."""
        self.lost: Counter[int] = Counter()
        """Class -> objects made that a checkpoint could not bring back."""
        self.findings: list[str] = []
        self.questions = 0
        """What --verify asked the driver."""
        self.others: set[tuple[str, ...]] = set()
        self.failures: Counter[str] = Counter()
        self.driver_ns = self.own_ns = 0
        self._own: deque[int] = deque(maxlen=_SAMPLES)
        self._lock = threading.Lock()

    def count(self, what: str) -> None:
        """One more call that this became of."""
        with self._lock:
            self.calls[what] += 1

    def call(self, decision: Decision | None) -> bool:
        """A call was decided; whether it is the first refusal of its kind that is not known as harmless."""
        if decision is None:
            return False
        key = (decision.call.table, decision.number)
        with self._lock:
            if len(self.decided) < _DISTINCT or key in self.decided:
                self.decided[key] += 1
            if decision.allowed:
                return False
        return self._refused(
            Refusal(
                "nvproxy",
                *key,
                decision.rule.name if decision.rule is not None else None,
                _answer(decision),
                decision.reason if decision.facts is not None else decision.why.value,
                _admits(decision, self.policy),
                key in self.harmless,
            )
        )

    def hidden(self, path: str) -> bool:
        """An open of a node that nvproxy does not expose."""
        harmless = ("open", path) in self.harmless or ("open", path.rpartition("/")[0]) in self.harmless
        return self._refused(
            Refusal("nvproxy", "open", 0, path, "ENOENT", "nvproxy gives a sandbox no such device", (), harmless)
        )

    def driver_refused(self, table: Table, number: int, status: int) -> None:
        """The driver's own answer was a refusal."""
        rule = getattr(self.policy, table).get(number)
        name = rule.name if rule is not None else None
        self._refused(
            Refusal("driver", table, number, name, f"status {status:#x}", "the driver's own answer", (), True)
        )

    def _refused(self, refusal: Refusal) -> bool:
        key = (
            refusal.by,
            refusal.table,
            refusal.number,
            refusal.answer,
            refusal.why if refusal.number else refusal.name,
        )
        with self._lock:
            known = self.refusals.get(key)
            if known is None:
                if len(self.refusals) >= _DISTINCT:
                    return False
                known = self.refusals[key] = refusal
            known.count += 1
            return known.count == 1 and not known.harmless

    def place(self, table: Table, number: int, place: Place) -> None:
        """A call was let through."""
        with self._lock:
            self.calls["in place"] += 1
            self.decided[table, number] += 1
            if len(self.places) < _DISTINCT:
                self.places[table, number, place.why] += 1

    def spent(self, driver: int, own: int) -> None:
        """Nanoseconds in the driver, and in us, for one call."""
        with self._lock:
            self.driver_ns += driver
            self.own_ns += own
            self._own.append(own)

    @property
    def median_own_ns(self) -> int:
        """Our own part of a performed call, over the last few thousand."""
        import statistics

        return int(statistics.median(self._own)) if self._own else 0


def _needs(tally: Tally, *, harmless: bool) -> tuple[dict[tuple[Table, int], Caps], list[Refusal]]:
    needs: dict[tuple[Table, int], Caps] = {}
    refused_by_driver = Counter({(r.table, r.number): r.count for r in tally.refusals.values() if r.by == "driver"})
    for key, count in tally.decided.items():
        rule = getattr(tally.policy, key[0]).get(key[1])
        if rule is None or rule.rejected or (not harmless and key in tally.harmless) or refused_by_driver[key] == count:
            continue
        needs[key] = rule.caps
        if key[0] in ("control", "alloc"):
            gate: tuple[Table, int] = ("frontend", 0x2A if key[0] == "control" else 0x2B)
            needs[gate] = tally.policy.frontend[gate[1]].caps
    never = [
        refusal
        for refusal in tally.refusals.values()
        if refusal.by == "nvproxy" and not refusal.admits and (harmless or not refusal.harmless)
    ]
    return needs, never


def smallest_caps(tally: Tally, *, harmless: bool = False) -> tuple[Caps | None, list[Refusal]]:
    """The smallest set of capabilities that admits every call seen, and the refusals that no set lifts.

    Calls known as harmless when refused count with ``harmless`` alone. Of sets of equal size the one with the lower bits; the
    rules are asked again under the set before it is named. None where no capability is needed.
    """
    needs, never = _needs(tally, harmless=harmless)
    if not needs:
        return None, never
    single = [cap for cap in Caps if cap & SUPPORTED]
    for size in range(1, len(single) + 1):
        for chosen in itertools.combinations(single, size):
            caps = Caps(sum(chosen))
            if all(caps & need for need in needs.values()) and _admitted(tally.policy, caps, needs):
                return caps, never
    return None, never


def _admitted(policy: Policy, caps: Caps, numbers: Collection[tuple[Table, int]]) -> bool:
    again = Policy.for_driver(
        policy.version.name,
        caps,
        profile=policy.profile,
        allow_unsupported=True,
        extra=policy.extra,
        windows=policy.windows,
    )
    for table, number in numbers:
        entry = again.entry(table, number)
        if entry.decision.why is Why.CAPABILITY:
            return False
    return True
