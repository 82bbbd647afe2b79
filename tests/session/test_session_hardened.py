"""The hardened profile's rules that need a session, each beside nvproxy's own answer."""

from __future__ import annotations

from typing import Any

import pytest
from session_world import World

from nvproxy_model import Why
from nvproxy_model.structs.cl90cd import NV_EVENT_BUFFER_ALLOC_PARAMETERS
from nvproxy_model.structs.ctrl2080event import NV2080_CTRL_EVENT_VIDEO_BIND_EVTBUF_PARAMS
from nvproxy_model.structs.nvos import NV_MEMORY_ALLOCATION_PARAMS

CLIENT, DEVICE, SUBDEVICE, HEADER, RECORD, BUFFER = 0xC1D00001, 0x10, 0x11, 0x20, 0x21, 0x30
READ_ONLY = 0x400000


def _build(of: Any, **values: int) -> bytes:
    return of.build({**of.parse(bytes(of.sizeof())), **values})  # type: ignore[no-any-return]


def _world(profile: str) -> tuple[World, int]:
    world = World(profile=profile)
    fd = world.open()
    assert world.alloc(fd, 0, 0, CLIENT, 0x41)[1] == 0
    assert world.alloc(fd, CLIENT, CLIENT, DEVICE, 0x80, bytes(56))[1] == 0
    assert world.alloc(fd, CLIENT, DEVICE, SUBDEVICE, 0x2080, bytes(4))[1] == 0
    of = NV_MEMORY_ALLOCATION_PARAMS.at(world.policy.version)
    for handle, size in ((HEADER, 0x20), (RECORD, 0x80000)):
        assert world.alloc(fd, CLIENT, CLIENT, handle, 0x90CE, _build(of, size=size, attr2=READ_ONLY))[1] == 0
    return world, fd


def _buffer(**values: int) -> bytes:
    usual = {
        "hBufferHeader": HEADER,
        "hRecordBuffer": RECORD,
        "recordSize": 0x20,
        "recordCount": 0x100,
        "hSubDevice": SUBDEVICE,
    }
    return _build(NV_EVENT_BUFFER_ALLOC_PARAMETERS, **{**usual, **values})


def _alloc(world: World, fd: int, params: bytes) -> tuple[Any, int]:
    result, status, *_ = world.alloc(fd, CLIENT, CLIENT, BUFFER, 0x90CD, params)
    return result, status


@pytest.mark.parametrize("profile", ["gvisor", "hardened"])
def test_an_event_that_the_client_registered(profile: str) -> None:
    world, fd = _world(profile)
    event = world.open()
    assert world.os_event(event, CLIENT, event)[1] == 0
    assert _alloc(world, fd, _buffer(notificationHandle=event))[1] == 0


def test_an_event_that_nobody_registered() -> None:
    """The driver looks the number up among the client's own events; nvproxy does not, so a refusal is the driver's."""
    for profile, calls in (("gvisor", 1), ("hardened", 0)):
        world, fd = _world(profile)
        event = world.open()
        before = world.host.calls
        result, status = _alloc(world, fd, _buffer(notificationHandle=event))
        assert (status, world.host.calls - before) == (0x57, calls)
        assert (result.decision.why is Why.HARDENED) == (profile == "hardened")


def test_an_event_that_was_freed_or_is_another_clients() -> None:
    world, fd = _world("hardened")
    event = world.open()
    world.os_event(event, CLIENT, event)
    world.os_event(event, CLIENT, event, free=True)
    assert _alloc(world, fd, _buffer(notificationHandle=event))[1] == 0x57
    world.os_event(event, CLIENT + 1, event)
    assert _alloc(world, fd, _buffer(notificationHandle=event))[1] == 0x57


def test_an_event_whose_file_was_closed() -> None:
    world, fd = _world("hardened")
    event = world.open()
    world.os_event(event, CLIENT, event)
    world.close(event)
    assert world.open() == event
    assert _alloc(world, fd, _buffer(notificationHandle=event))[1] == 0x57


def test_values_that_are_no_fd() -> None:
    world, fd = _world("hardened")
    result, _ = _alloc(world, fd, _buffer(notificationHandle=(1 << 32) + fd))
    assert (result.errno, result.decision.why) == (22, Why.HARDENED)


@pytest.mark.parametrize(("values", "status"), [({"recordSize": 0x1F}, 0x1F), ({"hSubDevice": 0}, 0x33)])
def test_records_and_subdevice(values: dict[str, int], status: int) -> None:
    world, fd = _world("hardened")
    result, answered = _alloc(world, fd, _buffer(**values))
    assert (answered, result.decision.why) == (status, Why.HARDENED)


def test_video_events_need_larger_records() -> None:
    for size, status in ((0x20, 0x1F), (0x30, 0)):
        world, fd = _world("hardened")
        assert _alloc(world, fd, _buffer(recordSize=size))[1] == 0
        bind = _build(NV2080_CTRL_EVENT_VIDEO_BIND_EVTBUF_PARAMS, hEventBuffer=BUFFER, recordSize=size)
        assert world.control(fd, CLIENT, SUBDEVICE, 0x20800309, bind)[1] == status


def test_the_contexts_of_others() -> None:
    for profile, refused in (("gvisor", False), ("hardened", True)):
        world, fd = _world(profile)
        assert _alloc(world, fd, _buffer())[1] == 0
        result, _ = world.control(
            fd, CLIENT, SUBDEVICE, 0x20801231, BUFFER.to_bytes(4, "little") + bytes(12) + b"\x01\0\0\0"
        )
        assert (result.decision.why is Why.HARDENED) == refused


def test_deviceless_memory_needs_profiling() -> None:
    world = World(caps="compute,utility", profile="hardened")
    fd = world.open()
    world.alloc(fd, 0, 0, CLIENT, 0x41)
    result, status, *_ = world.alloc(fd, CLIENT, CLIENT, HEADER, 0x90CE, bytes(128))
    assert (status, result.decision.why) == (0x22, Why.CAPABILITY)
