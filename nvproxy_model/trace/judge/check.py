"""Whether a policy admits a trace: each distinct call's verdict with its reason, in the groups that decide what to do about it."""

from __future__ import annotations

import errno
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from nvproxy_model import versions
from nvproxy_model.abi.escapes import NV_ESC_RM_ALLOC, NV_ESC_RM_CONTROL
from nvproxy_model.caps import SUPPORTED, Caps
from nvproxy_model.fields import FileKind
from nvproxy_model.policy.decision import Decision, GuestFile, Why
from nvproxy_model.policy.policy import Policy
from nvproxy_model.trace.decode.catalog import TABLES, Catalog
from nvproxy_model.trace.devices import DescriptorMap, Descriptors, device_kind
from nvproxy_model.trace.format import Record
from nvproxy_model.trace.judge.groups import GROUPS, MISSING
from nvproxy_model.trace.judge.notes import DEVICES, NOTES
from nvproxy_model.trace.study.stats import DISTINCT_LIMIT

__all__ = ["GROUPS", "MISSING", "Check", "Row", "exposed", "host_refused", "minimal_caps"]

NV_ERR_INVALID_CLASS, NV_ERR_NOT_SUPPORTED = 0x22, 0x56

_REPLACED: Final = re.compile(r"/dev/(nvidia-caps(?:-imex-channels)?)/")


class _File(NamedTuple):
    kind: FileKind
    host_fd: int


class _Files:
    """A process's descriptors as a decision looks them up; ``proved`` are those that the host's answer shows to be live."""

    __slots__ = ("_paths", "proved")

    def __init__(self, paths: DescriptorMap) -> None:
        self._paths = paths
        self.proved: FileKind | None = None

    def get(self, fd: int, /) -> GuestFile | None:
        path = self._paths.get(fd)
        if path is None:
            return _File(self.proved, fd) if self.proved else None
        return _File(device_kind(path), fd)


@dataclass
class Row:
    """One distinct call with one verdict. ``number`` is 0 for an open, which has a ``device``."""

    kind: str
    number: int
    name: str | None
    group: str
    reason: str
    device: str | None = None
    caps: tuple[str, ...] = ()
    """Any of these would admit it, where a capability is missing."""
    count: int = 0
    first: int = 0
    """Line of the first occurrence."""
    host: dict[str, int] = field(default_factory=dict)
    """What the host answered: ``0x0``, ``0x56``, ``EINVAL`` -> how often."""
    note: str | None = None
    under: list[Row] = field(default_factory=list)
    """For an open: the calls made on the device."""

    def as_json(self) -> dict[str, Any]:
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
            "host": self.host,
            "note": self.note,
            "calls": [row.as_json() for row in self.under],
        }


def exposed(path: str) -> bool:
    """Whether nvproxy gives a sandbox this device node (nvproxy.go: Register).

    The node of nvidia-caps that fabric-imex-mgmt brings has a number that only the host's /proc knows, and is none
    of the MIG ones (1
    and 2, nv-caps.c); IMEX channels are as many as the host's module parameter says.
    """
    kind = device_kind(path)
    return kind in ("frontend", "uvm") or path.startswith("/dev/nvidia-caps-imex-channels/")


def host_refused(rec: Record) -> bool:
    """Whether the host's own driver answered a control or allocation as nvproxy answers an unknown one, or had no such node."""
    if rec.k == "open":
        return rec.err != 0
    return rec.kind in ("control", "alloc") and rec.status in (NV_ERR_INVALID_CLASS, NV_ERR_NOT_SUPPORTED)


def _host(rec: Record) -> str:
    if rec.err:
        return errno.errorcode.get(rec.err, str(rec.err))
    if rec.status is not None:
        return f"{rec.status:#x}"
    return "?" if rec.ret is None else "0"


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


def _group(decision: Decision, rec: Record) -> str:
    if decision.allowed:
        return "window" if decision.why is Why.WINDOW else "admitted"
    if decision.why in (Why.UNKNOWN, Why.VERSION, Why.CAPABILITY, Why.OPT_IN):
        if host_refused(rec):
            return "host-refused"
        return "capability" if decision.why in (Why.CAPABILITY, Why.OPT_IN) else "unknown"
    if decision.why is Why.REFUSED and decision.rule is not None and decision.rule.rejected:
        return "host-refused" if host_refused(rec) else "own"
    # An argument: the host saw it too, and whatever it answered other than success was its refusal.
    return "host-refused" if rec.status or rec.err else "argument"


class Check:
    """Judges records one by one. ``drivers``: judge the first call of each number under every listed release too."""

    def __init__(self, policy: Policy, catalog: Catalog, *, drivers: Iterable[str] = ()) -> None:
        self.policy = policy
        self.catalog = catalog
        self.rows: dict[tuple[Any, ...], Row] = {}
        self.supplied = 0
        """Descriptors that the host took though the trace never saw them arrive: taken as what the call wants."""
        self.overflow = 0
        self._judge = _Judge(policy)
        self._fds = Descriptors()
        self._quick: dict[tuple[Any, ...], tuple[Row, str]] = {}
        self._others = {
            name: _Judge(Policy.for_driver(name, policy.caps, profile=policy.profile, allow_unsupported=True))
            for name in drivers
        }
        self.drivers: dict[str, dict[tuple[str, int], str]] = {name: {} for name in self._others}
        """Release -> refused (kind, number) -> reason."""
        self._asked: set[tuple[Any, ...]] = set()

    def feed(self, records: Iterable[Record]) -> Check:
        for rec in records:
            self.one(rec)
        return self

    def one(self, rec: Record) -> None:
        k = rec.k
        if k == "ioctl":
            quick = self._quick.get((rec.kind, rec.key, rec.dev, rec.status, rec.err, rec.ret))
            if quick is not None:
                row, answer = quick
                row.count += 1
                row.host[answer] += 1
            else:
                self._ioctl(rec)
            if rec.fd not in self._fds.of(rec.pid):
                self._fds.feed(rec)
        else:
            if k == "open":
                self._open(rec)
            self._fds.feed(rec)

    def _row(self, key: tuple[Any, ...], rec: Record, make: Any) -> Row | None:
        row = self.rows.get(key)
        if row is None:
            if len(self.rows) >= DISTINCT_LIMIT:
                self.overflow += 1
                return None
            row = self.rows[key] = make()
            row.first = rec.line
        row.count += 1
        answer = _host(rec)
        row.host[answer] = row.host.get(answer, 0) + 1
        return row

    def _open(self, rec: Record) -> None:
        path = rec.dev or ""
        if exposed(path):
            group, reason = "admitted", "nvproxy has this device"
        else:
            group = "host-refused" if host_refused(rec) else "device"
            reason = "nvproxy gives a sandbox no such device: the open fails"
        self._row(("open", path, group), rec, lambda: self._open_row(path, group, reason))

    @staticmethod
    def _open_row(path: str, group: str, reason: str) -> Row:
        folder = _REPLACED.match(path)
        note = DEVICES.get(path) or DEVICES.get(f"/dev/{folder[1]}" if folder else "")
        return Row("open", 0, None, group, reason, device=path, note=note if group != "admitted" else None)

    def _ioctl(self, rec: Record) -> None:
        dev = rec.dev
        if dev is not None and not exposed(dev):
            self._under(dev, rec)
            return
        if rec.kind == "other":
            return
        decision = self._judge.decide(rec, files := _Files(self._fds.of(rec.pid)))
        fixed = self._judge.fixed(rec.kind, rec.key) is not None
        if (
            decision is not None
            and decision.why is Why.FD
            and decision.facts is not None
            and decision.facts.found is None
            and not rec.err
            and not rec.status
        ):
            # The host took the descriptor, so the program had it.
            files.proved = decision.facts.file
            again = self._judge.decide(rec, files)
            if again is not None and again.allowed:
                self.supplied += 1
                decision = again
        group = "untold" if decision is None else _group(decision, rec)
        reason = self._reason(rec, decision)
        why = reason if group == "argument" else group
        row = self._row((rec.kind, rec.key, group, why), rec, lambda: self._new(rec, group, reason, decision))
        if row is None:
            return
        if fixed and len(self._quick) < DISTINCT_LIMIT:
            self._quick[rec.kind, rec.key, rec.dev, rec.status, rec.err, rec.ret] = (row, _host(rec))
        if self._others:
            self._elsewhere(rec, files)

    def _under(self, dev: str, rec: Record) -> None:
        """A call on a device that is not there is reported under its open."""
        group = "device"
        row = self.rows.get(("open", dev, group))
        if row is None:
            if len(self.rows) >= DISTINCT_LIMIT:
                self.overflow += 1
                return
            row = self.rows["open", dev, group] = self._open_row(
                dev, group, "nvproxy gives a sandbox no such device: the open fails"
            )
            row.first = rec.line
        inner = next((r for r in row.under if (r.kind, r.number) == (rec.kind, rec.key)), None)
        if inner is None:
            if len(row.under) >= 1000:
                self.overflow += 1
                return
            name = self.catalog.name(rec.kind, rec.key)
            inner = Row(
                rec.kind,
                rec.key,
                name,
                group,
                "its device is not there",
                note=NOTES.get((rec.kind, rec.key)),
                first=rec.line,
            )
            row.under.append(inner)
        inner.count += 1
        answer = _host(rec)
        inner.host[answer] = inner.host.get(answer, 0) + 1

    def _reason(self, rec: Record, decision: Decision | None) -> str:
        if decision is not None:
            return decision.reason
        if rec.kind == "fe" and rec.key in (NV_ESC_RM_CONTROL, NV_ESC_RM_ALLOC):
            what = "command" if rec.key == NV_ESC_RM_CONTROL else "class"
            return f"the {what} is in the argument, which this trace does not hold"
        return "the number is admitted; its arguments decide, and this trace does not hold them"

    def _new(self, rec: Record, group: str, reason: str, decision: Decision | None) -> Row:
        caps: tuple[str, ...] = ()
        if decision is not None and decision.why is Why.CAPABILITY:
            rule = decision.rule or self.catalog.rules(rec.kind).get(rec.key)
            caps = rule.caps.names if rule is not None else ()
        note = NOTES.get((rec.kind, rec.key)) if group not in ("admitted", "window") else None
        return Row(rec.kind, rec.key, self.catalog.name(rec.kind, rec.key), group, reason, caps=caps, note=note)

    def _elsewhere(self, rec: Record, files: _Files) -> None:
        refused_here = host_refused(rec)
        key = (rec.kind, rec.key, rec.req, len(rec.par0 or b""), refused_here)
        if key in self._asked or len(self._asked) >= DISTINCT_LIMIT:
            return
        self._asked.add(key)
        for name, judge in self._others.items():
            decision = judge.decide(rec, files)
            if decision is not None and _group(decision, rec) in MISSING:
                self.drivers[name].setdefault((rec.kind, rec.key), decision.reason)

    # The answers

    def sorted_rows(self) -> list[Row]:
        """By group, then kind, number and device."""
        order = list(GROUPS)
        return sorted(
            self.rows.values(), key=lambda r: (order.index(r.group), r.kind, r.number, r.device or "", r.reason)
        )

    def counts(self) -> dict[str, dict[str, int]]:
        """Group -> distinct calls and calls."""
        result = {group: {"distinct": 0, "calls": 0} for group in GROUPS}
        for row in self.rows.values():
            result[row.group]["distinct"] += 1
            result[row.group]["calls"] += row.count
        return result

    @property
    def verdict(self) -> str:
        """``refused``, ``unknown`` (nothing refused, something could not be told), ``admitted``."""
        groups = {row.group for row in self.rows.values()}
        if groups & set(MISSING):
            return "refused"
        return "unknown" if "untold" in groups or self.overflow or not self.rows else "admitted"


def minimal_caps(check: Check) -> tuple[Caps | None, list[Row]]:
    """The smallest capability set under which every call is admitted that any set admits, and the rows that none does.

    Of sets of equal size the one with the lower bits. A call that the host refused as well needs nothing. None when no call
    depends on a capability.
    """
    needs: set[Caps] = set()
    never = []
    for row in check.rows.values():
        if row.group in ("unknown", "device", "argument"):
            never.append(row)
            continue
        table = TABLES.get(row.kind)
        if table is None or row.group in ("host-refused", "own"):
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
