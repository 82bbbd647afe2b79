"""What nvproxy answers for a call: one immutable policy per driver release, capability set and profile."""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

from nvproxy_model import abi, ioctl, versions
from nvproxy_model import caps as capabilities
from nvproxy_model.abi.constants import (
    NV01_EVENT,
    NV_ERR_INVALID_CLASS,
    NV_ERR_NOT_SUPPORTED,
    RMAPI_PARAM_COPY_MAX_PARAMS_SIZE,
)
from nvproxy_model.abi.sizes import size_at
from nvproxy_model.abi.windows import window
from nvproxy_model.caps import PROFILES, Caps, Profile
from nvproxy_model.errors import DefinitionError
from nvproxy_model.fields import CStruct
from nvproxy_model.followed import described, is_pending
from nvproxy_model.policy import hardened
from nvproxy_model.policy.decision import Call, Decision, Facts, FdLookup, Verdict, Why
from nvproxy_model.policy.generate import Decider, decider
from nvproxy_model.policy.handlers import PLAIN, Handler, handler_of
from nvproxy_model.policy.plan import Plan, plan
from nvproxy_model.policy.refusals import refuse, refuse_size
from nvproxy_model.rules import Rule, Table, active
from nvproxy_model.versions import DriverVersion

__all__ = ["GATES", "PROFILES", "UNKNOWN_STATUS", "Entry", "Policy", "Windows", "too_long"]

Windows = Literal["allow", "deny"]

UNKNOWN_STATUS: Mapping[Table, int | None] = {
    "frontend": None,
    "uvm": None,
    "control": NV_ERR_NOT_SUPPORTED,
    "alloc": NV_ERR_INVALID_CLASS,
}
GATES: Mapping[Table, str] = {"control": "NV_ESC_RM_CONTROL", "alloc": "NV_ESC_RM_ALLOC"}
"""The escape that a command or class is asked by."""
_REMEMBERED = 1024
"""How many unknown numbers a table keeps an answer for; a hostile guest must not grow it."""


@functools.cache
def _resolved(version: DriverVersion) -> Mapping[Table, Mapping[int, Rule]]:
    tables = {table: active(rows, version) for table, rows in abi.TABLES.items()}
    for table in tables.values():
        for rule in table.values():
            handler_of(rule)  # raises for a name that does not exist
    return tables


@functools.cache
def _elsewhere(table: Table) -> Mapping[int, str]:
    """Every number that some release knows, with its newest name."""
    return {row.number: row.name for row in abi.TABLES[table]}


@dataclass(frozen=True, slots=True)
class Entry:
    """What a policy has for one number.

    ``decision``: the answer to the number alone. ``decide``: if not None, bytes and descriptors decide too,
    and ``decision`` says only that the number is admitted. ``rule``, ``handler``: the row, and the handler
    that it names. ``plan``: the roles of its struct, None for a struct that is only known by name. ``size``:
    the bytes of its parameters or argument, None if there are none or any number will do.
    """

    decision: Decision
    decide: Decider | None = None
    rule: Rule | None = None
    handler: Handler[Any] = PLAIN
    plan: Plan | None = None
    size: int | None = None


class _Table(dict[int, Entry]):
    """Entries by number, each made when it is first asked for. Those without a row are remembered within bounds."""

    def __init__(
        self, rows: Mapping[int, Rule], known: Callable[[Rule], Entry], unknown: Callable[[int], Decision]
    ) -> None:
        super().__init__()
        self._rows, self._known, self._unknown = rows, known, unknown
        self._room = _REMEMBERED

    def __missing__(self, number: int) -> Entry:
        rule = self._rows.get(number)
        if rule is not None:
            return self.setdefault(number, self._known(rule))
        entry = Entry(self._unknown(number))
        if self._room:
            self._room -= 1
            self[number] = entry
        return entry


class Policy:
    """Answers for every ioctl of one driver release under one set of capabilities. Immutable, shareable
    between threads.

    Make one with `for_driver`. ``version``: the release, a node of driver_versions.yaml. ``caps``: the
    capabilities. ``profile``: ``gvisor`` or ``hardened``. ``extra``: the opt-in rows that are admitted, by
    number. ``pending``: whether the rows that were only seen are admitted. ``windows``: what becomes of
    controls in the bypass windows. ``frontend``, ``uvm``, ``control`` and ``alloc`` are the rows of the
    release by number, whatever the capabilities, and ``rules`` the same by the table's name.
    """

    __slots__ = (
        "_alloc",
        "_control",
        "_frontend",
        "_tables",
        "_uvm",
        "alloc",
        "caps",
        "control",
        "extra",
        "frontend",
        "pending",
        "profile",
        "rules",
        "uvm",
        "version",
        "windows",
    )

    version: DriverVersion
    caps: Caps
    profile: Profile
    extra: frozenset[int]
    pending: bool
    windows: Windows | frozenset[int]
    frontend: Mapping[int, Rule]
    uvm: Mapping[int, Rule]
    control: Mapping[int, Rule]
    alloc: Mapping[int, Rule]
    rules: Mapping[Table, Mapping[int, Rule]]
    _frontend: _Table
    _uvm: _Table
    _control: _Table
    _alloc: _Table
    _tables: Mapping[Table, _Table]

    def __init__(
        self,
        version: DriverVersion,
        caps: Caps,
        profile: Profile,
        extra: Iterable[int],
        windows: Windows | Iterable[int],
        pending: bool = False,
    ) -> None:
        put = functools.partial(object.__setattr__, self)
        put("version", version)
        put("caps", caps)
        put("profile", profile)
        put("extra", frozenset(extra))
        put("pending", pending)
        put("windows", windows if isinstance(windows, str) else frozenset(windows))
        rules = {table: MappingProxyType(dict(rows)) for table, rows in _resolved(version).items()}
        put("rules", MappingProxyType(rules))
        for table, rows in rules.items():
            put(table, rows)
        built = {table: self._build(table) for table in rules}
        put("_tables", built)
        for table, entries in built.items():
            put(f"_{table}", entries)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Policy is immutable: {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Policy is immutable: {name}")

    @classmethod
    def for_driver(
        cls,
        version: str,
        caps: str | Caps | Iterable[str | Caps] = capabilities.DEFAULT,
        *,
        profile: Profile = "gvisor",
        allow_unsupported: bool = False,
        extra: Iterable[int] = (),
        windows: Windows | Iterable[int] = "allow",
        pending: bool = False,
    ) -> Policy:
        """The policy of one release.

        ``version``: a release by its name ("580.126.20"), or "latest", the newest one that nvproxy supports.
        ``caps`` as in NVIDIA_DRIVER_CAPABILITIES ("all" is what a container may have), or a list or set. ``profile`` is
        ``gvisor`` (nvproxy's own answers) or ``hardened`` (`nvproxy_model.policy.hardened`).
        ``allow_unsupported`` answers for a release that is known but that nvproxy does not support. ``extra``
        admits opt-in rows by number. ``windows`` says what becomes of controls in the two bypass windows:
        "allow" (nvproxy's), "deny", or the numbers to allow. ``pending`` admits the rows that were seen in
        gVisor and that may not be merged (`nvproxy_model.followed`).

        Raises UnknownDriverVersion; UnsupportedDriverVersion; ValueError for a capability, profile, window or
        opt-in number that does not exist; DefinitionError if the rows of the release contradict each other or
        name a handler that does not exist. One that names a struct that does not exist raises it when it is first used.
        """
        if profile not in PROFILES:
            raise ValueError(f"{profile!r} is not a profile; known: {', '.join(PROFILES)}")
        if not isinstance(windows, str):
            windows = frozenset(windows)
        if (
            windows not in get_args(Windows)
            if isinstance(windows, str)
            else not all(isinstance(n, int) for n in windows)
        ):
            raise ValueError(f"windows={windows!r}: want 'allow', 'deny' or numbers")
        node = versions.load().find(version, allow_unsupported=allow_unsupported)
        wanted = capabilities.resolve(caps)
        extra = frozenset(extra)
        unknown = extra - {row.number for rows in abi.TABLES.values() for row in rows if row.opt_in}
        if unknown:
            raise ValueError(f"no opt-in row has the number {', '.join(f'{number:#x}' for number in sorted(unknown))}")
        return cls(node, wanted, profile, extra, windows, pending)

    def _made_of(self) -> tuple[object, ...]:
        return self.version, self.caps, self.profile, self.extra, self.windows, self.pending

    def __eq__(self, other: object) -> bool:
        """Whether both give the same answers by their making: release, capabilities, profile and options."""
        return self._made_of() == other._made_of() if isinstance(other, Policy) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._made_of())

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self._made_of()

    def __repr__(self) -> str:
        return f"<Policy {self.version} caps={self.caps} profile={self.profile}>"

    def _build(self, name: Table) -> _Table:
        gate = GATES.get(name)
        shut = gate is not None and not any(row.caps & self.caps for row in self.frontend.values() if row.name == gate)
        rows = self.rules[name]
        if name == "control":
            for number in rows:
                if window(number):
                    raise DefinitionError(f"control {number:#x} is in a bypass window: its row would never be asked")
        known = self._closed if shut else self._entry
        table = _Table(rows, known, functools.partial(self._outside, name, shut))
        if name == "alloc" and not shut:
            table[NV01_EVENT] = Entry(Decision(Verdict.ALLOW, Why.RULE, self.call("alloc", NV01_EVENT)), self._event)
        return table

    def _shut(self, table: Table, number: int) -> Decision:
        """Both gates must open: without compute or utility even a root client is EINVAL (nvproxy: frontend
        dispatch)."""
        gate = next(row for row in self.frontend.values() if row.name == GATES[table])
        return refuse(
            self.call(table, number), Why.CAPABILITY, None, Facts(f"{gate.name}, which comes first", want=gate.caps)
        )

    def _closed(self, rule: Rule) -> Entry:
        return Entry(self._shut(rule.table, rule.number), rule=rule)

    def call(self, table: Table, number: int) -> Call:
        """The question about a number, as decisions carry it."""
        rule = self.rules[table].get(number)
        return Call(self.version.name, table, number, rule, None if rule is None else handler_of(rule).duty)

    def _entry(self, rule: Rule) -> Entry:
        call = self.call(rule.table, rule.number)
        needed = hardened.CAPS.get(rule.name, rule.caps) if self.profile == "hardened" else rule.caps
        status = UNKNOWN_STATUS[rule.table]
        if rule.rejected:
            return Entry(refuse(call, Why.REFUSED, rule.status), rule=rule)
        if rule.opt_in and rule.number not in self.extra:
            return Entry(refuse(call, Why.OPT_IN, status), rule=rule)
        if is_pending(rule.later) and not self.pending:
            return Entry(refuse(call, Why.PENDING, status, Facts(described(str(rule.later)))), rule=rule)
        if not int(needed) & int(self.caps):
            return Entry(refuse(call, Why.CAPABILITY, status, Facts(want=needed)), rule=rule)
        return self._admitted(call, rule)

    def _admitted(self, call: Call, rule: Rule) -> Entry:
        strict = self.profile == "hardened"
        handler = handler_of(rule)
        admitted = Decision(Verdict.ALLOW, Why.RULE, call)
        of = rule.params_at(self.version)
        if not isinstance(of, CStruct):
            size = None if of is None else of.sizeof()
            known = size_at(rule.number, self.version.lineage) if strict and rule.table == "control" else None
            if known is None and strict:
                known = hardened.BYTES_SIZES.get(rule.name)
            if known is None:
                return Entry(admitted, None, rule, handler, None, size)
            return Entry(admitted, hardened.sized(rule.name, admitted, known), rule, handler, None, known)
        what = plan(of)
        decide: Decider | None = None
        if call.table in ("frontend", "uvm") or what.roles or what.depends or handler.decide is not None:
            decide = decider(call, of, strict=strict)
            if handler.decide is not None:
                decide = functools.partial(handler.decide, decide, call)
        if strict and decide is None and call.table == "control":
            decide = hardened.sized(rule.name, admitted, what.size)
        check = hardened.CHECKS.get(rule.name) if strict else None
        if check is not None:
            decide = hardened.guard(check, admitted if decide is None else decide, call, of, self.version)
        return Entry(admitted, decide, rule, handler, what, what.size)

    def _outside(self, table: Table, shut: bool, number: int) -> Decision:
        """The answer for a number that the release has no row for."""
        if shut:
            return self._shut(table, number)
        call = Call(self.version.name, table, number, None)
        name = window(number) if table == "control" else None
        if name is not None:
            if self.windows == "allow" or (not isinstance(self.windows, str) and number in self.windows):
                return Decision(Verdict.ALLOW, Why.WINDOW, call, facts=Facts(name))
            return refuse(call, Why.WINDOW, NV_ERR_NOT_SUPPORTED, Facts(name, found="a policy that closes it"))
        elsewhere = _elsewhere(table).get(number)
        if elsewhere is None:
            return refuse(call, Why.UNKNOWN, UNKNOWN_STATUS[table])
        return refuse(call, Why.VERSION, UNKNOWN_STATUS[table], Facts(elsewhere))

    def _event(self, data: bytes | None, fds: FdLookup) -> Decision:
        """NV01_EVENT names the real class in its parameters, whatever that is (nvproxy: rmAlloc's fix-up)."""
        if data is None or len(data) < 12:
            call = self.call("alloc", NV01_EVENT)
            return refuse(call, Why.NULL, None, Facts("NV0005_ALLOC_PARAMETERS"), error=errno.EFAULT)
        number = int.from_bytes(data[8:12], "little")
        if number == NV01_EVENT:
            return self.unknown("alloc", number)
        return self.decide_alloc(number, data, fds)

    def unknown(self, table: Table, number: int) -> Decision:
        """The answer for a number that no row has, whatever the tables hold."""
        return self._outside(table, False, number)

    def entry(self, table: Table, number: int) -> Entry:
        """What the policy has for a number. Every number has an entry."""
        return self._tables[table][number]

    def entries(self, table: Table) -> Mapping[int, Entry]:
        """All entries of a table, for hot paths. Every number has an entry; a look-up never raises KeyError."""
        return self._tables[table]

    def decide_control(self, number: int, params: bytes | None, fds: FdLookup) -> Decision:
        """The answer for a control command with these parameter bytes; None or b"" for a command without any."""
        entry = self._control[number]
        if entry.decide is not None:
            return entry.decide(params, fds)
        if params is None or len(params) <= RMAPI_PARAM_COPY_MAX_PARAMS_SIZE or not entry.decision.allowed:
            return entry.decision
        return too_long(entry.decision.call, len(params))

    def decide_alloc(self, number: int, params: bytes | None, fds: FdLookup) -> Decision:
        """The answer for an allocation of a class with these parameter bytes (None: a NULL pointer)."""
        entry = self._alloc[number]
        if entry.decide is not None:
            return entry.decide(params, fds)
        return entry.decision

    def decide_uvm(self, request: int, arg: bytes | None, fds: FdLookup) -> Decision:
        """The answer for an ioctl of /dev/nvidia-uvm with its argument struct. The request is a bare number,
        without a size."""
        entry = self._uvm[request]
        if entry.decide is not None:
            return entry.decide(arg, fds)
        return entry.decision

    def decide_frontend(self, request: int, arg: bytes | None, fds: FdLookup) -> Decision:
        """The answer for an ioctl of /dev/nvidiactl or /dev/nvidiaN with its argument struct.

        For NV_ESC_RM_CONTROL and NV_ESC_RM_ALLOC the answer is the refusal of the command or class that the
        struct names, if that is refused by its number. What their parameters deserve is the answer of
        `decide_control` and `decide_alloc`.
        """
        entry = self._frontend[ioctl.number(request)]
        if entry.decide is None:
            return entry.decision
        call, size, inner = entry.decision.call, ioctl.size(request), entry.handler.inner
        if entry.plan is not None and size != entry.plan.size and (inner is None or size not in inner.sizes):
            return refuse_size(call, entry.plan.name, entry.plan.size, size)
        if arg is not None and len(arg) != size:
            return refuse_size(call, "the argument", size, len(arg))
        if inner is None or arg is None:
            return entry.decide(arg, fds)
        asked = self.entry(inner.table, int.from_bytes(arg[inner.offset : inner.offset + 4], "little"))
        if not asked.decision.allowed:
            return asked.decision
        return Decision(Verdict.ALLOW, Why.RULE, call, params=arg)


def too_long(call: Call, length: int) -> Decision:
    """The refusal of a control's parameters that are longer than the driver takes."""
    return refuse_size(call, "RMAPI_PARAM_COPY_MAX_PARAMS_SIZE", RMAPI_PARAM_COPY_MAX_PARAMS_SIZE, length)
