"""Which device stands behind a descriptor, per process, and whose device a node is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal, get_args

from nvproxy_model import ioctl
from nvproxy_model.trace.format import Record

__all__ = [
    "DEVICE_KINDS",
    "DescriptorMap",
    "Descriptors",
    "DeviceKind",
    "device_kind",
    "graphics",
    "ioctl_kind",
    "kind_on",
    "node",
    "nvidia",
]

_PROCESSES: Final = 1 << 16
_DESCRIPTORS: Final = 1 << 18
"""Changes to all descriptor tables together that are remembered."""

_FRONTEND: Final = re.compile(r"/dev/nvidia(?:ctl|[0-9]+)")

DeviceKind = Literal["frontend", "uvm", "open-only", "other"]
DEVICE_KINDS: Final[tuple[DeviceKind, ...]] = get_args(DeviceKind)


def device_kind(path: str | None) -> DeviceKind:
    """How nvproxy sees a device node: ``frontend`` (nvidiactl, nvidiaN), ``uvm``, ``open-only`` (nvidia-caps,
    IMEX channels), or ``other``.
    """
    path = path or ""
    if _FRONTEND.fullmatch(path):
        return "frontend"
    if path == "/dev/nvidia-uvm":
        return "uvm"
    if path.startswith(("/dev/nvidia-caps/", "/dev/nvidia-caps-imex-channels/")):
        return "open-only"
    return "other"


def ioctl_kind(path: str) -> str:
    """The kind of an ioctl on a device node of which only the request is known: ``fe``, ``uvm`` or ``other``."""
    if path == "/dev/nvidia-uvm-tools":
        return "uvm"
    return {"frontend": "fe", "uvm": "uvm"}.get(device_kind(path), "other")


def kind_on(path: str, request: int) -> str:
    """The kind of a request on a device node: ``other`` for one that has another driver's letter, as TCGETS has."""
    kind = ioctl_kind(path)
    return "other" if kind == "fe" and ioctl.magic(request) not in (0, ioctl.NV_IOCTL_MAGIC) else kind


def nvidia(path: str | None) -> bool:
    """Whether a node is one of NVIDIA's."""
    return path is not None and path.startswith("/dev/nvidia")


def graphics(path: str | None) -> bool:
    """Whether a node belongs to another driver of a GPU: the kernel's DRM, or WSL's."""
    return path is not None and (path.startswith("/dev/dri/") or path == "/dev/dxg")


_NODE: Final = re.compile(r"(?:/[^/]+)*?(/dev/(?:nvidia|dri/|dxg).*)")
_MAJOR: Final = 195
"""Documentation/admin-guide/devices.txt: nvidia0 to nvidia253, nvidia-modeset (254), nvidiactl (255)."""
_MINORS: Final = {254: "/dev/nvidia-modeset", 255: "/dev/nvidiactl"}
_CHAR: Final = re.compile(r"char ([0-9]{1,5}):([0-9]{1,7})")


def node(path: str) -> str | None:
    """The device node that a path or ``char MAJOR:MINOR`` stands for, or the path as it is; None for another description of a file.

    A node below another root, as a tracer outside a container sees it, and one that was deleted are the node.
    """
    number = _CHAR.fullmatch(path)
    if number is not None:
        minor = int(number[2])
        return _MINORS.get(minor, f"/dev/nvidia{minor}") if int(number[1]) == _MAJOR else None
    if not path.startswith("/"):
        return None
    path = path.removesuffix(" (deleted)")
    below = _NODE.fullmatch(path) if "/dev/" in path else None
    return below[1] if below is not None else path


_BITS: Final = 5
_WIDTH: Final = 1 << _BITS
_EMPTY: Final[tuple[None, ...]] = (None,) * _WIDTH


class DescriptorMap:
    """Descriptor -> device node. A copy costs nothing and shares all that neither side has changed since.

    A tree of tuples, 32 to a node: a change copies the path to its leaf. A fork bomb in a log costs memory only for what its
    processes really do.
    """

    __slots__ = ("_height", "_root")

    def __init__(self) -> None:
        self._root: tuple[object, ...] = _EMPTY
        self._height = 1

    def copy(self) -> DescriptorMap:
        """An independent map with the same content."""
        other = DescriptorMap()
        other._root, other._height = self._root, self._height
        return other

    def get(self, fd: int) -> str | None:
        """The device behind a descriptor, or None."""
        if fd < 0 or fd >> _BITS * self._height:
            return None
        node: object = self._root
        for level in range(self._height - 1, -1, -1):
            if not isinstance(node, tuple):
                return None
            node = node[fd >> _BITS * level & _WIDTH - 1]
        return node if isinstance(node, str) else None

    def __contains__(self, fd: int) -> bool:
        return self.get(fd) is not None

    def set(self, fd: int, device: str | None) -> None:
        """Put a device behind a descriptor from 0 to 2**31 - 1; None takes it away."""
        while fd >> _BITS * self._height:
            self._root = (self._root if self._root != _EMPTY else None, *_EMPTY[1:])
            self._height += 1
        self._root = _replaced(self._root, self._height - 1, fd, device)

    def items(self) -> Iterator[tuple[int, str]]:
        """Descriptors in ascending order, with their devices."""
        yield from _leaves(self._root, self._height - 1, 0)


def _replaced(node: tuple[object, ...], level: int, fd: int, device: str | None) -> tuple[object, ...]:
    at = fd >> _BITS * level & _WIDTH - 1
    below: object = device
    if level:
        child = node[at]
        below = _replaced(child if isinstance(child, tuple) else _EMPTY, level - 1, fd, device)
    return (*node[:at], below, *node[at + 1 :])


def _leaves(node: object, level: int, base: int) -> Iterator[tuple[int, str]]:
    if isinstance(node, tuple):
        for at, below in enumerate(node):
            if isinstance(below, str):
                yield base | at, below
            elif below is not None:
                yield from _leaves(below, level - 1, base | at << _BITS * level)


class Descriptors:
    """Follows open, dup, close, fork and exec through the records of a trace."""

    def __init__(self) -> None:
        self._open: dict[int, DescriptorMap] = {}
        self._found: set[tuple[int, int]] = set()
        """What `has` has found, as long as it holds."""
        self._left = _DESCRIPTORS
        self.unseen = 0
        """Descriptors that an ioctl names though nothing in the trace opened them."""
        self.dropped = 0
        """Changes beyond the limit, which were not followed."""

    def of(self, pid: int) -> DescriptorMap:
        """The device nodes of one process by descriptor."""
        table = self._open.get(pid)
        if table is None:
            if len(self._open) >= _PROCESSES:
                self._open.pop(next(iter(self._open)))
                self._found.clear()
                self.dropped += 1
            table = self._open[pid] = DescriptorMap()
        return table

    def has(self, pid: int, fd: int) -> bool:
        """Whether a device node is known behind a descriptor. Quick: programs make most of their calls on a few descriptors."""
        if (pid, fd) in self._found:
            return True
        if fd not in self.of(pid):
            return False
        if len(self._found) >= _PROCESSES:
            self._found.clear()
        self._found.add((pid, fd))
        return True

    def feed(self, rec: Record) -> None:
        """One record, in the order of the trace."""
        k = rec.k
        if k in ("ioctl", "mmap"):
            if rec.dev is not None and rec.fd >= 0 and rec.fd not in self.of(rec.pid):
                self._set(rec.pid, rec.fd, rec.dev)
                self.unseen += 1
        elif k in ("open", "fd"):
            if rec.fd >= 0 and rec.dev is not None and not rec.err:
                self._set(rec.pid, rec.fd, rec.dev)
        elif k == "close":
            if not rec.err:
                self._set(rec.pid, rec.fd, None)
        elif k == "dup":
            if rec.ret is not None and 0 <= rec.ret <= 0x7FFFFFFF:
                self._set(rec.pid, rec.ret, rec.dev or self.of(rec.pid).get(rec.fd))
        elif k == "process":
            parent = rec.raw.get("ppid")
            if rec.raw.get("how") == "fork" and isinstance(parent, int) and parent in self._open:
                self._open[rec.pid] = self._open[parent].copy()
                self._found.clear()

    def _set(self, pid: int, fd: int, device: str | None) -> None:
        table = self.of(pid)
        if device is None and table.get(fd) is None:
            return
        if not self._left:
            self.dropped += 1
            return
        self._left -= 1
        self._found.discard((pid, fd))
        table.set(fd, device)

    def __iter__(self) -> Iterator[tuple[int, int, str]]:
        for pid, table in self._open.items():
            for fd, dev in table.items():
                yield pid, fd, dev
