"""The host-side system calls that a policy's session can make: the allow list that a sandbox's seccomp filter
needs.

gVisor: pkg/sentry/devices/nvproxy/seccomp_filters.go. The list depends on the capabilities only, because one
filter serves every release: a request whose struct has had two sizes is admitted at any size, and each row
says which one this release uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from nvproxy_model import abi, ioctl, versions
from nvproxy_model.abi.constants import UVM_TOOLS_READ_PROCESS_MEMORY, UVM_TOOLS_WRITE_PROCESS_MEMORY
from nvproxy_model.caps import Caps
from nvproxy_model.fields import CStruct
from nvproxy_model.followed import is_pending
from nvproxy_model.rules import Rule
from nvproxy_model.versions import DriverVersion

__all__ = ["EXCEPTIONS", "MAPPING", "Request", "allow_list"]

EXCEPTIONS: Mapping[str, str] = {
    "NV_ESC_NUMA_INFO": "a rule refuses it, so the host never sees it",
    "UVM_TOOLS_READ_PROCESS_MEMORY": "nvproxy issues it itself, for reads of UVM memory; a program's own is refused",
    "UVM_TOOLS_WRITE_PROCESS_MEMORY": "nvproxy issues it itself, for writes to UVM memory; a program's own is refused",
    "NV_ESC_RM_ALLOC": "a program may use the 32-byte form; the host is always given the 48-byte one",
    "any size": "the driver's struct changed size between releases, or the escape takes an array of any length",
}
"""Where the list and the handlers differ, and why; there is no other difference."""

MAPPING: Mapping[str, Mapping[str, Any]] = {
    "mmap": {"flags": ["MAP_SHARED", "MAP_FIXED_NOREPLACE"], "exact": True},
    "mremap": {"old_size": 0, "flags": ["MREMAP_MAYMOVE", "MREMAP_FIXED"], "exact": True},
}
"""What mapping driver memory, and making a program's pages contiguous, needs beside ioctl(2)."""

_TOOLS = {
    UVM_TOOLS_READ_PROCESS_MEMORY: "UVM_TOOLS_READ_PROCESS_MEMORY",
    UVM_TOOLS_WRITE_PROCESS_MEMORY: "UVM_TOOLS_WRITE_PROCESS_MEMORY",
}


@dataclass(frozen=True, slots=True)
class Request:
    """One admitted ioctl request of a non-negative fd.

    ``size`` is None where any is admitted, and ``size_in_release`` what the release uses: None for an array
    of any length, and where ``in_release`` is false. ``request`` is the whole number, or for any size the one
    with the size bits 0.
    """

    device: Literal["frontend", "uvm"]
    number: int
    name: str
    caps: Caps
    size: int | None
    size_in_release: int | None
    in_release: bool

    @property
    def request(self) -> int:
        """What ioctl(2) is given: _IOWR('F', number, size) for a frontend, the command itself for UVM."""
        return self.number if self.device == "uvm" else ioctl.request(self.number, self.size or 0)

    @property
    def mask(self) -> int:
        """The bits of ioctl(2)'s request that must equal ``request``'s."""
        return 0xFFFFFFFF if self.device == "uvm" or self.size is not None else 0xC000FFFF


def allow_list(version: DriverVersion, caps: Caps, *, pending: bool = False) -> tuple[Request, ...]:
    """Every request that a session of this release and these capabilities may make, frontend first, by
    number.

    Empty for no capabilities at all. ``pending`` as in ``Policy.for_driver``.
    """
    tables = ([rule for rule in rules if pending or not is_pending(rule.later)] for rules in (abi.FRONTEND, abi.UVM))
    rows = [request for rules in tables for request in _requests(rules, version, caps)]
    if caps:
        every = Caps(sum(Caps))
        rows += [Request("uvm", number, name, every, 0, 0, True) for number, name in _TOOLS.items()]
    return tuple(sorted(rows, key=lambda row: (row.device, row.number)))


def _requests(rules: Iterable[Rule], version: DriverVersion, caps: Caps) -> Iterator[Request]:
    by_number: dict[int, list[Rule]] = {}
    for rule in rules:
        if not rule.rejected and rule.caps & caps:
            by_number.setdefault(rule.number, []).append(rule)
    for number, group in by_number.items():
        now = next((rule for rule in group if rule.active(version)), None)
        sizes = {size for rule in group for size in _sizes(rule)}
        yield Request(
            "uvm" if group[0].table == "uvm" else "frontend",
            number,
            (now or group[-1]).name,
            (now or group[-1]).caps,
            sizes.pop() if len(sizes) == 1 else None,
            _size(now, version) if now is not None else None,
            now is not None,
        )


def _size(rule: Rule, version: DriverVersion) -> int | None:
    if rule.table == "uvm":
        return 0  # A UVM command is a plain number: no size is encoded in it.
    of = rule.params_at(version)
    return of.sizeof() if isinstance(of, CStruct) else None


def _sizes(rule: Rule) -> set[int | None]:
    return {_size(rule, version) for version in versions.load().values() if rule.active(version)}
