"""What a run came to: what nvproxy would refuse, what would admit it, what a checkpoint could not bring back, the cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from nvproxy_model.live.tally import Refusal, Tally, smallest_caps

__all__ = ["SCHEMA", "Report"]

SCHEMA: Final = "nvproxy-policy/run/1"

Names = Callable[[str, int], str | None]


@dataclass(slots=True)
class Report:
    """The answers after a run. ``names`` gives a number a name where no rule does."""

    tally: Tally
    command: list[str]
    status: int
    observe: bool = False
    names: Names = field(default=lambda table, number: None)
    notes: dict[tuple[str, int], str] = field(default_factory=dict)
    """(table, number) -> what is known of that refusal."""
    seconds: float = 0.0

    @property
    def refused(self) -> list[Refusal]:
        """What nvproxy refuses, what matters first: unknown to be harmless, then by count."""
        found = [refusal for refusal in self.tally.refusals.values() if refusal.by == "nvproxy"]
        return sorted(found, key=lambda r: (r.harmless, -r.count, r.table, r.number, r.name or ""))

    @property
    def driver(self) -> list[Refusal]:
        """What the driver itself refuses, in a sandbox or not."""
        found = [refusal for refusal in self.tally.refusals.values() if refusal.by == "driver"]
        return sorted(found, key=lambda r: (-r.count, r.table, r.number))

    def title(self, refusal: Refusal) -> str:
        """``NV_EVENT_BUFFER (class 0x90cd)``, or a path."""
        if refusal.table == "open":
            return f"open of {refusal.name}"
        what = {"control": "control", "alloc": "class", "uvm": "UVM", "frontend": "escape"}[refusal.table]
        name = refusal.name or self.names(refusal.table, refusal.number)
        return f"{name} ({what} {refusal.number:#x})" if name else f"{what} {refusal.number:#x}"

    def as_json(self) -> dict[str, Any]:
        """One JSON document of the schema `SCHEMA`."""
        tally = self.tally
        caps, never = smallest_caps(tally)
        every, _ = smallest_caps(tally, harmless=True)
        return {
            "schema": SCHEMA,
            "command": self.command,
            "status": self.status,
            "mode": "observe" if self.observe else "perform",
            "driver": tally.policy.version.name,
            "capabilities": list(tally.policy.caps.names),
            "profile": tally.policy.profile,
            "calls": dict(sorted(tally.calls.items())),
            "refused": [{**r.as_json(), "title": self.title(r), "note": self._note(r)} for r in self.refused],
            "refused_by_driver": [{**r.as_json(), "title": self.title(r)} for r in self.driver],
            "in_place": [
                {"table": table, "number": number, "why": why, "count": count}
                for (table, number, why), count in sorted(tally.places.items())
            ],
            "smallest_capabilities": None if caps is None else list(caps.names),
            "smallest_capabilities_for_all": None if every is None else list(every.names),
            "no_capability_admits": [self.title(r) for r in never],
            "not_restorable": [
                {"class": hclass, "name": self._class(hclass), "count": count}
                for hclass, count in sorted(tally.lost.items())
            ],
            "verified": {"questions": tally.questions, "differences": tally.findings},
            "other_credentials": len(tally.others),
            "failures": dict(tally.failures),
            "overhead": {
                "seconds": round(self.seconds, 3),
                "driver_seconds": round(tally.driver_ns / 1e9, 6),
                "own_seconds": round(tally.own_ns / 1e9, 6),
                "median_own_microseconds": round(tally.median_own_ns / 1e3, 1),
            },
        }

    def _class(self, hclass: int) -> str:
        rule = self.tally.policy.alloc.get(hclass)
        return rule.name if rule is not None else self.names("alloc", hclass) or f"{hclass:#x}"

    def _note(self, refusal: Refusal) -> str | None:
        return self.notes.get((refusal.table, refusal.number)) if refusal.table != "open" else None

    def lines(self) -> Iterator[str]:
        """The end of a run, for a terminal."""
        tally = self.tally
        decided = sum(tally.decided.values())
        version, caps = tally.policy.version.name, str(tally.policy.caps) or "no capabilities"
        calls = sum(r.count for r in self.refused if r.table != "open")
        opens = sum(r.count for r in self.refused if r.table == "open")
        if not decided and not opens:
            yield "no call reached an NVIDIA device"
            return
        verb = "would refuse" if self.observe else "refused"
        more = f" and {_many(opens, 'open')} of devices" if opens else ""
        yield f"{_many(decided, 'driver call')} under {version} with {caps}; nvproxy {verb} {calls or 'none'} of them{more}"
        for refusal in self.refused:
            known = " (programs go on without it)" if refusal.harmless else ""
            yield f"  {refusal.count:>6}  {self.title(refusal)}: {refusal.answer}; {refusal.way_out}{known}"
        for refusal in self.driver:
            yield f"  {refusal.count:>6}  {self.title(refusal)}: {refusal.answer} from the driver itself, so outside a sandbox too"
        yield from self._capability_lines()
        if self.observe:
            yield "what a checkpoint could not bring back is not known when calls are only observed"
        elif tally.lost:
            made = ", ".join(f"{self._class(hclass)} ({count})" for hclass, count in sorted(tally.lost.items()))
            yield f"a checkpoint could not bring back, while they live: {made}"
        yield from self._trust_lines()

    def _capability_lines(self) -> Iterator[str]:
        caps, never = smallest_caps(self.tally)
        every, _ = smallest_caps(self.tally, harmless=True)
        if caps is not None:
            more = f"; with what is harmless, {every}" if every is not None and every != caps else ""
            yield f"smallest capability set that admits the run: {caps}{more}"
        if never:
            yield f"no capability admits: {', '.join(self.title(refusal) for refusal in never)}"

    def _trust_lines(self) -> Iterator[str]:
        tally = self.tally
        for what, text in (
            ("in place", "ran in the program itself, since they bind to it: for those the decision is advice"),
            ("unseen", "of a process that lets nobody look into it (not dumpable): not judged"),
            ("other ABI", "of another ABI or of io_uring answered ENOSYS"),
            ("not judged", "on exposed nodes that nvproxy has no rules for"),
        ):
            if tally.calls[what]:
                yield f"{_many(tally.calls[what], 'call')} {text}"
        if tally.others:
            yield f"{_many(len(tally.others), 'set')} of credentials other than ours: such calls ran in the program itself"
        for text, number in tally.failures.items():
            yield f"{_many(number, 'call')} failed here: {text}"
        if tally.questions:
            questions, differences = _many(tally.questions, "question"), _many(len(tally.findings), "difference")
            yield f"{questions} to the driver about objects, {differences}"
            yield from (f"  {finding}" for finding in tally.findings[:20])
        if tally.calls["performed"]:
            yield (
                f"{_many(tally.calls['performed'], 'call')} performed: {tally.driver_ns / 1e9:.3f} s in the driver, "
                f"{tally.own_ns / 1e9:.3f} s here, {tally.median_own_ns / 1e3:.0f} us a call (median)"
            )

    def markdown(self) -> str:
        """The same as a document."""
        tally = self.tally
        caps, never = smallest_caps(tally)
        parts = [
            f"# `{' '.join(self.command)}` under nvproxy\n",
            f"Driver {tally.policy.version.name}, capabilities {tally.policy.caps or 'none'}, profile {tally.policy.profile}; "
            f"{'observed' if self.observe else 'performed'}; exit status {self.status}.\n",
            "## Refused\n",
        ]
        if self.refused:
            parts += ["| calls | what | answer | why, or what admits it | |", "| ---: | --- | --- | --- | --- |"]
            for refusal in self.refused:
                remark = self._note(refusal) or ("programs go on without it" if refusal.harmless else "")
                parts.append(
                    f"| {refusal.count} | {self.title(refusal)} | {refusal.answer} | {refusal.way_out} | {remark} |"
                )
        else:
            parts.append("Nothing.")
        if self.driver:
            parts += ["\n## Refused by the driver itself\n", "| calls | what | answer |", "| ---: | --- | --- |"]
            parts += [f"| {r.count} | {self.title(r)} | {r.answer} |" for r in self.driver]
        parts += [
            "\n## Capabilities\n",
            f"Smallest set that admits the run: {caps if caps is not None else 'none needed'}.",
        ]
        if never:
            parts.append(f"No capability admits {', '.join(self.title(r) for r in never)}.")
        if tally.places:
            parts += ["\n## Ran in the program itself\n", "| calls | what | why |", "| ---: | --- | --- |"]
            for (table, number, why), count in sorted(tally.places.items()):
                parts.append(f"| {count} | {table} {number:#x} | {why} |")
        if tally.lost:
            parts += ["\n## What a checkpoint could not bring back\n", "| objects | class |", "| ---: | --- |"]
            parts += [f"| {count} | {self._class(hclass)} |" for hclass, count in sorted(tally.lost.items())]
        parts += ["\n## The rest\n", *(f"* {line}" for line in self._trust_lines())]
        return "\n".join(parts) + "\n"


def _many(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
