"""A host that looks where a driver would look: it follows every pointer and takes every descriptor of what it is given.

Which fields those are is read from the driver, not from this model: the embedded-copy list of the recorded release
(embedded_param_copy.c), the recorded layouts, and the curated list of driver functions that consume a descriptor. A pointer
that is not NULL must be one that the session handed over as a buffer, and a descriptor one of the host's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from nvproxy_model import ioctl, versions
from nvproxy_model.abi import TABLES
from nvproxy_model.abi.escapes import ARGUMENTS, NV_ESC_RM_ALLOC, NV_ESC_RM_ALLOC_MEMORY, NV_ESC_RM_CONTROL
from nvproxy_model.drivers import facts
from nvproxy_model.drivers.compare.carriers import fd_paths
from nvproxy_model.drivers.release import Release, control_struct
from nvproxy_model.layout import Leaf
from nvproxy_model.rules import Rule, Table, active
from nvproxy_model.session.ports import Buffer, Host, Pages
from nvproxy_model.versions import DriverVersion

FDS = fd_paths()
POINTERS = {
    "NVOS30_PARAMETERS": ("phClients", "phDevices", "phChannels"),
    "NVOS54_PARAMETERS": ("params",),
    "NVOS64_PARAMETERS": ("pAllocParms", "pRightsRequested"),
}
"""What escape.c copies in and out itself, beside the list (phClients: rmapi_deprecated_misc.c)."""
NV01_MEMORY_SYSTEM_OS_DESCRIPTOR, NV01_EVENT_OS_EVENT = 0x71, 0x79
NO_DESCRIPTOR = (0, 0xFFFFFFFF)
"""0 and -1 ask for none, where a driver function takes that."""


@cache
def _recorded() -> facts.Facts:
    return facts.load()


@cache
def recorded(version: str) -> Release:
    """The recorded facts of a release, or of its nearest recorded ancestor."""
    node = versions.load().find(version, allow_unsupported=True)
    return _recorded().release(next(name for name in node.lineage if name in _recorded().versions))


@cache
def _rows(version: str) -> tuple[Mapping[Table, Mapping[int, Rule]], DriverVersion]:
    node = versions.load().find(version, allow_unsupported=True)
    return {table: active(rows, node) for table, rows in TABLES.items()}, node


class Follower:
    """A Host in front of another one. ``followed`` and ``taken`` count what it looked at; ``mine`` knows the host's descriptors."""

    def __init__(self, version: str, inner: Host, mine: Callable[[int], bool]) -> None:
        self.release = recorded(version)
        self.inner = inner
        self.mine = mine
        self.followed = self.taken = 0
        self._names, self._node = _rows(version)

    def ioctl(self, host_fd: int, request: int, arg: Buffer | None) -> int:
        assert self.mine(host_fd), f"a call on {host_fd:#x}, which is not a descriptor of the host"
        if arg is not None:
            if request & 0xC000FF00 == 0xC0004600:
                self._escape(ioctl.number(request), arg)
            else:
                rule = self._names["uvm"].get(request)
                self._look("" if rule is None else rule.struct_at(self._node) or "", (), arg)
        return self.inner.ioctl(host_fd, request, arg)

    def _escape(self, nr: int, arg: Buffer) -> None:
        name = ARGUMENTS[nr][0] if nr in ARGUMENTS else ""
        followed = POINTERS.get(name, ())
        if nr == NV_ESC_RM_ALLOC_MEMORY and self._word(arg, 12) == NV01_MEMORY_SYSTEM_OS_DESCRIPTOR:
            followed = ("params.pMemory",)
        self._look(name, followed, arg, none=nr != 0xC9)
        if nr == NV_ESC_RM_CONTROL and isinstance(params := arg.pointers.get(16), Buffer):
            rule = self._names["control"].get(self._word(arg, 8))
            if rule is not None:
                struct = control_struct(self.release, rule.name) or rule.struct_at(self._node) or ""
                # Registered under the name of the driver's own method, which is not always the command's.
                self._look(struct, self.release.embedded.get(rule.name, ()), params)
        if nr == NV_ESC_RM_ALLOC and isinstance(params := arg.pointers.get(16), Buffer):
            hclass = self._word(arg, 12)
            rule = self._names["alloc"].get(hclass)
            assert rule is not None, f"class {hclass:#x} reached the driver"
            struct = rule.struct_at(self._node) or ""
            self._look(struct, (), params, fds=struct != "NV0005_ALLOC_PARAMETERS" or hclass == NV01_EVENT_OS_EVENT)

    @staticmethod
    def _word(arg: Buffer, at: int) -> int:
        return int.from_bytes(arg.data[at : at + 4], "little")

    def _look(
        self, struct: str, followed: tuple[str, ...], buffer: Buffer, *, fds: bool = True, none: bool = True
    ) -> None:
        layout = self.release.structs.get(struct)
        if layout is None or layout.size != len(buffer.data):
            assert not followed or layout is None, f"{struct}: {len(buffer.data)} bytes, and pointers to follow"
            return
        leaves = {leaf.path: leaf for leaf in layout.leaves()}
        for path in followed:
            self._follow(struct, leaves[path], buffer)
        for path in FDS.get(struct, ()) if fds else ():
            if path in leaves:
                self._take(struct, leaves[path], buffer, none=none)
        self._nothing_else(struct, leaves, followed, buffer)

    def _follow(self, struct: str, leaf: Leaf, buffer: Buffer) -> None:
        value = int.from_bytes(buffer.data[leaf.offset : leaf.offset + 8], "little")
        behind = buffer.pointers.get(leaf.offset)
        assert value == 0, (
            f"{struct}.{leaf.path}: the driver would follow {value:#x}, which the session did not put there"
        )
        if behind is not None:
            self.followed += 1
            assert isinstance(behind, Pages) or behind.data, f"{struct}.{leaf.path}: nothing to read"

    def _take(self, struct: str, leaf: Leaf, buffer: Buffer, *, none: bool) -> None:
        value = int.from_bytes(buffer.data[leaf.offset : leaf.offset + leaf.size], "little")
        low = value & 0xFFFFFFFF
        if none and (low in NO_DESCRIPTOR or low >> 31):
            return
        self.taken += 1
        assert self.mine(low), (
            f"{struct}.{leaf.path}: the driver would take descriptor {value:#x}, which is the guest's"
        )

    @staticmethod
    def _nothing_else(struct: str, leaves: dict[str, Leaf], followed: tuple[str, ...], buffer: Buffer) -> None:
        """The session hands over no buffer where the driver has no pointer: an address would stand in a plain field."""
        places = {leaves[path].offset for path in followed if path in leaves}
        pointers = {leaf.offset for leaf in leaves.values() if leaf.base in ("ptr", "u64")}
        for at in buffer.pointers:
            assert at in places | pointers, f"{struct}+{at}: a buffer where the driver has no pointer"
