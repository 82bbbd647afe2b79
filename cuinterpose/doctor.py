"""Which routes of a running process are covered by the shim, and what passes it by.

A bypass is a slot of a loaded object that holds the driver's or a runtime's own entry of a covered name, or a C
library's own dlsym: what LD_PRELOAD should have bound to the shim was bound past it (RTLD_DEEPBIND, a dlmopen
namespace, or no preload at all).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Literal, get_args

from . import remote, surface
from .remote import Object

STATS = "cuinterpose_stats"
_NAMES = frozenset((*surface.DRIVER, *surface.RUNTIME, "dlsym", "dlclose", STATS))
_OWNERS = (surface.DRIVER_SONAME, *surface.RUNTIME_SONAMES, "libc.so.6", "libdl.so.2")
_STATS_FIELDS = (
    "struct_size",
    "abi",
    "disabled",
    "bound",
    "by_dlsym",
    "by_resolver",
    "by_runtime",
    "unrecognised",
    "tracked",
)
_STATS_FORMAT = "<4I4QI4x"
_STATS_WITHOUT_TRACKED = 48  # bytes
_SHOWN = 10  # lines of what could not be read


Route = Literal["dlsym", "dlclose", "runtime", "resolver", "direct"]
State = Literal["covered", "bypass", "unbound", "other"]
"""Where a reference leads. unbound: a lazy slot not used yet; other: to another interposer."""
Verdict = Literal["covered", "bypassed", "unclear"]
"""unclear: no CUDA is loaded, or what could not be read may change the answer."""


@dataclass(frozen=True)
class Reference:
    """A slot of an object that refers to a covered name. object, target: paths."""

    object: str
    symbol: str
    route: Route
    state: State
    target: str


@dataclass(frozen=True)
class Diagnosis:
    """What was found in a process.

    shim, drivers, runtimes: paths of what is mapped. stats: the shim's counters, None without a shim that has them.
    references: every slot that refers to a covered name. unreadable: a line for each thing that could not be read.
    """

    pid: int
    shim: str | None
    stats: dict[str, int] | None
    drivers: tuple[str, ...]
    runtimes: tuple[str, ...]
    references: tuple[Reference, ...]
    unreadable: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        """The answer in one word."""
        return self._answer[0]

    @property
    def why(self) -> str:
        """The verdict as a sentence."""
        return self._answer[1]

    @property
    def advice(self) -> str:
        """What to do about it; empty if nothing."""
        return self._answer[2]

    @property
    def _answer(self) -> tuple[Verdict, str, str]:
        bypasses = sum(reference.state == "bypass" for reference in self.references)
        unread = f"{len(self.unreadable)} of its objects could not be read" if self.unreadable else ""
        if not self.drivers and not self.runtimes:
            if unread:
                return "unclear", f"cannot tell: {unread}; CUDA and the shim may be among them", ""
            with_shim = "the shim is loaded, but " if self.shim else ""
            return (
                "unclear",
                f"cannot tell: {with_shim}CUDA is not loaded: neither {surface.DRIVER_SONAME} nor a runtime (libcudart.so)",
                "ask again once the process has made its first CUDA call",
            )
        if not self.shim and unread and not bypasses:
            return "unclear", f"cannot tell: {unread}; the shim may be among them", ""
        if not self.shim:
            return "bypassed", "bypassed: the shim is not loaded", "start it with: cuinterpose run -- COMMAND"
        if bypasses:
            return (
                "bypassed",
                f"bypassed: {bypasses} references lead past the shim",
                "RTLD_DEEPBIND, dlmopen and a dlsym of libc's own lead past a preloaded object: see the lines below",
            )
        if self.stats and self.stats["disabled"]:
            return "bypassed", "bypassed: the shim is disabled", "unset CUINTERPOSE_DISABLE and start it again"
        if self.stats and (others := self.stats["unrecognised"]):
            return (
                "bypassed",
                f"bypassed: {others} answers named neither the driver's functions nor the shim's",
                "look for a second copy of the driver, or another interposer, among the objects below",
            )
        if unread:
            return "unclear", f"cannot tell: {unread}", ""
        if not self.stats:
            return "unclear", f"cannot tell: the shim's {STATS} is not of a version that this doctor knows", ""
        return "covered", "covered: every reference to a covered name leads to the shim", ""

    def as_json(self) -> dict[str, object]:
        """The document of schema cuinterpose.doctor/1."""
        return {
            "schema": "cuinterpose.doctor/1",
            "verdict": self.verdict,
            "why": self.why,
            "advice": self.advice,
            **asdict(self),
        }

    def lines(self, *, verbose: bool = False) -> list[str]:
        """For people: the answer, what to do, and what it rests on. verbose: covered references too."""
        lines = [f"process {self.pid}: {self.why}"]
        if self.advice:
            lines.append(f"  {self.advice}")
        lines.append(f"  shim      {self.shim or 'not loaded'}")
        lines += [f"            {stat} {value}" for stat, value in (self.stats or {}).items()]
        for label, paths in (("driver", self.drivers), ("runtime", self.runtimes)):
            lines += [f"  {label:9} {path}" for path in paths or ("not loaded",)]
        counts = Counter(reference.state for reference in self.references)
        lines += [
            f"  {reference.state:9} {reference.symbol} of {reference.object}: {reference.target}"
            for reference in self.references
            if verbose or reference.state != "covered"
        ]
        lines.append("  slots     " + ", ".join(f"{counts[state]} {state}" for state in get_args(State)))
        shown = len(self.unreadable) if verbose else _SHOWN
        lines += [f"  unread    {line}" for line in self.unreadable[:shown]]
        if len(self.unreadable) > shown:
            lines.append(f"  unread    and {len(self.unreadable) - shown} more (--verbose)")
        return lines


def _route(symbol: str) -> Route:
    if symbol in ("dlsym", "dlclose"):
        return "dlsym" if symbol == "dlsym" else "dlclose"
    if symbol in surface.RUNTIME:
        return "runtime"
    return "resolver" if symbol.startswith("cuGetProcAddress") else "direct"


def _judge(value: int, symbol: str, holder: Object, target: Object | None) -> State:
    """The state of a slot that holds value, within target."""
    if target is None:
        return "other" if value else "unbound"
    if target is holder:
        return "unbound"  # its own PLT
    if STATS in target.symbols:
        return "covered"
    own_entry = target.symbols.get(symbol) == value
    return "bypass" if own_entry and target.soname in _OWNERS else "other"


def diagnose(pid: int) -> Diagnosis:
    """Looks at a process and changes nothing.

    OSError if it is out of reach: PermissionError without the right to trace it, ProcessLookupError if there is none.
    """
    everything, left_out = remote.objects(pid, _NAMES)
    bases = [item.base for item in everything]

    def holder(address: int) -> Object | None:
        at = bisect_right(bases, address) - 1
        return everything[at] if at >= 0 and address < everything[at].end else None

    shim = next((item for item in everything if STATS in item.symbols), None)
    stats = None
    if shim:
        try:
            raw = remote.read_memory(pid, shim.symbols[STATS], struct.calcsize(_STATS_FORMAT))
            read = dict(zip(_STATS_FIELDS, struct.unpack(_STATS_FORMAT, raw), strict=True))
            stats = read if read["struct_size"] >= _STATS_WITHOUT_TRACKED and read["abi"] == 1 else None
            if read["struct_size"] < len(raw):
                read["tracked"] = 0
        except remote.Unreadable as error:
            shim.unreadable = f"{STATS}: {error}"
    references = []
    for item in everything:
        for slot in item.slots:
            target = holder(slot.value)
            # The shim's own references are left out, and so is what an object defines for itself.
            if item is shim or (target is item and target.symbols.get(slot.symbol) == slot.value):
                continue
            state = _judge(slot.value, slot.symbol, item, target)
            where = target.path if target else f"{slot.value:#x}"
            references.append(Reference(item.path, slot.symbol, _route(slot.symbol), state, where))
    return Diagnosis(
        pid,
        shim.path if shim else None,
        stats,
        tuple(item.path for item in everything if item.soname == surface.DRIVER_SONAME),
        tuple(item.path for item in everything if item.soname in surface.RUNTIME_SONAMES),
        tuple(references),
        (*(f"{item.path}: {item.unreadable}" for item in everything if item.unreadable), *left_out),
    )
