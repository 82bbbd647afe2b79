"""Which files are NVIDIA's device nodes: a port of the broker's, with the machine's nodes and a test's in place of them."""

from __future__ import annotations

import os
import re
import stat
import time
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from nvproxy_model.fields import FileKind

__all__ = ["DeviceNodes", "DirectoryNodes", "Node", "Nodes", "kind_of"]


class Node(NamedTuple):
    """One device node: its path as a machine with a driver has it, and how nvproxy sees it (`File.kind`)."""

    path: str
    kind: FileKind


class Nodes(Protocol):
    """Tells device nodes from other files by what stat(2) says of them."""

    def __call__(self, status: os.stat_result, /) -> Node | None: ...


def kind_of(path: str) -> FileKind:
    """``frontend``, ``uvm``, ``open-only`` or ``other``, as nvproxy registers them (nvproxy.go: Register)."""
    name = path.removeprefix("/dev/")
    if re.fullmatch(r"nvidia(ctl|[0-9]+)", name):
        return "frontend"
    if name == "nvidia-uvm":
        return "uvm"
    return "open-only" if name.startswith(("nvidia-caps/", "nvidia-caps-imex-channels/")) else "other"


_NAMES: Final = {
    "nvidia-uvm": {0: "nvidia-uvm", 1: "nvidia-uvm-tools"},
    "nvidia": {255: "nvidiactl", 254: "nvidia-modeset"},
}
"""Driver, minor -> name under /dev (nv-linux.h, uvm_common.h); a frontend's other minors are GPUs."""
_FOLDERS: Final = {
    "nvidia-caps": "nvidia-caps/nvidia-cap",
    "nvidia-caps-imex-channels": "nvidia-caps-imex-channels/channel",
}
_FRONTEND_MAJOR: Final = 195
_AGE: Final = 0.5
"""Seconds that a list of majors is believed not to have grown."""


class DeviceNodes:
    """The machine's own, by the majors in /proc/devices: a node is known by its number, not by its name or place."""

    def __init__(self, devices: Path = Path("/proc/devices")) -> None:
        """Raises OSError."""
        self._devices = devices
        self._drivers = {_FRONTEND_MAJOR: "nvidia"}
        self._read()

    def _read(self) -> None:
        self._when = time.monotonic()
        for line in self._devices.read_text(errors="replace").partition("Block devices")[0].splitlines():
            major, _, name = line.strip().partition(" ")
            if name.startswith("nvidia") and major.isdecimal():
                self._drivers.setdefault(int(major), name)

    def __call__(self, status: os.stat_result) -> Node | None:
        if not stat.S_ISCHR(status.st_mode):
            return None
        major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
        if major not in self._drivers and time.monotonic() - self._when > _AGE:
            self._read()  # nvidia-uvm is often loaded by the first program that wants it
        driver = self._drivers.get(major)
        if driver is None:
            return None
        if driver in _FOLDERS:
            name = f"{_FOLDERS[driver]}{minor}"
        else:
            name = _NAMES.get(driver, {}).get(
                minor, f"nvidia{minor}" if driver == "nvidia" else f"{driver}{minor or ''}"
            )
        path = f"/dev/{name}"
        return Node(path, kind_of(path))


class DirectoryNodes:
    """Files of a directory in place of device nodes, for tests: ``DIR/nvidiactl`` stands for /dev/nvidiactl.

    Make them FIFOs, opened O_RDWR: a frontend's open file can be told from another only where it can be polled.
    """

    def __init__(self, directory: Path) -> None:
        self._nodes = {}
        for path in sorted(directory.rglob("*")):
            status = path.stat()
            if not stat.S_ISDIR(status.st_mode):
                name = f"/dev/{path.relative_to(directory)}"
                self._nodes[status.st_dev, status.st_ino] = Node(name, kind_of(name))

    def __call__(self, status: os.stat_result) -> Node | None:
        return self._nodes.get((status.st_dev, status.st_ino))
