"""The pointer-following host itself: it looks at what the driver looks at, and fails on what a session did not put there."""

from __future__ import annotations

import errno
import struct

import pytest

from nvproxy_model import Buffer
from nvproxy_model.policy.plan import plan
from tests.session.follower import FDS, Follower, recorded
from tests.session.session_world import host_fd
from tests.session.test_session_restores import CASES, Run

MINE = host_fd(1)
VERSION = "580.126.20"


class Quiet:
    def ioctl(self, host_fd: int, request: int, arg: Buffer | None) -> int:
        return 0


def follower() -> Follower:
    return Follower(VERSION, Quiet(), lambda fd: fd == MINE)


def control(cmd: int, params: bytes, pointers: dict[int, Buffer]) -> Buffer:
    outer = struct.pack("<IIIIQII", 1, 1, cmd, 0, 0, len(params), 0)
    return Buffer(bytearray(outer), {16: Buffer(bytearray(params), dict(pointers))})


def test_a_buffer_that_was_handed_over_is_followed() -> None:
    host = follower()
    params = struct.pack("<IxxxxQ", 1, 0)
    assert host.ioctl(MINE, 0xC020462A, control(0x20800802, params, {8: Buffer(bytearray(8))})) == 0
    assert host.followed == 2


def test_a_guests_address_is_seen() -> None:
    with pytest.raises(AssertionError, match=r"biosInfoList: the driver would follow 0x7000"):
        follower().ioctl(MINE, 0xC020462A, control(0x20800802, struct.pack("<IxxxxQ", 1, 0x7000), {}))
    argument = Buffer(bytearray(struct.pack("<IIIIQII", 1, 1, 0x20800301, 0, 0x7000, 8, 0)))
    with pytest.raises(AssertionError, match=r"NVOS54_PARAMETERS.params"):
        follower().ioctl(MINE, 0xC020462A, argument)
    rights = Buffer(bytearray(struct.pack("<IIIIQQIII4x", 1, 1, 1, 0x80, 0, 0x7000, 0, 0, 0)))
    with pytest.raises(AssertionError, match=r"pRightsRequested"):
        follower().ioctl(MINE, 0xC030462B, rights)


def test_a_buffer_where_no_pointer_is() -> None:
    with pytest.raises(AssertionError, match="a buffer where the driver has no pointer"):
        follower().ioctl(MINE, 0xC020462A, control(0x20800802, bytes(16), {4: Buffer(bytearray(8))}))


def test_a_guests_descriptor_is_seen() -> None:
    for fd, fine in ((MINE, True), (3, False), (0, False)):
        argument = Buffer(bytearray(fd.to_bytes(4, "little")))
        if fine:
            assert follower().ioctl(MINE, 0xC00446C9, argument) == 0
        else:
            with pytest.raises(AssertionError, match=r"nv_ioctl_register_fd_t\.ctl_fd"):
                follower().ioctl(MINE, 0xC00446C9, argument)
    with pytest.raises(AssertionError, match="not a descriptor of the host"):
        follower().ioctl(3, 0xC00446C9, None)


def test_a_class_that_nvproxy_does_not_know_is_seen() -> None:
    argument = Buffer(bytearray(48), {16: Buffer(bytearray(4))})
    argument.data[12:16] = b"\x0f\0\0\0"
    with pytest.raises(AssertionError, match="class 0xf reached the driver"):
        follower().ioctl(MINE, 0xC030462B, argument)


def test_every_pointer_of_an_admitted_control_is_followed() -> None:
    """Of each control that the driver's list names and nvproxy admits, some release's call is followed as far as the list says."""
    followed: dict[str, int] = {}
    for case in CASES:
        if case.rule.table == "control" and case.rule.name in recorded(case.version).embedded:
            run = Run(case, "ok")
            assert run.result.errno in (0, errno.EINVAL)
            followed[case.rule.name] = max(followed.get(case.rule.name, 0), run.follower.followed - 1)
    assert len(followed) >= 12
    for name, count in followed.items():
        assert count >= len(recorded("535.104.05").embedded.get(name, ("",))), name


def test_every_descriptor_of_an_admitted_call_is_taken() -> None:
    taken = set()
    for case in CASES:
        if case.of.ctype in FDS and any(step.role.host is None for step in plan(case.of).fds):
            run = Run(case, "ok")
            assert run.follower.taken >= 1, case.rule.name
            taken.add(case.of.ctype)
    assert len(taken) >= 15
