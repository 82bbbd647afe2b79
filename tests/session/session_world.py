"""One guest process over a FakeDriver, with host numbers and addresses that cannot be mistaken for the guest's own."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from nvproxy_model import Files, Policy, Result, Session
from nvproxy_model.session.ports import Buffer, File, Host
from nvproxy_model.structs.nvos import (
    NVOS00_PARAMETERS,
    NVOS21_PARAMETERS,
    NVOS54_PARAMETERS,
    NVOS55_PARAMETERS,
    NVOS64_PARAMETERS,
)
from nvproxy_model.testing import FakeDriver, Memory
from nvproxy_model.testing.driver.driver import FIRST_HOST_FD
from tests.session.follower import Follower

ARG, PARAMS, SPARE, END = 0x10000, 0x11000, 0x15000, 0x18000
"""Guest addresses: the argument, its parameters, buffers that these point at, and the end of what is mapped."""
FD_MARK = b"\xfd\xc0\x5e"
"""Three of the four bytes of every host descriptor here."""
ADDRESS_MARK = b"\x5e\xcd\xad\xd2\x5e"
"""Five of the eight bytes of every host address here."""
MARKS = {FD_MARK: "fd", ADDRESS_MARK: "address"}


def host_fd(number: int) -> int:
    """A host descriptor: 0x5ec0fdNN."""
    return int.from_bytes(bytes([number]) + FD_MARK, "little")


class Addressing:
    """A host that puts real addresses into an argument, as one must for its call, and leaves them there."""

    def __init__(self, inner: Host) -> None:
        self.inner = inner
        self.calls = 0

    def ioctl(self, host_fd: int, request: int, arg: Buffer | None) -> int:
        self.calls += 1
        if arg is not None:
            self._point(arg)
        return self.inner.ioctl(host_fd, request, arg)

    def _point(self, buffer: Buffer) -> None:
        for at, behind in buffer.pointers.items():
            buffer.data[at : at + 8] = ADDRESS_MARK + bytes([at & 0xFF, 0x7F, 0])
            if isinstance(behind, Buffer):
                self._point(behind)


def request(nr: int, size: int) -> int:
    """_IOWR('F', nr, size)."""
    return 0xC0004600 | size << 16 | nr


class World:
    """A session and what is around it. Every call checks that nothing of the host's reached the guest, and no refusal the host."""

    def __init__(
        self, version: str = "580.159.04", caps: str = "all,profiling,rdma,fabric-imex-mgmt", **policy: Any
    ) -> None:
        self.policy = Policy.for_driver(version, caps, allow_unsupported=True, **policy)
        self.memory = Memory(ARG, END)
        self.files = Files({})
        self.driver = FakeDriver(version, keep=16)
        self.host = Addressing(self.driver)
        self.follower = Follower(
            version, self.host, lambda fd: fd.to_bytes(4, "little")[1:] == FD_MARK or fd >= FIRST_HOST_FD
        )
        self.session = Session(self.policy, self.memory, self.files, self.follower)
        self._opened = 0

    def open(self, kind: str = "frontend", *, control: bool = True) -> int:
        """A new guest fd of that kind."""
        self._opened = (self._opened + 1) % 256
        return self.files.install(File(kind, host_fd(self._opened), control_device=control))

    def close(self, fd: int) -> None:
        """close(2), in the guest and on the host."""
        file = self.files[fd]
        self.session.close(fd)
        self.driver.close(file.host_fd)

    def ioctl(self, fd: int, number: int, argument: bytes, params: bytes | None = None) -> tuple[Result, bytes]:
        """One call with its argument at ARG and its parameters at PARAMS; what ARG holds afterwards."""
        self.memory.write(ARG, argument)
        if params is not None:
            self.memory.write(PARAMS, params)
        result = self.call(fd, number, ARG)
        return result, self.memory.read(ARG, len(argument))

    def call(self, fd: int, number: int, address: int) -> Result:
        """Session.ioctl under the two rules that hold for every call."""
        before = self.host.calls
        drawn = [mark for mark in MARKS if mark in self.memory.data]  # by chance, in what the guest wrote itself
        result = self.session.ioctl(fd, number, address)
        assert (result.ret, bool(result.errno)) in ((0, False), (-1, True))
        if result.decision is not None and not result.decision.allowed:
            assert self.host.calls == before, f"refused, and the host was called: {result.decision.reason}"
        self.check_memory(drawn)
        return result

    def check_memory(self, drawn: Sequence[bytes] = ()) -> None:
        """No host descriptor and no host address is in guest memory."""
        for mark, what in MARKS.items():
            assert mark in drawn or mark not in self.memory.data, f"a host {what} is in guest memory"

    def alloc(
        self,
        fd: int,
        client: int,
        parent: int,
        handle: int,
        hclass: int,
        params: bytes | None = None,
        *,
        short: bool = False,
    ) -> tuple[Result, int, int]:
        """NV_ESC_RM_ALLOC in either form: the result, the NV status and the new handle."""
        of = NVOS21_PARAMETERS if short else NVOS64_PARAMETERS
        fields = of.parse(bytes(of.sizeof()))
        fields.hRoot, fields.hObjectParent, fields.hObjectNew, fields.hClass = client, parent, handle, hclass
        fields.pAllocParms = 0 if params is None else PARAMS
        result, out = self.ioctl(fd, request(0x2B, of.sizeof()), of.build(fields), params)
        answer = of.parse(out)
        return result, answer.status, answer.hObjectNew

    def control(self, fd: int, client: int, handle: int, number: int, params: bytes = b"") -> tuple[Result, int]:
        """NV_ESC_RM_CONTROL: the result and the NV status."""
        argument = struct.pack("<IIIIQII", client, handle, number, 0, PARAMS if params else 0, len(params), 0)
        result, out = self.ioctl(fd, request(0x2A, len(argument)), argument, params)
        return result, NVOS54_PARAMETERS.parse(out).status

    def free(self, fd: int, client: int, handle: int) -> tuple[Result, int]:
        """NV_ESC_RM_FREE."""
        result, out = self.ioctl(fd, request(0x29, 16), struct.pack("<IIII", client, 0, handle, 0))
        return result, NVOS00_PARAMETERS.parse(out).status

    def dup(
        self, fd: int, client: int, parent: int, handle: int, source_client: int, source: int
    ) -> tuple[Result, int, int]:
        """NV_ESC_RM_DUP_OBJECT: the result, the NV status and the new handle."""
        argument = struct.pack("<IIIIIII", client, parent, handle, source_client, source, 0, 0)
        result, out = self.ioctl(fd, request(0x34, len(argument)), argument)
        answer = NVOS55_PARAMETERS.parse(out)
        return result, answer.status, answer.hObject

    def os_event(self, fd: int, client: int, event_fd: int, *, free: bool = False) -> tuple[Result, int]:
        """NV_ESC_ALLOC_OS_EVENT or NV_ESC_FREE_OS_EVENT."""
        result, out = self.ioctl(fd, request(0xCF if free else 0xCE, 16), struct.pack("<IIiI", client, 0, event_fd, 0))
        return result, int.from_bytes(out[12:], "little")

    def check_graph(self) -> None:
        """Every edge goes both ways, and to something that is alive."""
        live = set(self.session.objects())
        for obj in live:
            for dep in obj.deps:
                assert dep in live, f"{obj} depends on what is gone: {dep}"
                assert obj in dep.rdeps
            for dependent in obj.rdeps:
                assert dependent in live, f"{obj} is needed by what is gone: {dependent}"
                assert obj in dependent.deps


__all__ = [
    "ADDRESS_MARK",
    "ARG",
    "END",
    "FD_MARK",
    "PARAMS",
    "SPARE",
    "Addressing",
    "World",
    "host_fd",
    "request",
]
