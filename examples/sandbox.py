"""A sandbox around a Session in 60 lines: it opens nodes, answers the system calls of a small guest, and says what happened."""

from __future__ import annotations

import errno
from collections.abc import Iterator

from nvproxy_model import File, Files, Policy, Result, Session
from nvproxy_model.fields import FileKind
from nvproxy_model.structs.nvos import NVOS54_PARAMETERS, NVOS64_PARAMETERS
from nvproxy_model.testing import FakeDriver, Memory

NODES: dict[str, FileKind] = {"/dev/nvidiactl": "frontend", "/dev/nvidia0": "frontend", "/dev/nvidia-uvm": "uvm"}
ALLOC, CONTROL, INITIALIZE = 0xC030462B, 0xC020462A, 0x30000001  # requests of the frontend devices, and of UVM
ARG, PARAMS = 0x10000, 0x11000
Calls = Iterator[tuple[str, int | str, int]]  # a name; a path, or a descriptor and a request


class Sandbox:
    """One guest process, over a driver that is not there."""

    def __init__(self, version: str, caps: list[str]) -> None:
        self.memory, self.files, self.host_fds = Memory(0x10000, 0x20000), Files(), iter(range(1000, 2000))
        self.session = Session(Policy.for_driver(version, caps), self.memory, self.files, FakeDriver(version))

    def open(self, path: str) -> int:
        if path not in NODES:
            return -errno.ENOENT
        host_fd = next(self.host_fds)  # here os.open(path) would be
        return self.files.install(File(NODES[path], host_fd, control_device=path == "/dev/nvidiactl"))

    def run(self, calls: Calls) -> None:
        for name, first, request in calls:
            if isinstance(first, str):
                fd = self.open(first)
                print(f"open {first}: {fd if fd >= 0 else errno.errorcode[-fd]}")
                continue
            result = self.session.close(first) if name == "close" else self.session.ioctl(first, request, ARG)
            print(f"{name} on {first}: {said(result)}; {len(self.session.objects())} objects")


def said(result: Result) -> str:
    """An answer in words; a driver's status is in the guest's memory."""
    words = [
        errno.errorcode[result.errno] if result.errno else "0",
        *(f"host descriptor {fd} ends" for fd in result.close),
    ]
    return ", ".join(words + ([result.decision.reason] if result.decision else []))


def guest(memory: Memory) -> Calls:
    """A program that opens three nodes and makes a client, a device, and two calls that this sandbox does not have."""
    yield from (("open", path, 0) for path in (*NODES, "/dev/nvidia-modeset"))
    memory.write(ARG, NVOS64_PARAMETERS.make(hClass=0x41))
    yield "alloc", 0, ALLOC
    client = NVOS64_PARAMETERS.read(memory.read(ARG, 48))["hObjectNew"]
    for hclass in (0x80, 0x90CD):
        memory.write(ARG, NVOS64_PARAMETERS.make(hRoot=client, hObjectParent=client, hClass=hclass, pAllocParms=PARAMS))
        yield "alloc", 0, ALLOC
    memory.write(ARG, NVOS54_PARAMETERS.make(hClient=client, hObject=client, cmd=0x1F0, params=PARAMS, paramsSize=4))
    yield "control", 0, CONTROL
    memory.write(ARG, bytes(16))
    yield from (
        ("initialize", 2, INITIALIZE),
        ("unknown", 2, 0x7777),
        ("close", 2, 0),
        ("close", 0, 0),
        ("close", 0, 0),
    )


if __name__ == "__main__":
    sandbox = Sandbox("580.159.04", ["compute", "utility"])
    sandbox.run(guest(sandbox.memory))
