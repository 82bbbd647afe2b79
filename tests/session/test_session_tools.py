"""UVM's tools device: trackers whose buffers are the guest's own pages for as long as the file is open."""

from __future__ import annotations

import errno
import struct

import pytest

from nvproxy_model import Buffer, File, Files, Policy, Session
from nvproxy_model.abi import constants as nv
from nvproxy_model.drivers import facts
from nvproxy_model.policy.handlers import TRACKER_CONTROL, TRACKER_ENTRY
from nvproxy_model.session.ports import Pages
from nvproxy_model.testing import Memory

TRACKER, TRACKER_V2, TABLE_V2, THRESHOLD = 56, 76, 77, 57
UVM, TOOLS, FRONTEND = 3, 4, 5
ARG, QUEUE, CONTROL, END = 0x10000, 0x20000, 0x28000, 0x40000


class Host:
    """Keeps what it is given, and answers one status."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int, bytes, dict[int, object]]] = []
        self.status = 0

    def ioctl(self, host_fd: int, request: int, arg: Buffer | None) -> int:
        assert arg is not None
        self.calls.append((host_fd, request, bytes(arg.data), dict(arg.pointers)))
        for behind in arg.pointers.values():
            if isinstance(behind, Buffer):
                behind.data[:] = b"\x55" * len(behind.data)
        at = len(arg.data) - 8  # both structs end in rmStatus and padding
        arg.data[at : at + 4] = self.status.to_bytes(4, "little")
        return 0


class World:
    def __init__(self, *, pending: bool = True) -> None:
        self.host = Host()
        self.memory = Memory(ARG, END)
        files = Files({UVM: File("uvm", 103), TOOLS: File("uvm-tools", 104), FRONTEND: File("frontend", 105)})
        self.session = Session(Policy.for_driver("580.159.04", pending=pending), self.memory, files, self.host)

    def tracker(self, queue: int, count: int, control: int, uvm_fd: int = UVM, request: int = TRACKER) -> bytes:
        asked = struct.pack("<QQQ16sIIi4x", queue, count, control, bytes(16), 1, uvm_fd, -1)
        self.memory.write(ARG, asked)
        assert self.session.ioctl(TOOLS, request, ARG).ret == 0
        return asked

    @property
    def status(self) -> int:
        return int.from_bytes(self.memory.read(ARG + 48, 4), "little")


@pytest.mark.parametrize(("request_", "entry"), sorted(TRACKER_ENTRY.items()))
def test_a_tracker_pins_both_buffers_until_its_file_is_closed(request_: int, entry: int) -> None:
    world = World()
    asked = world.tracker(QUEUE, 128, CONTROL, request=request_)
    assert world.status == 0
    assert world.memory.read(ARG, 48) == asked[:48]
    ((host_fd, number, given, pointers),) = world.host.calls
    assert (host_fd, number, struct.unpack_from("<I", given, 44)) == (104, request_, (103,))
    queue = -(-128 * entry // 4096) * 4096
    assert pointers == {0: Pages(QUEUE, queue, True), 16: Pages(CONTROL, 4096, True)}
    assert given[:8] == given[16:24] == bytes(8)
    closed = world.session.close(TOOLS)
    assert (closed.ret, closed.errno) == (0, 0)
    assert (closed.close, closed.unpin) == ((104,), ((QUEUE, queue), (CONTROL, 4096)))


def test_a_tracker_that_the_driver_refuses_pins_nothing() -> None:
    world = World()
    world.host.status = 0x1F
    world.memory.write(ARG, bytes(56))
    asked = world.tracker(QUEUE, 2, CONTROL)
    assert world.memory.read(ARG, 48) == asked[:48]
    assert world.session.close(TOOLS).unpin == ()


def test_counters_alone_have_no_queue() -> None:
    world = World()
    asked = world.tracker(0xDEAD, 0, CONTROL)
    assert world.host.calls[0][3] == {16: Pages(CONTROL, 4096, True)}
    assert world.host.calls[0][2][:8] == bytes(8)
    assert world.memory.read(ARG, 8) == asked[:8]


@pytest.mark.parametrize(
    ("queue", "count", "control", "uvm_fd", "status"),
    [
        (QUEUE, 128, CONTROL, FRONTEND, nv.NV_ERR_INSUFFICIENT_PERMISSIONS),
        (QUEUE, 128, CONTROL, TOOLS, nv.NV_ERR_INSUFFICIENT_PERMISSIONS),
        (QUEUE, 128, CONTROL, 77, nv.NV_ERR_INSUFFICIENT_PERMISSIONS),
        (QUEUE, 1, CONTROL, UVM, nv.NV_ERR_INVALID_ARGUMENT),
        (QUEUE, 3, CONTROL, UVM, nv.NV_ERR_INVALID_ARGUMENT),
        (QUEUE, 1 << 32, CONTROL, UVM, nv.NV_ERR_INVALID_ARGUMENT),
        (0, 128, CONTROL, UVM, nv.NV_ERR_INVALID_ADDRESS),
        (QUEUE + 8, 128, CONTROL, UVM, nv.NV_ERR_INVALID_ADDRESS),
        (QUEUE, 128, 0, UVM, nv.NV_ERR_INVALID_ADDRESS),
        (QUEUE, 0, CONTROL + 1, UVM, nv.NV_ERR_INVALID_ADDRESS),
        (-0x1000 & (1 << 64) - 1, 128, CONTROL, UVM, nv.NV_ERR_INVALID_ADDRESS),
        (QUEUE, 0, -0x1000 & (1 << 64) - 1, UVM, nv.NV_ERR_INVALID_ADDRESS),  # uvm_api_range_invalid(): it ends at 0
        (QUEUE, 1 << 20, CONTROL, UVM, nv.NV_ERR_INVALID_ARGUMENT),  # not all of it is mapped
        (QUEUE, 128, 0x7F0000000000, UVM, nv.NV_ERR_INVALID_ARGUMENT),
    ],
)
def test_a_tracker_that_is_refused(queue: int, count: int, control: int, uvm_fd: int, status: int) -> None:
    world = World()
    asked = world.tracker(queue, count, control, uvm_fd)
    assert (world.status, world.host.calls) == (status, [])
    assert world.memory.read(ARG, 48) == asked[:48]


def test_the_uvm_device_refuses_it_without_reading() -> None:
    world = World()
    assert world.session.ioctl(UVM, TRACKER, 0xBAD000).ret == 0
    assert world.host.calls == [(103, TRACKER, bytes(56), {})]


def test_the_table_of_processors_is_copied_out_whole() -> None:
    world = World()
    world.memory.write(ARG, struct.pack("<Qi4x", QUEUE, -1))
    assert world.session.ioctl(TOOLS, TABLE_V2, ARG).ret == 0
    assert world.memory.read(QUEUE, 257 * 16 + 1) == b"\x55" * (257 * 16) + b"\0"
    assert world.memory.read(ARG, 8) == struct.pack("<Q", QUEUE)


def test_without_pending_it_can_only_be_opened() -> None:
    world = World(pending=False)
    assert world.session.ioctl(TOOLS, THRESHOLD, ARG) == (-1, errno.ENOTTY, None, (), ())
    assert world.session.ioctl(UVM, TRACKER, ARG).errno == errno.EINVAL


def test_sizes_are_the_headers() -> None:
    structs = facts.load().release("610.57.04").structs
    assert {TRACKER: structs["UvmEventEntry"].size, TRACKER_V2: structs["UvmEventEntry_V2"].size} == TRACKER_ENTRY
    assert structs["UvmToolsEventControlData"].size == TRACKER_CONTROL


@pytest.mark.parametrize("fd", [1 << 31, -(1 << 31), (1 << 32) + (1 << 31)])
def test_a_descriptor_is_the_low_half_of_its_register(fd: int) -> None:
    """The kernel's unsigned int, which a table sees as an int: no number is looked up in two ways."""
    world = World()
    world.session.fds = {-(1 << 31): File("uvm", 103)}  # type: ignore[assignment]  # Files takes no such number
    assert world.session.ioctl(fd, TRACKER, ARG).ret == 0
    assert [call[0] for call in world.host.calls] == [103]


def test_an_escape_that_no_rule_has() -> None:
    world = World()
    result = world.session.ioctl(FRONTEND, 0xC00446FF, ARG)
    assert (result.ret, result.errno, world.host.calls) == (-1, errno.EINVAL, [])
    assert result.decision is not None
    assert not result.decision.allowed
