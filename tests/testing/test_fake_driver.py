"""FakeDriver's answers, case by case, as the driver's source and probes of real hardware give them."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import pytest

from nvproxy_model import UnknownDriverVersion, versions
from nvproxy_model.abi import ALLOC
from nvproxy_model.fields import CStruct
from nvproxy_model.session.ports import Buffer
from nvproxy_model.structs.cl90cd import NV_EVENT_BUFFER_ALLOC_PARAMETERS as PARAMS
from nvproxy_model.structs.nvos import NV_MEMORY_ALLOCATION_PARAMS
from nvproxy_model.testing import FakeDriver
from nvproxy_model.testing.driver import classes

READ_ONLY = 0x400000
CTL = 4


@dataclass
class Rig:
    """A driver with a client, a device, a subdevice and three blocks of deviceless memory, as a profiler has them."""

    driver: FakeDriver
    client: int
    device: int = 0x10
    subdevice: int = 0x11
    header: int = 0x20
    record: int = 0x21
    vardata: int = 0x22

    def alloc(
        self, parent: int, handle: int, hclass: int, params: bytes | None = None, *, client: int | None = None
    ) -> tuple[int, int]:
        """(status, handle)."""
        arg = Buffer(
            bytearray(
                struct.pack(
                    "<IIIIQQIIII", self.client if client is None else client, parent, handle, hclass, 0, 0, 0, 0, 0, 0
                )
            )
        )
        if params is not None:
            arg.pointers[16] = Buffer(bytearray(params))
        assert self.driver.ioctl(CTL, 0xC030462B, arg) == 0
        self.arg = arg
        return int.from_bytes(arg.data[40:44], "little"), int.from_bytes(arg.data[8:12], "little")

    def control(self, handle: int, command: int, params: bytes = b"", *, client: int | None = None) -> int:
        head = struct.pack("<IIIIQII", self.client if client is None else client, handle, command, 0, 0, len(params), 0)
        arg = Buffer(bytearray(head), {16: Buffer(bytearray(params))} if params else {})
        assert self.driver.ioctl(CTL, 0xC020462A, arg) == 0
        return int.from_bytes(arg.data[28:32], "little")

    def free(self, handle: int) -> int:
        arg = Buffer(bytearray(struct.pack("<IIII", self.client, 0, handle, 0xFFFFFFFF)))
        assert self.driver.ioctl(CTL, 0xC0104629, arg) == 0
        return int.from_bytes(arg.data[12:], "little")

    def os_event(self, fd: int, *, client: int | None = None, free: bool = False) -> int:
        arg = Buffer(bytearray(struct.pack("<IIII", self.client if client is None else client, 0, fd, 0)))
        assert self.driver.ioctl(CTL, 0xC01046CF if free else 0xC01046CE, arg) == 0
        return int.from_bytes(arg.data[12:], "little")

    def memory(
        self, handle: int, size: int, attr2: int = READ_ONLY, hclass: int = 0x90CE, parent: int | None = None
    ) -> int:
        params = _bytes(NV_MEMORY_ALLOCATION_PARAMS.at(self.driver.version), size=size, attr2=attr2)
        return self.alloc(self.client if parent is None else parent, handle, hclass, params)[0]

    def buffer(self, handle: int = 0x30, *, parent: int | None = None, **values: int) -> int:
        """Allocate class 0x90cd with a profiler's parameters but for what is given; the status."""
        params = _bytes(PARAMS, **{**self.good(), **values})
        return self.alloc(self.client if parent is None else parent, handle, 0x90CD, params)[0]

    def good(self) -> dict[str, int]:
        return {
            "recordSize": 0x20,
            "recordCount": 0x10,
            "vardataBufferSize": 0x400,
            "recordsFreeThreshold": 8,
            "vardataFreeThreshold": 0x200,
            "hSubDevice": self.subdevice,
            "hBufferHeader": self.header,
            "hRecordBuffer": self.record,
            "hVardataBuffer": self.vardata,
        }


def _bytes(of: CStruct, **values: int) -> bytes:
    fields = of.parse(bytes(of.sizeof()))
    fields.update(values)
    return bytes(of.build(fields))


@pytest.fixture
def rig() -> Rig:
    return _rig()


def _rig(version: str = "580.159.04", **options: Any) -> Rig:
    driver = FakeDriver(version, **options)
    rig = Rig(driver, 0)
    status, rig.client = rig.alloc(0, 0, 0x41)
    assert status == 0
    assert rig.alloc(rig.client, rig.device, 0x80)[0] == 0
    assert rig.alloc(rig.device, rig.subdevice, 0x2080)[0] == 0
    for handle, size in ((rig.header, 0x20), (rig.record, 0x200), (rig.vardata, 0x400)):
        assert rig.memory(handle, size) == 0
    return rig


CASES: list[tuple[str, dict[str, int], int]] = [
    ("a profiler's own", {}, 0x0),
    ("no vardata", {"vardataBufferSize": 0, "vardataFreeThreshold": 0, "hVardataBuffer": 0}, 0x0),
    ("any flags", {"flags": 0xFFFFFFFF}, 0x0),
    ("no header", {"hBufferHeader": 0}, 0x56),
    (
        "no header, and nothing else right",
        {"hBufferHeader": 0, "hRecordBuffer": 0, "recordSize": 0, "hSubDevice": 9},
        0x56,
    ),
    ("no record buffer", {"hRecordBuffer": 0}, 0x1F),
    ("no record buffer comes before an unknown header", {"hRecordBuffer": 0, "hBufferHeader": 0xDEAD}, 0x1F),
    ("vardata size without handle", {"hVardataBuffer": 0}, 0x1F),
    ("vardata handle without size", {"vardataBufferSize": 0, "vardataFreeThreshold": 0}, 0x1F),
    ("unknown header", {"hBufferHeader": 0xDEAD}, 0x57),
    ("unknown record", {"hRecordBuffer": 0xDEAD}, 0x57),
    ("unknown vardata", {"hVardataBuffer": 0xDEAD}, 0x57),
    ("unknown header comes before a wrong size", {"hBufferHeader": 0xDEAD, "recordSize": 0}, 0x57),
    ("classes differ", {"hRecordBuffer": 0x10}, 0x1F),
    ("vardata's class differs", {"hVardataBuffer": 0x10}, 0x1F),
    ("record size 0", {"recordSize": 0}, 0x1F),
    ("record count 0", {"recordCount": 0}, 0x1F),
    ("product over u32", {"recordSize": 0x10000, "recordCount": 0x10001}, 0x1F),
    ("records threshold over the count", {"recordsFreeThreshold": 0x11}, 0x1F),
    ("records threshold at the count", {"recordsFreeThreshold": 0x10}, 0x0),
    ("vardata threshold over the size", {"vardataFreeThreshold": 0x401}, 0x1F),
    ("a limit comes before a wrong subdevice", {"recordSize": 0, "hSubDevice": 0xDEAD}, 0x1F),
    ("unknown subdevice", {"hSubDevice": 0xDEAD}, 0x33),
    ("a device for a subdevice", {"hSubDevice": 0x10}, 0x33),
    ("a wrong subdevice comes before a short record", {"hSubDevice": 0xDEAD, "recordCount": 0x11}, 0x33),
    ("record memory too short", {"recordCount": 0x11}, 0x1F),
    ("vardata memory too short", {"vardataBufferSize": 0x401}, 0x1F),
    ("short memory comes before the event", {"recordCount": 0x11, "notificationHandle": 77}, 0x1F),
    ("an event that nobody registered", {"notificationHandle": 77}, 0x57),
    ("-1", {"notificationHandle": (1 << 64) - 1}, 0x57),
    ("2^32", {"notificationHandle": 1 << 32}, 0x57),
]


@pytest.mark.parametrize(("values", "status"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_event_buffer_allocations(rig: Rig, values: dict[str, int], status: int) -> None:
    params = _bytes(PARAMS, **{**rig.good(), "bufferHeader": 1, "recordBuffer": 2, "vardataBuffer": 3, **values})
    assert rig.alloc(rig.client, 0x30, 0x90CD, params)[0] == status
    left = PARAMS.parse(bytes(rig.arg.pointers[16].data))  # type: ignore[union-attr]
    written = (left.bufferHeader, left.recordBuffer, left.vardataBuffer)
    assert written == ((0, 0, 0) if status == 0 else (1, 2, 3))
    assert (rig.driver.find(rig.client, 0x30) is not None) is (status == 0)


def test_event_buffer_memory_must_be_read_only_to_its_user(rig: Rig) -> None:
    assert rig.memory(0x40, 0x1000, attr2=0) == 0
    assert rig.buffer(hBufferHeader=0x40) == 0x1F
    assert rig.memory(0x41, 0x1F) == 0
    assert rig.buffer(hBufferHeader=0x41) == 0x1F


def test_event_buffer_of_system_memory_needs_a_subdevice(rig: Rig) -> None:
    for handle, size in ((0x50, 0x20), (0x51, 0x200)):
        assert rig.memory(handle, size, hclass=0x3E, parent=rig.device) == 0
    no_vardata = {"vardataBufferSize": 0, "vardataFreeThreshold": 0, "hVardataBuffer": 0}
    assert rig.buffer(hBufferHeader=0x50, hRecordBuffer=0x51, hSubDevice=0, **no_vardata) == 0x1F
    assert rig.buffer(hBufferHeader=0x50, hRecordBuffer=0x51, **no_vardata) == 0


def test_no_subdevice_with_deviceless_memory_is_noted(rig: Rig) -> None:
    assert rig.buffer(hSubDevice=0) == 0
    assert rig.driver.log[-1].notes == ("hSubDevice 0 with deviceless memory: answered 0, as 580.159.04 does",)
    assert rig.buffer(0x31) == 0
    assert rig.driver.log[-1].notes == ()


def test_the_notification_handle_is_a_key_of_the_same_client(rig: Rig) -> None:
    status, other = rig.alloc(0, 0, 0x41, client=0)
    assert status == 0
    assert rig.os_event(55, client=other) == 0
    assert rig.buffer(notificationHandle=55) == 0x57
    assert rig.os_event(55) == 0
    assert rig.buffer(notificationHandle=55) == 0
    assert rig.buffer(0x31, notificationHandle=(1 << 32) + 55) == 0
    assert rig.buffer(0x32, notificationHandle=56) == 0x57
    assert rig.os_event(55) == 0x1A
    assert rig.os_event(55, free=True) == 0
    assert rig.os_event(55, free=True) == 0x28
    assert rig.buffer(0x33, notificationHandle=55) == 0x57


def test_events_end_with_their_client_and_their_file(rig: Rig) -> None:
    _, other = rig.alloc(0, 0, 0x41, client=0)
    assert rig.os_event(55) == rig.os_event(56) == rig.os_event(55, client=other) == 0
    rig.driver.close(55)
    assert rig.driver.os_events == {(rig.client, 56)}
    assert rig.free(rig.client) == 0
    assert rig.driver.os_events == set()


@pytest.mark.parametrize(
    ("command", "params", "status"),
    [
        (0x90CD0000, b"", 0x0),
        *((0x90CD0101, struct.pack("<BxxxI", 1, flags), 0x0 if flags < 4 else 0x1F) for flags in range(5)),
        (0x90CD0101, bytes(7), 0x1F),
        (0x90CD0101, b"", 0x1F),
        (0x90CD0102, struct.pack("<II", 0xF, 0), 0x0),
        (0x90CD0102, struct.pack("<II", 0x10, 0), 0x1F),
        (0x90CD0102, struct.pack("<II", 0, 0x3FF), 0x0),
        (0x90CD0102, struct.pack("<II", 0, 0x400), 0x1F),
        (0x90CD0103, b"", 0x56),
        (0x90CD0104, b"", 0x0),
        (0x90CD0104, bytes(4), 0x1F),
        (0x90CD0105, bytes(524), 0x56),
        (0x90CD0105, bytes(523), 0x1F),
    ],
)
def test_event_buffer_controls(rig: Rig, command: int, params: bytes, status: int) -> None:
    assert rig.buffer() == 0
    assert rig.control(0x30, command, params) == status


def test_update_get_without_vardata(rig: Rig) -> None:
    assert rig.buffer(vardataBufferSize=0, vardataFreeThreshold=0, hVardataBuffer=0) == 0
    assert rig.control(0x30, 0x90CD0102, struct.pack("<II", 0, 0)) == 0
    assert rig.control(0x30, 0x90CD0102, struct.pack("<II", 0, 1)) == 0x1F


@pytest.mark.parametrize(
    ("version", "mig", "command", "size", "status"),
    [
        ("580.159.04", False, 0x20801231, 20, 0x0),
        ("580.159.04", True, 0x20801231, 20, 0x56),
        ("580.159.04", True, 0x20801238, 24, 0x0),
        ("580.159.04", False, 0x20801238, 20, 0x1F),
        ("580.159.04", False, 0x20800309, 20, 0x0),
        ("545.23.06", False, 0x20800309, 20, 0x56),
        ("550.40.07", False, 0x20800309, 20, 0x0),
        ("580.159.04", False, 0x2080030A, 24, 0x1B),
    ],
)
def test_binding(version: str, mig: bool, command: int, size: int, status: int) -> None:
    rig = _rig(version, mig=mig)
    assert rig.buffer() == 0
    body = struct.pack("<I", 0x30).ljust(size, b"\0")
    assert rig.control(rig.subdevice, command, body) == status
    if status == 0:
        assert rig.control(rig.subdevice, command, struct.pack("<I", 0xDEAD).ljust(size, b"\0")) == 0x57
        assert rig.control(rig.subdevice, command, struct.pack("<I", rig.subdevice).ljust(size, b"\0")) == 0x33
        assert rig.control(rig.device, command, body) == 0x56


def test_freeing_memory_frees_the_buffer_and_keeps_its_handle(rig: Rig) -> None:
    """What a profiler does: the memory goes first, and freeing the buffer afterwards is still a success."""
    assert rig.buffer() == 0
    assert rig.free(rig.record) == 0
    assert rig.control(0x30, 0x90CD0104) == 0x6E
    assert 0x30 not in {obj.handle for obj in rig.driver.objects()}
    assert rig.buffer(0x30, hRecordBuffer=rig.vardata) == 0x19
    assert rig.free(0x30) == rig.free(0x30) == 0
    assert rig.control(0x30, 0x90CD0104) == 0x57


def test_freeing_a_subdevice_leaves_the_buffer(rig: Rig) -> None:
    assert rig.buffer() == 0
    assert rig.free(rig.subdevice) == 0
    assert rig.control(0x30, 0x90CD0104) == 0


def test_class_0x7f_is_in_no_resource_list(rig: Rig) -> None:
    assert rig.alloc(rig.client, 0x30, 0x7F, bytes(24))[0] == 0x22


def test_parents(rig: Rig) -> None:
    assert rig.buffer(parent=rig.device) == 0x36
    assert rig.memory(0x40, 0x20, parent=rig.subdevice) == 0x36
    assert rig.buffer(parent=0xDEAD) == 0x57
    assert rig.alloc(rig.client, 0x40, 0x2080)[0] == 0x36
    assert rig.alloc(rig.client, rig.device, 0x80)[0] == 0x19
    assert rig.alloc(rig.client, rig.client, 0x80)[0] == 0x36
    assert rig.alloc(rig.client, 0x40, 0x80, client=0xBAD)[0] == 0x23
    assert rig.alloc(rig.client, 0x40, 0x90CD)[0] == 0x1F


EARLY = {
    ("545.23.06", "NV_MEMORY_EXPORT"),
    ("545.23.06", "NV_MEMORY_FABRIC_IMPORTED_REF"),
    ("545.23.06", "NV_IMEX_SESSION"),
}
"""Classes that nvproxy admits one release before the driver has them."""


@pytest.mark.parametrize("version", versions.load())
def test_every_class_that_the_tables_name_has_a_place(version: str) -> None:
    node = versions.load()[version]
    known = classes.at(node)
    for rule in ALLOC:
        if (version, rule.name) in EARLY:
            assert rule.number not in known
        elif rule.active(node) and not rule.rejected:
            assert known[rule.number].name == rule.name
            assert (known[rule.number].params == "none") is (rule.params is None)


def test_an_injected_answer_is_given_once(rig: Rig) -> None:
    rig.driver.answer_next(errno=5)
    rig.driver.answer_next(status=0x40)
    arg = Buffer(bytearray(struct.pack("<IIIIQII", rig.client, rig.device, 0x801402, 0, 0, 0, 7)))
    before = bytes(arg.data)
    assert rig.driver.ioctl(CTL, 0xC020462A, arg) == 5
    assert arg.data == before
    assert rig.control(rig.device, 0x801402) == 0x40
    assert rig.control(rig.device, 0x801402) == 0
    assert [(entry.table, entry.number, entry.errno, entry.status) for entry in list(rig.driver.log)[-3:]] == [
        ("control", 0x801402, 5, None),
        ("control", 0x801402, 0, 0x40),
        ("control", 0x801402, 0, 0),
    ]


def test_the_log_keeps_what_it_is_told_to() -> None:
    assert len(_rig(keep=2).driver.log) == 2
    assert len(_rig().driver.log) == 6


def test_version_and_cards() -> None:
    driver = FakeDriver("550.90.12")
    version = Buffer(bytearray(72))
    assert driver.ioctl(CTL, 0xC04846D2, version) == 0
    assert version.data[4] == 1
    assert version.data[8:].rstrip(b"\0") == b"550.90.12"
    cards = Buffer(bytearray(b"\xff" * 144))
    assert driver.ioctl(CTL, 0xC09046C8, cards) == 0
    assert (cards.data[0], cards.data[72]) == (1, 0)


def test_a_dma_buf_gets_a_host_descriptor_of_its_own(rig: Rig) -> None:
    of = 2608
    made = []
    for _ in range(2):
        arg = Buffer(bytearray(struct.pack("<iI", -1, rig.client).ljust(of, b"\0")))
        assert rig.driver.ioctl(CTL, 0xC0004600 | of << 16 | 0xD9, arg) == 0
        made.append(int.from_bytes(arg.data[:4], "little"))
    assert made[0] >= 1 << 20
    assert made[1] == made[0] + 1


def test_an_unknown_release_is_an_error() -> None:
    with pytest.raises(UnknownDriverVersion):
        FakeDriver("1.2.3")
