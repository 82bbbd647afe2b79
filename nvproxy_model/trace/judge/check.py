"""Whether a policy admits a trace: each distinct call's verdict with its reason, in the groups that decide what to do about it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from nvproxy_model import versions
from nvproxy_model.abi.escapes import NV_ESC_RM_ALLOC, NV_ESC_RM_CONTROL
from nvproxy_model.caps import SUPPORTED, Caps
from nvproxy_model.fields import FileKind
from nvproxy_model.ioctl import foreign
from nvproxy_model.policy.decision import Decision, GuestFile, Why, int32
from nvproxy_model.policy.policy import Policy
from nvproxy_model.trace.decode.catalog import TABLES, Catalog
from nvproxy_model.trace.devices import DescriptorMap, Descriptors, device_kind, graphics
from nvproxy_model.trace.format import Author, CallKind, Record
from nvproxy_model.trace.judge.groups import GROUPS, MISSING, Group
from nvproxy_model.trace.judge.mig import SHOWING, shows_mig
from nvproxy_model.trace.judge.notes import DEVICES, HARMLESS, NOTES
from nvproxy_model.trace.judge.refusals import answer, author, exposed, group_of_call, group_of_open
from nvproxy_model.trace.judge.verdict import Verdict, Word, decide
from nvproxy_model.trace.room import Room
from nvproxy_model.trace.study.stats import DISTINCT_LIMIT

__all__ = ["Check", "Row", "every_release", "minimal_caps"]

_REPLACED: Final = re.compile(r"/dev/(nvidia-caps(?:-imex-channels)?)/")
_SAME: Final = 16 << 20
"""Bytes of lines that are remembered."""
_UNDER: Final = 1000
"""Distinct calls that are listed under the open of a device which a sandbox does not have."""


class _File(NamedTuple):
    kind: FileKind
    host_fd: int


class _Files:
    """A process's descriptors as a decision looks them up, and those that the host's answer shows to be live."""

    __slots__ = ("_paths", "_proved", "asked")

    def __init__(self, paths: DescriptorMap) -> None:
        self._paths = paths
        self._proved: dict[int, FileKind] = {}
        self.asked = False
        """Whether a decision has looked for a descriptor, so that more than the call's bytes matters to it."""

    def get(self, fd: int, /) -> GuestFile | None:
        self.asked = True
        path = self._paths.get(fd)
        if path is not None:
            return _File(_KINDS.get(device_kind(path), "other"), fd)
        return _File(self._proved[fd], fd) if fd in self._proved else None

    def prove(self, fd: int, kind: FileKind) -> bool:
        """A descriptor that the driver took, so that the program had it although the trace does not show from where.

        False for one that was known already.
        """
        if fd < 0 or fd in self._paths or fd in self._proved:
            return False
        self._proved[fd] = kind
        return True


@dataclass
class _Terms:
    """What holds for all rows of a check, and may be found out at its end."""

    strict: bool
    mig: bool = False


class _Answer(NamedTuple):
    """How one occurrence of a call ended: who refused it, what the program got, and whether the sandbox gave it that."""

    by: Author | None
    got: str
    sandbox: bool


@dataclass(slots=True)
class _Seen:
    """How often something occurred."""

    count: int = 0


def _summed(counts: Iterable[tuple[str, int]]) -> dict[str, int]:
    result: dict[str, int] = {}
    for key, count in counts:
        result[key] = result.get(key, 0) + count
    return result


@dataclass
class Row:
    """One distinct call with one verdict. ``number`` is 0 for an open, which has a ``device``."""

    kind: CallKind
    number: int
    name: str | None
    placed: Group
    """The group that the call itself puts it in; `group` is the one that counts."""
    reason: str
    terms: _Terms
    device: str | None = None
    caps: tuple[str, ...] = ()
    """Any of these would admit it, where a capability is missing."""
    first: int = 0
    """Line of the first occurrence."""
    answers: dict[_Answer, _Seen] = field(default_factory=dict)
    """What the program got -> how often."""
    note: str | None = None
    under: list[Row] = field(default_factory=list)
    """For an open: the calls made on the device."""

    @property
    def known_harmless(self) -> bool:
        """Whether programs were measured that do without this call."""
        return (self.kind, self.number or self.device or 0) in HARMLESS

    @property
    def group(self) -> Group:
        """What is known as harmless was seen without MIG: with MIG on it counts."""
        if self.placed in ("unknown", "device") and self.known_harmless and not (self.terms.strict or self.terms.mig):
            return "harmless"
        return self.placed

    def seen(self, answer: _Answer) -> _Seen:
        """Count one occurrence; what counts further ones like it."""
        seen = self.answers.setdefault(answer, _Seen())
        seen.count += 1
        return seen

    @property
    def count(self) -> int:
        """How often it occurred."""
        return sum(seen.count for seen in self.answers.values())

    @property
    def by(self) -> dict[str, int]:
        """Who refused it (`nvproxy_model.trace.format.AUTHORS`) -> how often."""
        return _summed((answer.by, seen.count) for answer, seen in self.answers.items() if answer.by is not None)

    @property
    def host(self) -> dict[str, int]:
        """What the host answered: ``0x0``, ``0x56``, ``EINVAL`` -> how often."""
        return _summed((answer.got, seen.count) for answer, seen in self.answers.items() if not answer.sandbox)

    @property
    def sandbox(self) -> dict[str, int]:
        """What nvproxy answered, or whoever answered in a sandbox, likewise."""
        return _summed((answer.got, seen.count) for answer, seen in self.answers.items() if answer.sandbox)

    def as_json(self) -> dict[str, Any]:
        """The row as the JSON of ``check`` has it."""
        return {
            "kind": self.kind,
            "number": self.number,
            "device": self.device,
            "name": self.name,
            "group": self.group,
            "count": self.count,
            "first_line": self.first,
            "reason": self.reason,
            "capabilities": list(self.caps),
            "refused_by": self.by,
            "host": self.host,
            "sandbox": self.sandbox,
            "note": self.note,
            "calls": [row.as_json() for row in self.under],
        }


class _Judge:
    """One policy's answer for one record."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._fixed: dict[tuple[str, int], Decision | None] = {}

    def fixed(self, kind: str, number: int) -> Decision | None:
        """The decision for a number that nothing else matters to."""
        key = (kind, number)
        if key in self._fixed:
            return self._fixed[key]
        entry = self.policy.entry(TABLES[kind], number)
        decision = entry.decision if entry.decide is None else None
        if len(self._fixed) < DISTINCT_LIMIT:
            self._fixed[key] = decision
        return decision

    def decide(self, rec: Record, files: _Files) -> Decision | None:
        """None: the trace does not hold the bytes that decide."""
        kind = rec.kind
        decision = self.fixed(kind, rec.key)
        if decision is not None:
            return decision
        if kind == "uvm":
            return None if not rec.top0 else self.policy.decide_uvm(rec.key, rec.top0, files)
        if kind == "fe":
            if rec.key in (NV_ESC_RM_CONTROL, NV_ESC_RM_ALLOC) or rec.top0 is None:
                return None
            return self.policy.decide_frontend(rec.req, rec.top0, files)
        if rec.top0 is None:
            return None
        data = rec.par0
        if data is None and any(rec.top0[16:24]):
            return None
        if rec.psize is not None and data is not None and rec.psize != len(data):
            return None
        if kind == "control":
            return self.policy.decide_control(rec.key, data, files)
        return self.policy.decide_alloc(rec.key, data, files)


class Check:
    """Judges records one by one.

    ``inside``: they were recorded in a sandbox, so that nvproxy's answers are among them. ``made_with``: the release that the log
    names, if it does. ``strict``: refusals that are known as harmless count too. ``drivers``: judge the first call of each number
    under these releases too.
    """

    def __init__(
        self,
        policy: Policy,
        catalog: Catalog,
        *,
        drivers: Iterable[str] = (),
        inside: bool = False,
        made_with: str | None = None,
        strict: bool = False,
    ) -> None:
        self.policy = policy
        self.catalog = catalog
        self.inside = inside
        self.made_with = made_with
        self.rows: dict[tuple[Any, ...], Row] = {}
        self.supplied = 0
        """Descriptors that the host took though the trace never saw them arrive: taken as what the call wants."""
        self.overflow = 0
        """Calls of more distinct kinds than are counted."""
        self.opened: set[str] = set()
        """Nodes of which an open succeeded, a thousand at most."""
        self._tried = False
        """Whether an open was tried."""
        self._terms = _Terms(strict)
        self._judge = _Judge(policy)
        self._fds = Descriptors()
        self._quick: dict[tuple[Any, ...], _Seen] = {}
        """Opens, and calls whose number decides."""
        self._admitted: dict[tuple[Any, ...], _Seen] = {}
        """Calls whose bytes decide, for when these are admitted: nothing else of them matters then."""
        self._same: dict[tuple[bytes | None, bool, str | None], _Seen] = {}
        """What was counted before by what it says, if no descriptor matters to it."""
        self._room = Room(_SAME)
        self._others = {
            name: _Judge(Policy.for_driver(name, policy.caps, profile=policy.profile, allow_unsupported=True))
            for name in drivers
        }
        self._refused: dict[str, dict[tuple[str, int], str]] = {name: {} for name in self._others}
        self._asked: set[tuple[Any, ...]] = set()

    @property
    def mig(self) -> bool:
        """Whether the trace shows that MIG was on."""
        return self._terms.mig

    @property
    def dropped(self) -> int:
        """Descriptors beyond the limit of what is remembered."""
        return self._fds.dropped

    def feed(self, records: Iterable[Record]) -> Check:
        """Judge records in the order of the trace."""
        for rec in records:
            self.one(rec)
        return self

    def one(self, rec: Record) -> None:
        """Judge one record."""
        k = rec.k
        if k in ("ioctl", "open"):
            same = (rec.said, self.inside, self.made_with)
            seen = self._same.get(same)
            if seen is not None:
                seen.count += 1
            else:
                seen = self._new_one(rec)
                if seen is not None and rec.said is not None:
                    if self._room.take(len(rec.said)):
                        self._same[same] = seen
                    else:
                        self._same.clear()
            if k == "ioctl" and (rec.fd < 0 or self._fds.has(rec.pid, rec.fd)):
                return
        self._fds.feed(rec)

    def _new_one(self, rec: Record) -> _Seen | None:
        """Count a record whose like was not seen. What counts those that say the same; None where more than that decides."""
        if rec.key in SHOWING and shows_mig(rec):
            self._terms.mig = True
        answer = (rec.status, rec.err, rec.ret is None, rec.by, rec.refused)
        key = (rec.k, rec.kind, rec.key, rec.dev, answer, self.inside, self.made_with)
        seen = self._quick.get(key)
        if seen is not None:
            seen.count += 1
            return seen
        return self._ioctl(rec, key) if rec.k == "ioctl" else self._open(rec, key)

    def _row(self, key: tuple[Any, ...], rec: Record, by: Author | None, make: Callable[[], Row]) -> _Seen | None:
        row = self.rows.get(key)
        if row is None:
            if len(self.rows) >= DISTINCT_LIMIT:
                self.overflow += 1
                return None
            row = self.rows[key] = make()
            row.first = rec.line
        return row.seen(self._answer(rec, by))

    def _quicken(self, key: tuple[Any, ...], seen: _Seen | None) -> _Seen | None:
        """Count what has this key without a look from now on."""
        if seen is not None and len(self._quick) < DISTINCT_LIMIT:
            self._quick[key] = seen
        return seen

    def _answer(self, rec: Record, by: Author | None) -> _Answer:
        return _Answer(by, answer(rec), by == "nvproxy" or (self.inside and by != "driver"))

    def _open(self, rec: Record, key: tuple[Any, ...]) -> _Seen | None:
        if shows_mig(rec):
            self._terms.mig = True
        path = rec.dev or ""
        by = author(rec, None, self.inside)
        group = group_of_open(rec, by)
        if exposed(path):
            self._tried = True
            if not by and len(self.opened) < _UNDER:
                self.opened.add(path)
        return self._quicken(key, self._row(("open", path, group), rec, by, lambda: self._open_row(path, group)))

    def _open_row(self, path: str, group: Group) -> Row:
        folder = _REPLACED.match(path)
        note = DEVICES.get(path) or DEVICES.get(f"/dev/{folder[1]}" if folder else "")
        reason = {
            "admitted": "nvproxy has this device",
            "foreign": "another driver's device: nvproxy has nothing to do with it",
            "permission": "nvproxy has this device; what the program would have done with it is not in this log",
        }.get(group, "nvproxy gives a sandbox no such device: the open fails")
        quiet = group in ("admitted", "permission", "foreign")
        return Row("open", 0, None, group, reason, self._terms, device=path, note=None if quiet else note)

    def _ioctl(self, rec: Record, key: tuple[Any, ...]) -> _Seen | None:
        dev = rec.dev
        if dev is not None and not exposed(dev) and not graphics(dev):
            return self._quicken(key, self._under(dev, rec))
        if rec.kind == "other":
            return self._quicken(key, self._foreign(rec))
        files = _Files(self._fds.of(rec.pid))
        decision = self._judge.decide(rec, files)
        known = self._admitted.get(key) if decision is not None and decision.why is Why.RULE else None
        if known is not None:
            known.count += 1
            seen = known
        else:
            judged = self._judged(rec, key, decision, files)
            if judged is None:
                return None
            seen = judged
        if self._others:
            self._elsewhere(rec, files)
        return None if files.asked else seen

    def _judged(self, rec: Record, key: tuple[Any, ...], decision: Decision | None, files: _Files) -> _Seen | None:
        """Count a call in the row that it belongs to; None where there are too many."""
        if decision is not None and decision.why is Why.FD and not rec.err and not rec.status and not rec.by:
            decision = self._with_descriptors(rec, files, decision)
        by = author(rec, decision, self.inside)
        group = group_of_call(rec, decision, by, inside=self.inside, elsewhere=self._elsewhere_made())
        apart = self._reason(rec, decision, group) if group == "argument" else group
        seen = self._row(
            (rec.kind, rec.key, group, apart),
            rec,
            by,
            lambda: self._new(rec, group, self._reason(rec, decision, group), decision),
        )
        if self._judge.fixed(rec.kind, rec.key) is not None:
            self._quicken(key, seen)
        elif decision is not None and decision.why is Why.RULE and seen is not None and len(self._admitted) < DISTINCT_LIMIT:
            self._admitted[key] = seen
        return seen

    def _elsewhere_made(self) -> bool:
        """Whether the log names a release, and not the one that is asked about."""
        return self.made_with is not None and self.made_with not in (self.catalog.driver, self.policy.version.name)

    def _with_descriptors(self, rec: Record, files: _Files, decision: Decision) -> Decision:
        """The decision where every descriptor that the host took counts as open: the program had them."""
        again = decision
        while again.why is Why.FD and (facts := again.facts) is not None and facts.found is None:
            if facts.value is None or facts.file is None or not files.prove(int32(facts.value), facts.file):
                return decision
            decided = self._judge.decide(rec, files)
            if decided is None:
                return decision
            again = decided
        if not again.allowed:
            return decision
        self.supplied += 1
        return again

    def _foreign(self, rec: Record) -> _Seen | None:
        name = foreign(rec.req)
        said = f"a {name} request" if name else "a request of another driver"
        return self._row(
            ("other", rec.key, rec.dev),
            rec,
            author(rec, None, self.inside),
            lambda: Row("other", rec.key, said, "foreign", said, self._terms, device=rec.dev),
        )

    def _under(self, dev: str, rec: Record) -> _Seen | None:
        """A call on a device that a sandbox does not have is reported under its open."""
        group: Group = "device"
        row = self.rows.get(("open", dev, group))
        if row is None:
            if len(self.rows) >= DISTINCT_LIMIT:
                self.overflow += 1
                return None
            row = self.rows["open", dev, group] = self._open_row(dev, group)
            row.first = rec.line
        inner = next((r for r in row.under if (r.kind, r.number) == (rec.kind, rec.key)), None)
        if inner is None:
            if len(row.under) >= _UNDER:
                self.overflow += 1
                return None
            name = self.catalog.name(rec.kind, rec.key) or foreign(rec.req)
            note = NOTES.get((rec.kind, rec.key))
            inner = Row(*rec.number, name, group, "its device is not there", self._terms, note=note, first=rec.line)
            row.under.append(inner)
        return inner.seen(self._answer(rec, author(rec, None, self.inside)))

    def _reason(self, rec: Record, decision: Decision | None, group: Group) -> str:
        if group in ("contradiction", "argument") and rec.refused is not None and (decision is None or decision.allowed):
            return f"nvproxy: {rec.refused}"
        if decision is not None:
            return decision.reason
        if group == "admitted":
            return "nvproxy let it through where this was recorded"
        if rec.kind == "fe" and rec.key in (NV_ESC_RM_CONTROL, NV_ESC_RM_ALLOC):
            what = "command" if rec.key == NV_ESC_RM_CONTROL else "class"
            return f"the {what} is in the argument, which this trace does not hold"
        return "the number is admitted; its arguments decide, and this trace does not hold them"

    def _new(self, rec: Record, group: Group, reason: str, decision: Decision | None) -> Row:
        caps: tuple[str, ...] = ()
        if decision is not None and decision.why is Why.CAPABILITY:
            rule = decision.rule or self.catalog.rules(rec.kind).get(rec.key)
            caps = rule.caps.names if rule is not None else ()
        note = NOTES.get((rec.kind, rec.key)) if group not in ("admitted", "window") else None
        if decision is not None and decision.why is Why.PENDING and decision.facts is not None:
            note = f"{decision.why.value}: {decision.facts.field}"
        name = self.catalog.name(rec.kind, rec.key)
        return Row(*rec.number, name, group, reason, self._terms, caps=caps, note=note)

    def _elsewhere(self, rec: Record, files: _Files) -> None:
        by = author(rec, None, self.inside)
        key = (rec.kind, rec.key, rec.req, len(rec.par0 or b""), by, rec.status, rec.err)
        if key in self._asked or len(self._asked) >= DISTINCT_LIMIT:
            return
        self._asked.add(key)
        for name, judge in self._others.items():
            decision = judge.decide(rec, files)
            if (
                decision is not None
                and group_of_call(rec, decision, author(rec, decision, self.inside), elsewhere=True) in MISSING
            ):
                self._refused[name].setdefault((rec.kind, rec.key), decision.reason)

    # The answers

    def sorted_rows(self) -> list[Row]:
        """By group, then kind, number and device."""
        order = list(GROUPS)
        return sorted(
            self.rows.values(), key=lambda r: (order.index(r.group), r.kind, r.number, r.device or "", r.reason)
        )

    def counts(self) -> dict[Group, dict[str, int]]:
        """Group -> distinct calls and calls."""
        result = {group: {"distinct": 0, "calls": 0} for group in GROUPS}
        for row in self.rows.values():
            result[row.group]["distinct"] += 1
            result[row.group]["calls"] += row.count
        return result

    def refusals(self) -> dict[str, int]:
        """Who refused -> calls."""
        result: dict[str, int] = {}
        for row in self.rows.values():
            for by, count in itertools.chain(row.by.items(), *(inner.by.items() for inner in row.under)):
                result[by] = result.get(by, 0) + count
        return result

    @property
    def drivers(self) -> dict[str, dict[tuple[str, int], str]]:
        """Release -> refused (kind, number) -> reason, without what is known to be harmless."""
        quiet = frozenset() if self._terms.strict or self._terms.mig else HARMLESS
        return {
            name: {call: reason for call, reason in refused.items() if call not in quiet}
            for name, refused in self._refused.items()
        }

    def doubts(self) -> list[str]:
        """Why an admission would not be sure, besides calls that cannot be judged; whole sentences."""
        found = []
        judged = any(row.kind not in ("open", "other") or row.under for row in self.rows.values())
        failed = sorted(row.device or "" for row in self.rows.values() if row.placed == "permission")
        failed = [path for path in failed if path not in self.opened]
        if self._tried and not self.opened and not judged:
            found.append("the program never reached the driver: no open of a device succeeded")
        elif not judged:
            found.append("no call was judged")
        if self.opened or judged:
            # A program that looks for nvidia0, nvidia1, ... until one is missing has found what it needs.
            gpus = any(device_kind(path) == "frontend" and path != "/dev/nvidiactl" for path in self.opened)
            for path in failed:
                if not (gpus and device_kind(path) == "frontend"):
                    found.append(f"what the program would have done with {path} is not known: its open failed")
        if self.overflow:
            found.append(f"{self.overflow} calls were not judged: there were too many distinct kinds")
        if self.dropped:
            found.append(f"{self.dropped} changes of descriptors were not followed: there were too many")
        return found

    def verdict_on(self, *, complete: bool = True) -> Verdict:
        """The verdict. ``complete``: all of the trace was read and understood."""
        doubts = self.doubts()
        if not complete:
            doubts.insert(0, "not all of the trace could be read")
        return decide({group: count["distinct"] for group, count in self.counts().items()}, doubts)

    @property
    def verdict(self) -> Word:
        """The verdict's word for a trace that was read whole: ``refused``, ``cannot tell`` or ``admitted``."""
        return self.verdict_on().word


_KINDS: Final[dict[str, FileKind]] = {"frontend": "frontend", "uvm": "uvm", "open-only": "open-only"}


def minimal_caps(check: Check) -> tuple[Caps | None, list[Row]]:
    """The smallest capability set under which every call is admitted that any set admits, and the rows that none admits.

    Of sets of equal size the one with the lower bits. A call that the host refused too needs nothing. None when no call depends on
    a capability.
    """
    needs: set[Caps] = set()
    never = []
    for row in check.rows.values():
        if row.group in MISSING and row.group != "capability":
            never.append(row)
            continue
        table = TABLES.get(row.kind)
        if table is None or row.group in ("refused-outside-too", "always-refused", "harmless", "foreign"):
            continue
        if row.kind in ("control", "alloc"):
            needs.add(Caps.COMPUTE | Caps.UTILITY)
        rule = check.policy.rules[table].get(row.number)
        if rule is not None and not rule.rejected:
            needs.add(rule.caps)
    if not needs:
        return None, never
    single = [cap for cap in Caps if cap & SUPPORTED]
    for size in range(len(single) + 1):
        for chosen in itertools.combinations(single, size):
            caps = Caps(sum(chosen))
            if all(caps & need for need in needs):
                return caps, never
    return None, never


def every_release() -> Iterator[str]:
    """The names of all releases that the model knows, a parent before its children."""
    return iter(versions.load())
