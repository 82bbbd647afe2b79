"""A C program under a broker, over a FakeDriver and nodes that are FIFOs of a directory."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nvproxy_model import Policy
from nvproxy_model.live import Broker, DirectoryNodes, NotifyError, Report
from nvproxy_model.session.ports import Buffer
from nvproxy_model.structs.nv_ioctl import nv_ioctl_export_to_dma_buf_fd_t
from nvproxy_model.structs.nvos import NV_MEMORY_ALLOCATION_PARAMS
from nvproxy_model.testing import FakeDriver

VERSION = "580.159.04"
NODES = ("nvidiactl", "nvidia0", "nvidia-uvm", "nvidia-modeset", "nvidia-uvm-tools")
PROGRAM = Path(__file__).with_name("program.c")


class LockedDriver:
    """A FakeDriver that several threads may call; ``during`` is called without its lock, before each call."""

    def __init__(self) -> None:
        self.fake = FakeDriver(VERSION)
        self.during: Callable[[int, Buffer | None], None] = lambda request, arg: None
        self.calls = 0
        self._lock = threading.Lock()

    def ioctl(self, host_fd: int, request: int, arg: Buffer | None) -> int:
        self.during(request, arg)
        with self._lock:
            self.calls += 1
            error = self.fake.ioctl(host_fd, request, arg)
            if request & 0xFF == 0xD9 and arg is not None and not error:
                _real_descriptor(arg)
            return error

    def close(self, host_fd: int) -> None:
        with self._lock:
            self.fake.close(host_fd)


def _real_descriptor(arg: Buffer) -> None:
    """The fake driver numbers its dma-bufs from where no descriptor is; the kernel wants one that is open."""
    if int.from_bytes(arg.data[:4], "little") >= 1 << 20:
        fd = os.eventfd(42, os.EFD_CLOEXEC)  # can be polled, as a dma-buf can
        arg.data[:4] = fd.to_bytes(4, "little")


@dataclass
class Ran:
    report: Report
    broker: Broker
    driver: LockedDriver
    out: str

    @property
    def calls(self) -> Any:
        return self.broker.tally.calls

    @property
    def refused(self) -> dict[str, int]:
        return {self.report.title(refusal): refusal.count for refusal in self.report.refused}


@contextmanager
def redirected(out: int, source: int) -> Any:
    """Our own standard input and output, which a program inherits, for a while."""
    kept = os.dup(0), os.dup(1)
    os.dup2(source, 0)
    os.dup2(out, 1)
    try:
        yield
    finally:
        for fd, number in zip(kept, (0, 1), strict=True):
            os.dup2(fd, number)
            os.close(fd)


@dataclass
class World:
    """Programs, nodes, and how to run one on the others."""

    nodes: Path
    program: Path
    static: Path | None

    def run(self, *arguments: Any, caps: str = "compute,utility", program: Path | None = None, **options: Any) -> Ran:
        driver = options.pop("driver", None) or LockedDriver()
        environment = {**os.environ, **options.pop("environment", {})}
        version = options.pop("version", VERSION)
        source = options.pop("stdin", None)
        options.setdefault("in_place", ())
        policy = Policy.for_driver(version, caps, allow_unsupported=True)
        nodes = DirectoryNodes(self.nodes)
        broker = Broker(policy, host=driver, nodes=nodes, closed=driver.close, **options)
        command = [str(program or self.program), str(self.nodes), *map(str, arguments)]
        with tempfile.TemporaryFile() as out:
            null = os.open(os.devnull, os.O_RDONLY) if source is None else source
            try:
                with redirected(out.fileno(), null):
                    report = broker.run(command, environment)
            finally:
                if source is None:
                    os.close(null)
            out.seek(0)
            return Ran(report, broker, driver, out.read().decode())


def build(directory: Path) -> None:
    """The program, dynamic and, where there is a static libc, static. Its layouts are the model's."""
    cc = shutil.which(os.environ.get("CC", "cc"))
    if cc is None:
        pytest.skip("no C compiler")
    memory = NV_MEMORY_ALLOCATION_PARAMS.at(Policy.for_driver(VERSION).version)
    export = nv_ioctl_export_to_dma_buf_fd_t.at(Policy.for_driver(VERSION).version)
    at = {f"{name}.{path}": offset for name, of in (("m", memory), ("e", export)) for path, offset, _ in of.walk()}
    defines = {
        "MEMORY_SIZE": memory.sizeof(),
        "MEMORY_BYTES": at["m.size"],
        "MEMORY_ATTR2": at["m.attr2"],
        "EXPORT_SIZE": export.sizeof(),
        "EXPORT_FD": at["e.fd"],
        "EXPORT_CLIENT": at["e.hClient"],
    }
    flags = [
        "-std=gnu11",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pthread",
        *(f"-D{k}={v}" for k, v in defines.items()),
    ]
    directory.mkdir(exist_ok=True)
    dynamic, static = directory / "program", directory / "static"
    subprocess.run([cc, *flags, "-o", str(dynamic), str(PROGRAM)], check=True)
    subprocess.run([cc, *flags, "-static", "-o", str(static), str(PROGRAM)], capture_output=True, check=False)


def available() -> None:
    """Skip where the kernel or a sandbox allows no user notification, naming what is absent."""
    try:
        Broker(Policy.for_driver(VERSION), host=LockedDriver(), nodes=lambda status: None).run(["true"])
    except NotifyError as error:
        pytest.skip(str(error))
