"""What nvproxy answers for a call: one immutable policy per driver release, capability set and profile."""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from nvproxy_model import abi, ioctl, versions
from nvproxy_model import caps as capabilities
from nvproxy_model.abi.constants import (
    NV01_EVENT,
    NV_ERR_INVALID_CLASS,
    NV_ERR_NOT_SUPPORTED,
    RMAPI_PARAM_COPY_MAX_PARAMS_SIZE,
)
from nvproxy_model.abi.windows import window
from nvproxy_model.caps import PROFILES, Caps
from nvproxy_model.errors import DefinitionError
from nvproxy_model.fields import CStruct
from nvproxy_model.policy import handlers, hardened
from nvproxy_model.policy.decide import Decider, decider, plan, refuse_size
from nvproxy_model.policy.decision import Call, Decision, FdLookup, Verdict, Why
from nvproxy_model.policy.handlers import offset
from nvproxy_model.rules import Rule, Table, active
from nvproxy_model.structs.nvos import NVOS21_PARAMETERS, NVOS54_PARAMETERS, NVOS64_PARAMETERS
from nvproxy_model.versions import DriverVersion

__all__ = ["PROFILES", "Policy"]

_UNKNOWN_STATUS = {"frontend": None, "uvm": None, "control": NV_ERR_NOT_SUPPORTED, "alloc": NV_ERR_INVALID_CLASS}
_INNER = {
    "control": (offset(NVOS54_PARAMETERS, "cmd"), (NVOS54_PARAMETERS.sizeof(),)),
    "alloc": (offset(NVOS64_PARAMETERS, "hClass"), (NVOS21_PARAMETERS.sizeof(), NVOS64_PARAMETERS.sizeof())),
}
"""Where the number inside stands, and the sizes of the struct that holds it."""
_GATES = {"control": "NV_ESC_RM_CONTROL", "alloc": "NV_ESC_RM_ALLOC"}
_REMEMBERED = 1024
"""How many unknown numbers a table keeps an answer for; a hostile guest must not grow it."""


@functools.cache
def _resolved(version: DriverVersion) -> Mapping[str, Mapping[int, Rule]]:
    return {table: active(rows, version) for table, rows in abi.TABLES.items()}


@functools.cache
def _elsewhere(table: Table) -> Mapping[int, str]:
    """Every number that some release knows, with its newest name."""
    return {row.number: row.name for row in abi.TABLES[table]}


class _Table(dict[int, Decision | Decider]):
    """Decisions and deciders by number. What it does not hold is worked out once, and remembered within bounds."""

    def __init__(self, unknown: Callable[[int], Decision]) -> None:
        super().__init__()
        self._unknown = unknown
        self._room = _REMEMBERED

    def __missing__(self, number: int) -> Decision:
        decision = self._unknown(number)
        if self._room:
            self._room -= 1
            self[number] = decision
        return decision


class Policy:
    """Answers for every ioctl of one driver release under one set of capabilities. Immutable, shareable between threads.

    ``frontend``, ``uvm``, ``control`` and ``alloc`` are the rules of the release by number, whatever the capabilities.
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
        "profile",
        "uvm",
        "version",
        "windows",
    )

    version: DriverVersion
    caps: Caps
    profile: str
    extra: frozenset[int]
    windows: str | frozenset[int]
    frontend: Mapping[int, Rule]
    uvm: Mapping[int, Rule]
    control: Mapping[int, Rule]
    alloc: Mapping[int, Rule]
    _frontend: _Table
    _uvm: _Table
    _control: _Table
    _alloc: _Table
    _tables: Mapping[str, _Table]

    def __init__(
        self, version: DriverVersion, caps: Caps, profile: str, extra: Iterable[int], windows: str | Iterable[int]
    ) -> None:
        tables = _resolved(version)
        put = functools.partial(object.__setattr__, self)
        put("version", version)
        put("caps", caps)
        put("profile", profile)
        put("extra", frozenset(extra))
        put("windows", windows if isinstance(windows, str) else frozenset(windows))
        for table in abi.TABLES:
            put(table, MappingProxyType(tables[table]))
        built = {table: self._build(table) for table in abi.TABLES}
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
        caps: str | Caps = capabilities.DEFAULT,
        *,
        profile: str = "gvisor",
        allow_unsupported: bool = False,
        extra: Iterable[int] = (),
        windows: str | Iterable[int] = "allow",
    ) -> Policy:
        """The policy of one release.

        ``caps`` as in NVIDIA_DRIVER_CAPABILITIES ("all" is what a container may have). ``profile`` is ``gvisor``
        (nvproxy's own answers) or ``hardened`` (`nvproxy_model.policy.hardened`). ``extra`` admits opt-in rows by
        number. ``windows`` says what becomes of controls in the two bypass windows: "allow" (nvproxy's), "deny", or
        the numbers to allow.

        Raises UnknownDriverVersion, UnsupportedDriverVersion, ValueError for a capability, profile or number that there is not.
        """
        if profile not in PROFILES:
            raise ValueError(f"{profile!r} is no profile; known: {', '.join(PROFILES)}")
        windows = windows if isinstance(windows, str) else frozenset(windows)
        if (
            windows not in ("allow", "deny")
            if isinstance(windows, str)
            else not all(isinstance(n, int) for n in windows)
        ):
            raise ValueError(f"windows={windows!r}: want 'allow', 'deny' or numbers")
        node = versions.load().find(version, allow_unsupported=allow_unsupported)
        wanted = capabilities.resolve(caps if isinstance(caps, str) else str(Caps(caps)))
        extra = frozenset(extra)
        unknown = extra - {row.number for rows in abi.TABLES.values() for row in rows if row.opt_in}
        if unknown:
            raise ValueError(f"no opt-in row has the number {', '.join(f'{number:#x}' for number in sorted(unknown))}")
        return cls(node, wanted, profile, extra, windows)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.version, self.caps, self.profile, self.extra, self.windows)

    def __repr__(self) -> str:
        return f"<Policy {self.version} caps={self.caps} profile={self.profile}>"

    def _build(self, name: str) -> _Table:
        rules: Mapping[int, Rule] = getattr(self, name)
        gate = _GATES.get(name)
        shut = gate is not None and not any(row.caps & self.caps for row in self.frontend.values() if row.name == gate)
        table = _Table(functools.partial(self._outside, name, shut))
        for number, rule in rules.items():
            if name == "control" and window(number):
                raise DefinitionError(f"control {number:#x} is in a bypass window: its row would never be asked")
            table[number] = self._shut(name, number) if shut else self._entry(rule)
        if name == "alloc" and not shut:
            table[NV01_EVENT] = self._event
        return table

    def _shut(self, table: str, number: int) -> Decision:
        """Both gates must open: without compute or utility even a root client is EINVAL (nvproxy: frontend dispatch)."""
        gate = next(row for row in self.frontend.values() if row.name == _GATES[table])
        detail = (gate.caps, f"{gate.name} comes first")
        return Decision(Verdict.REJECT, Why.CAPABILITY, self.call(table, number), errno.EINVAL, detail=detail)

    def call(self, table: str, number: int) -> Call:
        """The question, as decisions carry it."""
        rules: Mapping[int, Rule] = getattr(self, table)
        return Call(self.version.name, table, number, rules.get(number))

    def _entry(self, rule: Rule) -> Decision | Decider:
        call = Call(self.version.name, rule.table, rule.number, rule)

        def refuse(why: Why, *detail: object) -> Decision:
            status = _UNKNOWN_STATUS[rule.table]
            return Decision(Verdict.REJECT, why, call, 0 if status is not None else errno.EINVAL, status, detail=detail)

        needed = hardened.CAPS.get(rule.name, rule.caps) if self.profile == "hardened" else rule.caps
        if rule.rejected:
            if rule.status is None:
                return refuse(Why.REFUSED)
            return Decision(Verdict.REJECT, Why.REFUSED, call, 0, rule.status)
        if rule.opt_in and rule.number not in self.extra:
            return refuse(Why.OPT_IN)
        if not int(needed) & int(self.caps):
            return refuse(Why.CAPABILITY, needed)
        return self._admitted(call, rule)

    def _admitted(self, call: Call, rule: Rule) -> Decision | Decider:
        strict = self.profile == "hardened"
        of = rule.params_at(self.version)
        decide: Decision | Decider
        if isinstance(of, CStruct) and (call.table in ("frontend", "uvm") or plan(of).roles or plan(of).depends):
            decide = decider(call, of, strict=strict)
        else:
            decide = Decision(Verdict.ALLOW, Why.RULE, call)
        special = handlers.DECIDE.get(rule.handler or "")
        if special is not None and not isinstance(decide, Decision):
            decide = functools.partial(special, decide, call)
        check = hardened.CHECKS.get(rule.name) if strict else None
        if check is not None and isinstance(of, CStruct):
            decide = hardened.guard(check, decide, call, of, self.version)
        return decide

    def _outside(self, table: str, shut: bool, number: int) -> Decision:
        """The answer for a number that the release has no row for."""
        if shut:
            return self._shut(table, number)
        call = Call(self.version.name, table, number, None)
        name = window(number) if table == "control" else None
        if name is not None:
            admitted = self.windows == "allow" or (not isinstance(self.windows, str) and number in self.windows)
            if admitted:
                return Decision(Verdict.ALLOW, Why.WINDOW, call, detail=(name,))
            return Decision(
                Verdict.REJECT, Why.WINDOW, call, 0, NV_ERR_NOT_SUPPORTED, detail=(name, "closed by this policy")
            )
        status = _UNKNOWN_STATUS[table]
        elsewhere = _elsewhere(table).get(number)
        why = Why.UNKNOWN if elsewhere is None else Why.VERSION
        detail = () if elsewhere is None else (elsewhere,)
        return Decision(Verdict.REJECT, why, call, 0 if status is not None else errno.EINVAL, status, detail=detail)

    def _event(self, data: bytes | None, fds: FdLookup) -> Decision:
        """NV01_EVENT names the real class in its parameters, whatever that is (nvproxy: rmAlloc's fix-up)."""
        if data is None or len(data) < 12:
            return Decision(
                Verdict.REJECT,
                Why.NULL,
                self.call("alloc", NV01_EVENT),
                errno.EFAULT,
                detail=("NV0005_ALLOC_PARAMETERS",),
            )
        number = int.from_bytes(data[8:12], "little")
        if number == NV01_EVENT:
            return self.unknown("alloc", number)
        return self.decide_alloc(number, data, fds)

    def unknown(self, table: str, number: int) -> Decision:
        """The answer for a number that no rule has, whatever the tables hold."""
        return self._outside(table, False, number)

    def entry(self, table: str, number: int) -> Decision | Decider:
        """The decision for a number when nothing else matters to it, or the function that decides on bytes and fds."""
        return self._tables[table][number]

    def entries(self, table: str) -> Mapping[int, Decision | Decider]:
        """All entries of a table, for who asks often: any number has one, a KeyError is never raised."""
        return self._tables[table]

    def decide_control(self, number: int, params: bytes | None, fds: FdLookup) -> Decision:
        """The answer for a control command with these parameter bytes; None or b"" for a command without any."""
        entry = self._control[number]
        if isinstance(entry, Decision):
            if params is None or len(params) <= RMAPI_PARAM_COPY_MAX_PARAMS_SIZE or not entry.allowed:
                return entry
            return refuse_size(entry.call, "RMAPI_PARAM_COPY_MAX_PARAMS_SIZE", RMAPI_PARAM_COPY_MAX_PARAMS_SIZE)
        return entry(params, fds)

    def decide_alloc(self, number: int, params: bytes | None, fds: FdLookup) -> Decision:
        """The answer for an allocation of a class with these parameter bytes (None: a NULL pointer)."""
        entry = self._alloc[number]
        if isinstance(entry, Decision):
            return entry
        return entry(params, fds)

    def decide_uvm(self, request: int, arg: bytes | None, fds: FdLookup) -> Decision:
        """The answer for an ioctl of /dev/nvidia-uvm; its request is no _IOC number."""
        entry = self._uvm[request]
        if isinstance(entry, Decision):
            return entry
        return entry(arg, fds)

    def decide_frontend(self, request: int, arg: bytes | None, fds: FdLookup) -> Decision:
        """The answer for an ioctl of /dev/nvidiactl or /dev/nvidiaN with its argument struct.

        For NV_ESC_RM_CONTROL and NV_ESC_RM_ALLOC a refusal of the command or class that the struct names is the
        answer; what their parameters deserve is `decide_control`'s and `decide_alloc`'s to say.
        """
        entry = self._frontend[ioctl.number(request)]
        if isinstance(entry, Decision):
            return entry
        rule = self.frontend[ioctl.number(request)]
        size = ioctl.size(request)
        of = rule.params_at(self.version)
        at, sizes = _INNER.get(rule.handler or "", (0, ()))
        if isinstance(of, CStruct) and size != plan(of).size and size not in sizes:
            return refuse_size(self.call("frontend", rule.number), plan(of).name, plan(of).size)
        if arg is not None and len(arg) != size:
            wrong = f"_IOC_SIZE is {size}; the argument"
            return refuse_size(self.call("frontend", rule.number), wrong, len(arg))
        if not sizes or arg is None:
            return entry(arg, fds)
        inner = self.entry(str(rule.handler), int.from_bytes(arg[at : at + 4], "little"))
        if isinstance(inner, Decision) and not inner.allowed:
            return inner
        return Decision(Verdict.ALLOW, Why.RULE, self.call("frontend", rule.number), params=arg)
