"""The hardened profile in a session, and that the default profile has none of it."""

from __future__ import annotations

import pytest

from nvproxy_model import Why
from nvproxy_model.abi import constants as nv
from nvproxy_model.structs.cl90cd import NV_EVENT_BUFFER_ALLOC_PARAMETERS
from nvproxy_model.structs.ctrl2080event import NV2080_CTRL_EVENT_VIDEO_BIND_EVTBUF_PARAMS
from nvproxy_model.structs.ctrl2080gr import (
    NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_PARAMS,
    NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_V2_PARAMS,
)
from nvproxy_model.structs.nvos import NV_MEMORY_ALLOCATION_PARAMS
from tests.session.session_world import PARAMS, World

FECS_BIND, FECS_BIND_V2, VIDEO_BIND = 0x20801231, 0x20801238, 0x20800309
HEADER, RECORD, DEVICE, SUBDEVICE, BUFFER = 0x20, 0x21, 0x10, 0x11, 0x30


class Profiler(World):
    """A client, a subdevice and two blocks of memory, as a profiler has them."""

    def __init__(self, profile: str, version: str = "580.159.04", caps: str = "compute,utility,profiling") -> None:
        super().__init__(version, caps, profile=profile, extra=[FECS_BIND_V2])
        self.fd = self.open()
        self.event = self.open()
        _, _, self.client = self.alloc(self.fd, 0, 0, 0, 0x41)
        assert self.alloc(self.fd, self.client, self.client, DEVICE, 0x80)[1] == 0
        assert self.alloc(self.fd, self.client, DEVICE, SUBDEVICE, 0x2080)[1] == 0
        memory = NV_MEMORY_ALLOCATION_PARAMS.at(self.policy.version).make(size=0x1000, attr2=0x400000)
        for handle in (HEADER, RECORD):
            self.alloc(self.fd, self.client, self.client, handle, 0x90CE, memory)

    def buffer(self, handle: int = BUFFER, **values: int) -> tuple[int, int, Why | None]:
        """(errno, status, why) of allocating an event buffer."""
        good = {
            "recordSize": 0x20,
            "recordCount": 0x10,
            "hSubDevice": SUBDEVICE,
            "hBufferHeader": HEADER,
            "hRecordBuffer": RECORD,
        }
        params = NV_EVENT_BUFFER_ALLOC_PARAMETERS.make(**{**good, **values})
        result, status, _ = self.alloc(self.fd, self.client, self.client, handle, 0x90CD, params)
        assert self.memory.read(PARAMS + 40, 8) == params[40:48]
        return result.errno, status, result.decision.why if result.decision is not None else None

    def bind(self, command: int, **values: int) -> tuple[int, Why | None]:
        """(status, why) of binding the buffer."""
        of = {
            FECS_BIND: NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_PARAMS,
            FECS_BIND_V2: NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_V2_PARAMS,
            VIDEO_BIND: NV2080_CTRL_EVENT_VIDEO_BIND_EVTBUF_PARAMS,
        }[command]
        result, status = self.control(self.fd, self.client, SUBDEVICE, command, of.make(hEventBuffer=BUFFER, **values))
        return status, result.decision.why if result.decision is not None else None


def test_a_profiler_works_in_both_profiles() -> None:
    for profile in ("gvisor", "hardened"):
        guest = Profiler(profile)
        assert guest.os_event(guest.fd, guest.client, guest.event)[1] == 0
        assert guest.buffer(recordSize=0x30, notificationHandle=guest.event) == (0, 0, Why.RULE)
        assert guest.bind(FECS_BIND) == guest.bind(FECS_BIND_V2) == guest.bind(VIDEO_BIND) == (0, Why.RULE)


def test_only_a_registered_event_may_be_named() -> None:
    guest = Profiler("hardened")
    refused = (0, nv.NV_ERR_OBJECT_NOT_FOUND, Why.HARDENED)
    assert guest.buffer(notificationHandle=guest.event) == refused
    assert guest.os_event(guest.fd, guest.client, guest.event)[1] == 0
    assert guest.buffer(notificationHandle=guest.event) == (0, 0, Why.RULE)
    _, _, other = guest.alloc(guest.fd, 0, 0, 0, 0x41)
    guest.client, mine = other, guest.client
    memory = NV_MEMORY_ALLOCATION_PARAMS.at(guest.policy.version).make(size=0x1000, attr2=0x400000)
    for handle in (HEADER, RECORD):
        guest.alloc(guest.fd, other, other, handle, 0x90CE, memory)
    assert guest.buffer(notificationHandle=guest.event) == refused, "another client's event"
    guest.client = mine
    assert guest.os_event(guest.fd, mine, guest.event, free=True)[1] == 0
    assert guest.buffer(0x31, notificationHandle=guest.event) == refused, "freed"


def test_an_event_ends_with_its_file() -> None:
    guest = Profiler("hardened")
    assert guest.os_event(guest.fd, guest.client, guest.event)[1] == 0
    guest.close(guest.event)
    assert guest.open() == guest.event, "the number is taken again"
    assert guest.buffer(notificationHandle=guest.event) == (0, nv.NV_ERR_OBJECT_NOT_FOUND, Why.HARDENED)


def test_an_unregistered_event_is_nvproxys_to_pass() -> None:
    guest = Profiler("gvisor")
    assert guest.buffer(notificationHandle=guest.event) == (0, nv.NV_ERR_OBJECT_NOT_FOUND, Why.RULE)
    assert guest.os_event(guest.fd, guest.client, guest.event)[1] == 0
    assert guest.buffer(notificationHandle=(1 << 32) + guest.event) == (0, 0, Why.RULE)


@pytest.mark.parametrize("value", [1 << 31, 1 << 32, (1 << 32) + 1, (1 << 64) - 1])
def test_a_value_that_is_no_fd(value: int) -> None:
    guest = Profiler("hardened")
    assert guest.buffer(notificationHandle=value)[2] is Why.HARDENED
    assert Profiler("gvisor").buffer(notificationHandle=value)[2] is not Why.HARDENED


def test_record_sizes() -> None:
    hardened, default = Profiler("hardened"), Profiler("gvisor")
    assert hardened.buffer(recordSize=0x1F) == (0, nv.NV_ERR_INVALID_ARGUMENT, Why.HARDENED)
    assert default.buffer(recordSize=0x1F) == (0, 0, Why.RULE)
    assert hardened.buffer(recordSize=0x20) == (0, 0, Why.RULE)
    assert hardened.bind(VIDEO_BIND) == (nv.NV_ERR_INVALID_ARGUMENT, Why.HARDENED)
    assert default.bind(VIDEO_BIND) == (0, Why.RULE)
    assert hardened.bind(FECS_BIND) == (0, Why.RULE)


def test_all_users() -> None:
    for command in (FECS_BIND, FECS_BIND_V2):
        hardened, default = Profiler("hardened"), Profiler("gvisor")
        assert hardened.buffer()[1] == default.buffer()[1] == 0
        assert hardened.bind(command, bAllUsers=1) == (nv.NV_ERR_NOT_SUPPORTED, Why.HARDENED)
        assert default.bind(command, bAllUsers=1) == (0, Why.RULE)


RELEASES = [("535.129.03", False), ("545.23.06", False), ("550.90.12", True), ("620.06.00", True)]


@pytest.mark.parametrize(("version", "refused"), RELEASES)
def test_a_buffer_needs_a_subdevice_from_550_on(version: str, refused: bool) -> None:
    errno, status, why = Profiler("hardened", version).buffer(hSubDevice=0)
    assert (errno, status, why) == ((0, nv.NV_ERR_INVALID_OBJECT_HANDLE, Why.HARDENED) if refused else (0, 0, Why.RULE))


def test_deviceless_memory_needs_profiling() -> None:
    for profile, status in (("gvisor", 0), ("hardened", nv.NV_ERR_INVALID_CLASS)):
        guest = World("580.159.04", "compute,utility", profile=profile)
        fd = guest.open()
        _, _, client = guest.alloc(fd, 0, 0, 0, 0x41)
        params = NV_MEMORY_ALLOCATION_PARAMS.at(guest.policy.version).make(size=0x1000, attr2=0x400000)
        assert guest.alloc(fd, client, client, HEADER, 0x90CE, params)[1] == status


def test_windows() -> None:
    for windows, passed in (("allow", True), ("deny", False), ([0x2080A63C], True), ([0x20810108], False)):
        guest = World("580.159.04", "compute,utility", windows=windows)
        fd = guest.open()
        _, _, client = guest.alloc(fd, 0, 0, 0, 0x41)
        assert (guest.control(fd, client, client, 0x2080A63C)[1] == 0) is passed
