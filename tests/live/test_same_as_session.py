"""A program's calls through the broker, and the same calls through a plain Session: the same answers and the same memory."""

from __future__ import annotations

import errno
import struct
import subprocess
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvproxy_model import Files, Policy, Session
from nvproxy_model.session.ports import File
from nvproxy_model.structs.nvos import NVOS54_PARAMETERS, NVOS64_PARAMETERS
from nvproxy_model.testing import Memory
from nvproxy_model.testing.strategies import GuestCall, calls, garbage
from tests.effort import examples
from tests.live.test_lifelines import running
from tests.live.watched import VERSION, LockedDriver, World

ARENA, SIZE = 0x10000000, 0x8000
ARGUMENT, PARAMS, SPARE = ARENA + 0x1000, ARENA + 0x3000, ARENA + 0x5000
FRONTEND, GPU, UVM, OTHER, CLOSED = 100, 101, 102, 103, 104
POLICY = Policy.for_driver(VERSION, "compute,utility", allow_unsupported=True)
HANDLES = (0xC1D00001, 0xCAF00001, 0x80001, 0x80002)


class Both:
    """The program at the end of two pipes, and the session beside it."""

    def __init__(self, program: subprocess.Popen[bytes]) -> None:
        self.program = program
        self.memory = Memory(ARENA, ARENA + SIZE)
        kinds = {FRONTEND: "frontend", GPU: "frontend", UVM: "uvm"}
        files = {
            fd: File(kind, 5000 + fd, control_device=fd == FRONTEND)  # type: ignore[arg-type]
            for fd, kind in kinds.items()
        }
        self.session = Session(POLICY, self.memory, Files(files), LockedDriver())

    def put(self, address: int, data: bytes) -> None:
        self.memory.write(address, data)
        self._send(ord("w"), address - ARENA, len(data), 0)
        self._write(data)

    def _send(self, *words: int) -> None:
        self._write(struct.pack("<QQQQ", *words))

    def _write(self, data: bytes) -> None:
        assert self.program.stdin is not None
        self.program.stdin.write(data)

    def ioctl(self, fd: int, request: int, address: int) -> None:
        """Make the call both ways, and compare."""
        assert self.program.stdin is not None
        assert self.program.stdout is not None
        self._send(ord("i"), fd, request, address)
        self.program.stdin.flush()
        answer = self.program.stdout.read(4 + SIZE)
        assert len(answer) == 4 + SIZE, "the program ended"
        result = self.session.ioctl(fd, request, address)
        assert int.from_bytes(answer[:4], "little") == result.errno
        assert answer[4:] == bytes(self.memory.data)


@pytest.fixture
def both(world: World) -> Iterator[Both]:
    with running(world, "obey", text=False) as broker:
        yield Both(broker)


def ours(call: GuestCall) -> bool:
    """Whether the call reaches the broker: other type bytes are other drivers'. A dma-buf needs a real descriptor."""
    return call.request >> 8 & 0xFF in (0, ord("F")) and call.request & 0xFF != 0xD9


@settings(
    max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    call=st.one_of(
        calls(
            POLICY,
            address=PARAMS,
            handles=HANDLES,
            fds=(FRONTEND, GPU, UVM, OTHER, CLOSED),
            pointers=(SPARE, SPARE + 64),
        ),
        garbage(),
    ).filter(ours),
    fd=st.sampled_from([FRONTEND, FRONTEND, FRONTEND, GPU, UVM, CLOSED]),
    cut=st.sampled_from([0, 0, 0, 0, 8]),
)
def test_the_same_answers_and_the_same_memory(both: Both, call: GuestCall, fd: int, cut: int) -> None:
    """The state carries over from call to call: clients and objects live on in both."""
    if call.device == "uvm" and fd == FRONTEND:
        fd = UVM
    if call.params is not None:
        both.put(PARAMS, call.params)
    argument, where = call.argument, ARGUMENT
    if len(argument) > cut > 0:
        # The end of the struct hangs over the end of what is mapped.
        argument = argument[:-cut]
        where = ARENA + SIZE - len(argument)
    both.put(where, argument)
    both.ioctl(fd, call.request, where)


def test_a_client_and_its_objects(both: Both) -> None:
    """What the drawn calls seldom reach: objects that are really there."""
    both.put(ARGUMENT, NVOS64_PARAMETERS.make(hClass=0x41))
    both.ioctl(FRONTEND, 0xC030462B, ARGUMENT)
    client = int(NVOS64_PARAMETERS.parse(both.memory.read(ARGUMENT, 48)).hObjectNew)
    assert client
    both.put(PARAMS, bytes(56))
    device = NVOS64_PARAMETERS.make(
        hRoot=client, hObjectParent=client, hObjectNew=0x80001, hClass=0x80, pAllocParms=PARAMS
    )
    for _ in range(2):  # the second time the handle is taken
        both.put(ARGUMENT, device)
        both.ioctl(FRONTEND, 0xC030462B, ARGUMENT)
    both.put(ARGUMENT, NVOS54_PARAMETERS.make(hClient=client, hObject=client, cmd=0x1F0, params=PARAMS, paramsSize=4))
    both.ioctl(FRONTEND, 0xC020462A, ARGUMENT)
    for handle in (0x80001, client, client):
        both.put(ARGUMENT, struct.pack("<IIII", client, 0, handle, 0xDEAD))
        both.ioctl(FRONTEND, 0xC0104629, ARGUMENT)
    assert both.session.objects() == ()
    both.ioctl(FRONTEND, 0xC0104629, 16)
    assert both.session.ioctl(FRONTEND, 0xC0104629, 16).errno == errno.EFAULT
