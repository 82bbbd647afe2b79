"""Which routes of a running process are covered by the shim, and what passes it by.

A bypass is a slot of a loaded object that holds the driver's or a runtime's own entry of a covered name, or a C
library's own dlsym: what LD_PRELOAD should have bound to the shim was bound past it (RTLD_DEEPBIND, a dlmopen
namespace, or no preload at all).
"""

from __future__ import annotations

import struct
from dataclasses import asdict, dataclass

from . import remote, surface
from .remote import Object

STATS = "cuinterpose_stats"
_NAMES = frozenset((*surface.DRIVER, *surface.RUNTIME, "dlsym", "dlclose", STATS))
_OWNERS = (surface.DRIVER_SONAME, *surface.RUNTIME_SONAMES, "libc.so.6", "libdl.so.2")
_STATS_FIELDS = ("struct_size", "abi", "disabled", "bound", "by_dlsym", "by_resolver", "by_runtime", "unrecognised")
_STATS_FORMAT = "<4I4Q"


@dataclass(frozen=True)
class Reference:
    """A slot of an object: state is covered, bypass, unbound (a lazy slot not used yet) or other (another interposer)."""

    object: str
    symbol: str
    route: str
    state: str
    target: str


@dataclass(frozen=True)
class Diagnosis:
    """What was found in a process. objects: the paths of the shim, drivers and runtimes that are mapped."""

    pid: int
    shim: str | None
    stats: dict[str, int] | None
    drivers: tuple[str, ...]
    runtimes: tuple[str, ...]
    references: tuple[Reference, ...]
    unreadable: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """covered, bypassed, or unclear: nothing of CUDA is mapped, or something could not be read."""
        if not self.drivers and not self.runtimes:
            return "unclear"
        if not self.shim or any(reference.state == "bypass" for reference in self.references):
            return "bypassed"
        if self.stats and (self.stats["disabled"] or self.stats["unrecognised"]):
            return "bypassed"
        return "unclear" if self.unreadable or not self.stats else "covered"

    def as_json(self) -> dict[str, object]:
        return {"schema": "cuinterpose.doctor/1", "verdict": self.verdict, **asdict(self)}


def _route(symbol: str) -> str:
    if symbol in ("dlsym", "dlclose"):
        return symbol
    if symbol in surface.RUNTIME:
        return "runtime"
    return "resolver" if symbol.startswith("cuGetProcAddress") else "direct"


def _judge(value: int, symbol: str, holder: Object, target: Object | None) -> str:
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
    """Reads the process and changes nothing. PermissionError, ProcessLookupError or another OSError if it is out of reach."""
    everything = remote.objects(pid, _NAMES)
    shim = next((item for item in everything if STATS in item.symbols), None)
    stats = None
    if shim:
        try:
            raw = remote.read_memory(pid, shim.symbols[STATS], struct.calcsize(_STATS_FORMAT))
            read = dict(zip(_STATS_FIELDS, struct.unpack(_STATS_FORMAT, raw), strict=True))
            stats = read if read["struct_size"] >= len(raw) and read["abi"] == 1 else None
        except remote.Unreadable as error:
            shim.unreadable = f"{STATS}: {error}"
    references = []
    for item in everything:
        for slot in item.slots:
            target = next((other for other in everything if other.holds(slot.value)), None)
            # The shim's references are its business, and what an object defines itself is no import.
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
        tuple(f"{item.path}: {item.unreadable}" for item in everything if item.unreadable),
    )
