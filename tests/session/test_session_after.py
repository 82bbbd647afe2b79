"""What a session does once the driver has answered: objects, map contexts, rights, descriptors, the order of the copy-out.

Arguments are bytes written by hand, from the headers; the host answers bytes of its own, so that nothing here shares the
reading of a struct with the code under test.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from typing import Any

import pytest

from nvproxy_model import Buffer, File, Files, Policy, Result, Session, Why
from nvproxy_model.session.ports import MapContext, Pages
from tests.session.paged import PAGE, Paged, Pinning

CTL, GPU, OTHER = 3, 4, 5
HOST = {CTL: 1 << 20, GPU: (1 << 20) + 1, OTHER: (1 << 20) + 2}
CLIENT, DEVICE, OBJECT = 0xC1D00001, 0xDE01, 0x0B01
ARG, PARAMS, SPARE, DATA = 0x10000, 0x11000, 0x12000, 0x20000
CAPS = "all,profiling,rdma,fabric-imex-mgmt"
INVALID_CLIENT = 0x23
GUARD = b"\x6d" * 24
"""What lies behind an argument, and must stay as it is."""


def request(nr: int, size: int) -> int:
    return 0xC0004600 | size << 16 | nr


Act = Callable[[Buffer], "int | None"]


class Guest:
    """A session with one client and a device, over a host that does what a test says."""

    def __init__(self, memory: Paged | None = None, *, version: str = "580.159.04", **policy: Any) -> None:
        self.memory = Paged() if memory is None else memory
        self.memory.map(ARG, 3 * PAGE)
        self.files = Files(
            {
                CTL: File("frontend", HOST[CTL]),
                GPU: File("frontend", HOST[GPU], control_device=False),
                OTHER: File("frontend", HOST[OTHER]),
            }
        )
        self.session = Session(Policy.for_driver(version, CAPS, **policy), self.memory, self.files, self)
        self.calls: list[tuple[int, Buffer | None]] = []
        self.act: Act = lambda arg: 0
        self.session.graph.add_client(CLIENT, 0x41, self.files[CTL])
        self.session.graph.add(CLIENT, DEVICE, 0x80, CLIENT)

    def ioctl(self, host_fd: int, request: int, arg: Buffer | None) -> int:
        seen = None if arg is None else Buffer(bytearray(arg.data), dict(arg.pointers))
        self.calls.append((request, seen))
        return (self.act(arg) or 0) if arg is not None else 0

    def call(self, nr: int, argument: bytes, act: Act = lambda arg: 0, *, fd: int = CTL) -> tuple[Result, bytes]:
        self.act = act
        self.calls.clear()
        self.memory.write(ARG, argument + GUARD)
        result = self.session.ioctl(fd, request(nr, len(argument)), ARG)
        assert (result.ret, bool(result.errno)) in ((0, False), (-1, True))
        assert self.memory.read(ARG + len(argument), len(GUARD)) == GUARD
        return result, self.memory.read(ARG, len(argument))

    def live(self) -> dict[tuple[int, int], tuple[int, int]]:
        return {(obj.client, obj.handle): (obj.hclass, obj.parent) for obj in self.session.objects()}


def put(at: int, value: int, size: int = 4) -> Act:
    def act(arg: Buffer) -> None:
        arg.data[at : at + size] = value.to_bytes(size, "little")

    return act


def both(*acts: Act) -> Act:
    def act(arg: Buffer) -> None:
        for one in acts:
            one(arg)

    return act


# NVOS64_PARAMETERS: hRoot, hObjectParent, hObjectNew, hClass, pAllocParms, pRightsRequested, paramsSize, flags, status
def nvos64(
    hclass: int, *, client: int = CLIENT, parent: int = CLIENT, new: int = OBJECT, params: int = 0, rights: int = 0
) -> bytes:
    return struct.pack("<IIIIQQIII4x", client, parent, new, hclass, params, rights, 0, 0, 0)


# nv_ioctl_nvos02_parameters_with_fd: hRoot, hObjectParent, hObjectNew, hClass, flags, pMemory, limit, status, fd
def nvos02(
    hclass: int, *, client: int = CLIENT, flags: int = 0, memory: int = 0, limit: int = 0xFFF, fd: int = OTHER
) -> bytes:
    return struct.pack("<IIIIIxxxxQQIxxxxixxxx", client, DEVICE, OBJECT, hclass, flags, memory, limit, 0, fd)


# nv_ioctl_nvos33_parameters_with_fd: hClient, hDevice, hMemory, offset, length, pLinearAddress, status, flags, fd
def nvos33(fd: int, *, flags: int = 0, length: int = 0x1000) -> bytes:
    return struct.pack("<IIIxxxxQQQIIixxxx", CLIENT, DEVICE, OBJECT, 0, length, 0, 0, flags, fd)


# NVOS32_PARAMETERS, function ALLOC_SIZE: the fields of the header, then of the union.
def nvos32(*, flags: int = 0, attr: int = 0, attr2: int = 0, space: int = 0) -> bytes:
    raw = bytearray(184)
    struct.pack_into("<IIII", raw, 0, CLIENT, DEVICE, 2, space)
    struct.pack_into("<I", raw, 44, OBJECT)
    struct.pack_into("<II", raw, 52, flags, attr)
    struct.pack_into("<I", raw, 144, attr2)
    return bytes(raw)


# NVOS54_PARAMETERS: hClient, hObject, cmd, flags, params, paramsSize, status
def nvos54(cmd: int, size: int, *, address: int = PARAMS, handle: int = OBJECT, client: int = CLIENT) -> bytes:
    return struct.pack("<IIIIQII", client, handle, cmd, 0, address, size, 0)


# -- rights, clients, objects


@pytest.mark.parametrize("short", [False, True])
def test_the_rights_that_the_driver_granted_come_back(short: bool) -> None:
    """RS_ACCESS_MASK is one word; NVOS21 has no pointer to it, so the guest's word stays as it is."""
    guest = Guest()
    guest.memory.write(SPARE, b"\xff\x00\x00\x00")

    def grant(arg: Buffer) -> None:
        assert len(arg.data) == 48
        assert set(arg.pointers) == (set() if short else {24})
        for behind in arg.pointers.values():
            assert isinstance(behind, Buffer)
            assert behind.data == b"\xff\0\0\0"
            behind.data[:] = b"\x0d\0\0\0"

    argument = (
        struct.pack("<IIIIQII", CLIENT, CLIENT, OBJECT, 0x900E, 0, 0, 0) if short else nvos64(0x900E, rights=SPARE)
    )
    result, out = guest.call(0x2B, argument, grant)
    assert result.errno == 0
    assert guest.memory.read(SPARE, 4) == (b"\xff\0\0\0" if short else b"\x0d\0\0\0")
    assert out == argument
    assert guest.live()[CLIENT, OBJECT] == (0x900E, CLIENT)


def test_rights_that_cannot_be_read_stop_the_call() -> None:
    guest = Guest()
    result, _ = guest.call(0x2B, nvos64(0x900E, rights=0x7000))
    assert (result.errno, guest.calls) == (errno.EFAULT, [])


def test_the_host_does_not_choose_the_client() -> None:
    """An object stands below the client that was looked up, whatever hRoot the host answers."""
    guest = Guest()
    guest.session.graph.add_client(CLIENT + 1, 0x41, guest.files[OTHER])
    guest.call(0x2B, nvos64(0x900E), put(0, CLIENT + 1))
    assert (CLIENT, OBJECT) in guest.live()
    assert (CLIENT + 1, OBJECT) not in guest.live()


def test_parent_class_and_handle_are_the_hosts() -> None:
    guest = Guest()
    guest.call(0x2B, nvos64(0x900E), both(put(4, DEVICE), put(8, 0x77), put(12, 0x900D)))
    assert guest.live()[CLIENT, 0x77] == (0x900D, DEVICE)
    new = guest.session.graph.get(CLIENT, 0x77)
    assert new is not None
    assert [dep.handle for dep in new.deps] == [DEVICE]


def test_a_new_client_belongs_to_the_file_of_its_call() -> None:
    guest = Guest()
    for hclass in (0x0, 0x1, 0x41):
        guest.call(0x2B, nvos64(hclass, client=0, parent=0, new=0), both(put(8, 0xC1D00007), put(12, 0x41)), fd=OTHER)
        assert guest.live()[0xC1D00007, 0xC1D00007] == (0x41, 0)
        guest.session.graph.free(0xC1D00007, 0xC1D00007)
    guest.call(0x2B, nvos64(0x41, client=0, parent=0, new=0), put(8, 0xC1D00007), fd=OTHER)
    assert guest.session.close(OTHER).close == (HOST[OTHER],)
    assert (0xC1D00007, 0xC1D00007) not in guest.live()
    assert (CLIENT, CLIENT) in guest.live()


def test_a_client_is_freed_by_the_handle_that_the_host_names() -> None:
    """RM_FREE: the client is the guest's word, the handle what the driver says was freed."""
    guest = Guest()
    guest.session.graph.add(CLIENT, 0x11, 0x900E, CLIENT)
    guest.session.graph.add(CLIENT, 0x12, 0x900E, CLIENT)
    guest.call(0x29, struct.pack("<IIII", CLIENT, 0, 0x11, 0), put(8, 0x12))
    assert (CLIENT, 0x11) in guest.live()
    assert (CLIENT, 0x12) not in guest.live()
    guest.call(0x29, struct.pack("<IIII", CLIENT, 0, 0x11, 0), put(0, CLIENT + 9))
    assert (CLIENT, 0x11) not in guest.live()


@pytest.mark.parametrize(("client", "source", "calls"), [(CLIENT, CLIENT, 1), (CLIENT, 0xBAD, 0), (0xBAD, CLIENT, 0)])
def test_a_duplicate_needs_both_clients(client: int, source: int, calls: int) -> None:
    guest = Guest()
    guest.session.graph.add(CLIENT, 0x11, 0x900E, CLIENT)
    argument = struct.pack("<IIIIIII", client, client, OBJECT, source, 0x11, 0, 0)
    result, out = guest.call(0x34, argument)
    assert len(guest.calls) == calls
    assert int.from_bytes(out[24:28], "little") == (0 if calls else INVALID_CLIENT)
    assert result.decision is not None
    assert (result.decision.why is Why.CLIENT) is not bool(calls)
    assert ((CLIENT, OBJECT) in guest.live()) is bool(calls)


def test_a_context_dma_stands_beside_its_memory() -> None:
    """NVOS39: hObjectParent is the client, and the new object's parent is the memory's."""
    guest = Guest()
    guest.session.graph.add(CLIENT, 0x51, 0x3E, DEVICE)
    argument = struct.pack("<IIIIIIIxxxxQQIxxxx", CLIENT, 0, OBJECT, 2, 0, 0, 0x51, 0, 0xFFF, 0)
    guest.call(0x54, argument)
    assert guest.live()[CLIENT, OBJECT] == (2, DEVICE)
    assert OBJECT in {obj.handle for obj in guest.session.not_restorable()}
    guest.call(0x54, argument[:8] + b"\x99\0\0\0" + argument[12:24] + b"\x98\0\0\0" + argument[28:])
    assert (CLIENT, 0x99) not in guest.live(), "memory that is not known"
    result, out = guest.call(0x54, b"\xad\x0b\0\0" + argument[4:])
    assert (result.errno, out[48:52], guest.calls) == (0, bytes([INVALID_CLIENT, 0, 0, 0]), [])


VIRTUAL, EGM, SYSTEM = 1 << 19, 1 << 24, 1 << 25
VID_HEAP = [
    ({}, 0x40),
    ({"attr": SYSTEM}, 0x3E),
    ({"attr": SYSTEM << 1}, 0x3E),
    ({"attr2": EGM}, 0x42),
    ({"attr2": EGM, "attr": SYSTEM}, 0x42),
    ({"flags": VIRTUAL, "attr2": EGM}, 0x50A0),
    ({"flags": VIRTUAL - 1}, 0x40),
]


@pytest.mark.parametrize(("fields", "hclass"), VID_HEAP)
def test_the_class_of_heap_memory(fields: dict[str, int], hclass: int) -> None:
    """Virtual first, then EGM, then the location, all of them as the driver answered."""
    for answered in (False, True):
        guest = Guest()
        wanted = nvos32(**fields)

        def answer(arg: Buffer, wanted: bytes = wanted) -> None:
            arg.data[:] = wanted

        guest.call(0x4A, nvos32() if answered else wanted, answer if answered else lambda arg: None)
        assert guest.live()[CLIENT, OBJECT] == (hclass, DEVICE)
        assert not guest.session.graph.get(CLIENT, OBJECT).restorable  # type: ignore[union-attr]


def test_virtual_memory_goes_with_its_address_space() -> None:
    for flags, goes in ((VIRTUAL, True), (0, False)):
        guest = Guest()
        guest.session.graph.add(CLIENT, 0x5A, 0x90F1, DEVICE)
        guest.call(0x4A, nvos32(flags=flags, space=0x5A))
        guest.session.graph.free(CLIENT, 0x5A)
        assert ((CLIENT, OBJECT) not in guest.live()) is goes


def test_a_failed_call_leaves_no_object() -> None:
    for nr, argument, status_at in (
        (0x2B, nvos64(0x900E), 40),
        (0x27, nvos02(0x3F), 40),
        (0x4A, nvos32(), 20),
        (0x34, struct.pack("<IIIIIII", CLIENT, CLIENT, OBJECT, CLIENT, DEVICE, 0, 0), 24),
    ):
        for act in (put(status_at, 0x57), lambda arg: errno.EIO):
            guest = Guest()
            guest.call(nr, argument, act)
            assert (CLIENT, OBJECT) not in guest.live()
            assert guest.session.close(CTL).ret == 0


# -- map contexts


def flags02(alloc: int, mapping: int) -> int:
    return alloc << 16 | mapping << 30


@pytest.mark.parametrize(
    ("alloc", "mapping", "maps"), [(0, 0, True), (1, 0, False), (2, 0, True), (3, 0, True), (0, 1, False), (0, 2, True)]
)
def test_system_memory_may_be_mapped_unless_the_flags_say_otherwise(alloc: int, mapping: int, maps: bool) -> None:
    """NVOS02_FLAGS_ALLOC_NONE is 1 in bits 17:16, NVOS02_FLAGS_MAPPING_NO_MAP is 1 in bits 31:30."""
    guest = Guest()
    result, _ = guest.call(0x27, nvos02(0x3E, flags=flags02(alloc, mapping), limit=0x1FFF))
    assert result.errno == 0
    assert guest.files[OTHER].mapping == (MapContext(0x2000, "write-combine") if maps else None)
    assert guest.live()[CLIENT, OBJECT] == (0x3E, DEVICE)
    again, _ = guest.call(0x27, nvos02(0x3E, flags=flags02(alloc, mapping)))
    assert (again.errno, len(guest.calls)) == ((errno.EINVAL, 0) if maps else (0, 1))
    if maps:
        assert again.decision is not None
        assert again.decision.why is Why.IN_USE
        assert guest.call(0x27, nvos02(0x3E, flags=flags02(1, 0)))[0].errno == 0, "it would not be mapped"


def test_the_driver_says_how_long_system_memory_is() -> None:
    guest = Guest()
    guest.call(0x27, nvos02(0x3E), put(32, 0x2FFF, 8))
    assert guest.files[OTHER].mapping == MapContext(0x3000, "write-combine")
    guest = Guest()
    guest.call(0x27, nvos02(0x3E), put(32, (1 << 64) - 1, 8))
    assert guest.files[OTHER].mapping is None


def test_other_memory_has_no_descriptor() -> None:
    """The driver is shown -1 for local memory; the guest keeps its number, and its file is not mapped."""
    for hclass in (0x3F, 0x40):
        guest = Guest()
        _, out = guest.call(0x27, nvos02(hclass, fd=77))
        (_, arg) = guest.calls[0]
        assert arg is not None
        assert arg.data[48:52] == b"\xff\xff\xff\xff"
        assert out[48:52] == b"\x4d\0\0\0"
        assert guest.live()[CLIENT, OBJECT] == (hclass, DEVICE)
    result, _ = guest.call(0x27, nvos02(0x50A0))
    assert (result.errno, guest.calls) == (errno.EINVAL, [])


CACHING = {
    0: "write-back",
    1: "uncached",
    2: "write-combine",
    3: "uncached",
    4: "uncached",
    5: "write-back",
    6: "write-combine",
    7: "uncached",
}


@pytest.mark.parametrize(("caching", "memory_type"), CACHING.items())
def test_the_memory_type_of_a_mapping(caching: int, memory_type: str) -> None:
    """Bits 25:23 of the flags that the driver returned, for the control device; a GPU's own file is always uncached."""
    for fd, wanted in ((OTHER, memory_type), (GPU, "uncached")):
        guest = Guest()
        result, out = guest.call(0x4E, nvos33(fd), both(put(44, caching << 23), put(24, 0x5000, 8)))
        assert result.errno == 0
        assert guest.files[fd].mapping == MapContext(0x5000, wanted)
        assert out[48:52] == fd.to_bytes(4, "little")
        assert guest.call(0x4E, nvos33(fd))[0].errno == errno.EINVAL, "once for its life"
        assert guest.calls == []


def test_a_mapping_of_no_length_is_none() -> None:
    guest = Guest()
    guest.call(0x4E, nvos33(OTHER), put(24, 0, 8))
    assert guest.files[OTHER].mapping is None
    guest.call(0x4E, nvos33(OTHER), put(40, 0x57))
    assert guest.files[OTHER].mapping is None


# -- OS descriptors

PIN = DATA + 0x3000


def os_descriptor(memory: int = DATA, limit: int = 0xFFF, flags: int = 0, client: int = CLIENT) -> bytes:
    return nvos02(0x71, memory=memory, limit=limit, flags=flags, client=client, fd=-1)


def pages(guest: Guest) -> Pages:
    _, arg = guest.calls[0]
    assert arg is not None
    found = arg.pointers[24]
    assert isinstance(found, Pages)
    assert arg.data[24:32] == bytes(8)
    return found


@pytest.mark.parametrize(
    ("limit", "size"), [(0, 0x1000), (0xFFE, 0x1000), (0xFFF, 0x1000), (0x1000, 0x2000), (0x1FFF, 0x2000)]
)
def test_whole_pages_are_pinned(limit: int, size: int) -> None:
    for flags, writable in ((0, True), (1 << 21, False)):
        guest = Guest()
        guest.memory.map(DATA, 2 * PAGE)
        result, out = guest.call(0x27, os_descriptor(limit=limit, flags=flags))
        assert (result.errno, result.unpin) == (0, ())
        assert pages(guest) == Pages(DATA, size, writable)
        assert out == os_descriptor(limit=limit, flags=flags)
        freed, _ = guest.call(0x29, struct.pack("<IIII", CLIENT, 0, OBJECT, 0))
        assert freed.unpin == ((DATA, size),)


@pytest.mark.parametrize(
    ("memory", "limit", "status"),
    [
        (DATA + 1, 0xFFF, 0x56),
        (DATA + 0x800, 0xFFF, 0x56),
        (DATA, (1 << 64) - 1, 0x2E),
        ((1 << 64) - PAGE, 0xFFF, 0x1E),
        ((1 << 64) - PAGE, 0x1FFF, 0x1E),
        (1 << 63, (1 << 63) - 1, 0x1E),
        (1 << 63, (1 << 63), 0x1E),
        (0, (1 << 64) - 2, 0x1E),
    ],
)
def test_ranges_that_are_none(memory: int, limit: int, status: int) -> None:
    guest = Guest()
    guest.memory.map(DATA, 2 * PAGE)
    result, out = guest.call(0x27, os_descriptor(memory, limit))
    assert (result.errno, guest.calls) == (0, [])
    assert out == os_descriptor(memory, limit)[:40] + status.to_bytes(4, "little") + os_descriptor(memory, limit)[44:]


BAD_PAGES = [
    # (holes, read-only pages, read-only flag) -> errno with `pin`, errno without
    ((), (), 0, 0, 0),
    ((3,), (), 0, errno.EFAULT, errno.EFAULT),
    ((0,), (), 0, errno.EFAULT, errno.EFAULT),
    ((1,), (), 0, errno.EFAULT, errno.EFAULT),
    ((), (2,), 0, errno.EPERM, 0),
    ((), (2,), 1 << 21, 0, 0),
    ((3,), (1,), 0, errno.EPERM, errno.EFAULT),
    ((1,), (3,), 0, errno.EFAULT, errno.EFAULT),
]


@pytest.mark.parametrize(("holes", "read_only", "flags", "pinning", "looking"), BAD_PAGES)
def test_the_first_bad_page_answers(
    holes: tuple[int, ...], read_only: tuple[int, ...], flags: int, pinning: int, looking: int
) -> None:
    """Before an unknown client does, and before the host is called."""
    for memory, error in ((Pinning(), pinning), (Paged(), looking)):
        for client in (CLIENT, 0xBAD):
            guest = Guest(memory)
            memory.map(DATA, 4 * PAGE)
            for page in holes:
                memory.unmap(DATA + page * PAGE)
            for page in read_only:
                memory.protect(DATA + page * PAGE)
            result, out = guest.call(0x27, os_descriptor(limit=0x3FFF, flags=flags, client=client))
            assert result.errno == error
            assert len(guest.calls) == (not error and client == CLIENT)
            assert out[40:44] == (bytes(4) if error or client == CLIENT else bytes([INVALID_CLIENT, 0, 0, 0]))
            if isinstance(memory, Pinning):
                assert memory.pinned == ([] if error else [(DATA, 0x4000)])
                assert result.unpin == (((DATA, 0x4000),) if not error and client != CLIENT else ())
                if error:
                    assert result.decision is not None
                    assert result.decision.why is Why.PIN
                    assert "params.pMemory" in result.decision.reason
                memory.pinned.clear()


@pytest.mark.parametrize("act", [lambda arg: errno.EIO, put(40, 0x1F)], ids=["errno", "status"])
def test_pages_of_a_failed_call_are_named_at_once(act: Act) -> None:
    for memory in (Pinning(), Paged()):
        guest = Guest(memory)
        memory.map(DATA, PAGE)
        for _ in range(6):
            result, _ = guest.call(0x27, os_descriptor(), act)
            assert result.unpin == ((DATA, PAGE),)
        assert guest.session.close(CTL).unpin == ()


def test_pages_whose_answer_the_guest_cannot_be_shown_stay_pinned() -> None:
    guest = Guest()
    guest.memory.map(DATA, PAGE)

    def hide(arg: Buffer) -> None:
        guest.memory.protect(ARG)

    guest.memory.write(ARG, os_descriptor())
    guest.act = hide
    result = guest.session.ioctl(CTL, request(0x27, 56), ARG)
    assert (result.errno, result.unpin) == (errno.EFAULT, ())
    assert (CLIENT, OBJECT) in guest.live()
    assert guest.session.close(CTL).unpin == ((DATA, PAGE),)


def test_pages_of_an_object_without_a_handle_go_with_the_client() -> None:
    guest = Guest()
    guest.memory.map(DATA, PAGE)
    result, _ = guest.call(0x27, os_descriptor(), put(8, 0))
    assert result.unpin == ()
    assert guest.session.close(CTL).unpin == ((DATA, PAGE),)


# -- a dma-buf


def dmabuf(fd: int) -> bytes:
    return struct.pack("<iI", fd, CLIENT) + bytes(2600)


def made(fd: int, status: int = 0) -> Act:
    return both(put(0, fd & 0xFFFFFFFF), put(2600, status))


def test_a_new_dma_buf_becomes_a_file() -> None:
    guest = Guest()
    result, out = guest.call(0xD9, dmabuf(-1), made(1 << 21))
    assert (result.errno, result.close) == (0, ())
    fd = int.from_bytes(out[:4], "little")
    assert fd == 0
    assert (guest.files[fd].kind, guest.files[fd].host_fd) == ("dma-buf", 1 << 21)
    for given, answered in ((-1, 1 << 21), (-2, 0), (-(1 << 31), 1)):
        result, out = guest.call(0xD9, dmabuf(given), made(answered, 0x57))
        assert out[:4] == dmabuf(given)[:4], "refused by the driver: the guest's own number"
        assert len(guest.files) == 4
    result, out = guest.call(0xD9, dmabuf(-1), both(made(1 << 22), put(2604, 0xFFFFFFFF)))
    assert guest.files[int.from_bytes(out[:4], "little")].host_fd == 1 << 22, "padding is not part of the status"
    result, out = guest.call(0xD9, dmabuf(-1), made(0))
    assert guest.files[int.from_bytes(out[:4], "little")].host_fd == 0, "0 is a number like any other"
    result, out = guest.call(0xD9, dmabuf(-1), made(-5))
    assert struct.unpack_from("<i", out) == (-5,), "none was made: the driver's answer"


def test_a_dma_buf_that_the_guest_cannot_be_told_of_is_closed() -> None:
    guest = Guest()

    def answer(arg: Buffer) -> None:
        made(1 << 21)(arg)
        guest.memory.protect(ARG)

    guest.memory.write(ARG, dmabuf(-1))
    guest.act = answer
    before = dict(guest.files)
    result = guest.session.ioctl(CTL, request(0xD9, 2608), ARG)
    assert (result.errno, result.close) == (errno.EFAULT, (1 << 21,))
    assert dict(guest.files) == before


def test_a_full_descriptor_table_closes_the_dma_buf() -> None:
    guest = Guest()

    class Full(Files):
        def install(self, file: File) -> int:
            raise OSError(errno.ENFILE, "full")

    guest.session.fds = Full(guest.files)
    result, out = guest.call(0xD9, dmabuf(-1), made(1 << 21))
    assert (result.errno, result.close) == (errno.ENFILE, (1 << 21,))
    assert out == dmabuf(-1)


# -- controls


def control(
    guest: Guest, cmd: int, params: bytes, act: Act = lambda arg: 0, **more: int
) -> tuple[Result, bytes, bytes]:
    guest.memory.write(PARAMS, params)
    result, out = guest.call(0x2A, nvos54(cmd, len(params), **more), act)
    return result, out, guest.memory.read(PARAMS, len(params))


def strings(size: int, *addresses: int) -> bytes:
    return struct.pack("<IxxxxQQQII", size, *addresses, 0, 0)


def test_strings_are_clamped_and_the_guest_sees_it() -> None:
    """NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION: at most 256 bytes each."""
    for size, clamped in ((255, 255), (256, 256), (257, 256), (1 << 20, 256), ((1 << 32) - 1, 256)):
        guest = Guest()

        def look(arg: Buffer, clamped: int = clamped) -> None:
            behind = arg.pointers[16]
            assert isinstance(behind, Buffer)
            assert int.from_bytes(behind.data[:4], "little") == clamped
            assert [len(one.data) for one in behind.pointers.values() if isinstance(one, Buffer)] == [clamped] * 3

        result, _, out = control(guest, 0x101, strings(size, SPARE, SPARE + 0x200, SPARE + 0x400), look, handle=CLIENT)
        assert result.errno == 0
        assert len(guest.calls) == 1
        assert int.from_bytes(out[:4], "little") == clamped
        assert out[8:32] == strings(0, SPARE, SPARE + 0x200, SPARE + 0x400)[8:32]


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_one_string_that_is_not_wanted_is_none_wanted(missing: int) -> None:
    addresses = [SPARE, SPARE + 0x200, SPARE + 0x400]
    addresses[missing] = 0
    guest = Guest()

    def look(arg: Buffer) -> None:
        behind = arg.pointers[16]
        assert isinstance(behind, Buffer)
        assert behind.pointers == {}
        assert behind.data[8:32] == bytes(24)
        assert behind.data[32:40] == struct.pack("<II", 21, 22)
        behind.data[32:40] = struct.pack("<II", 31, 32)

    asked = struct.pack("<IxxxxQQQII", 0, *addresses, 21, 22)
    _, _, out = control(guest, 0x101, asked, look, handle=CLIENT)
    assert out == struct.pack("<IxxxxQQQII", 0, *addresses, 31, 32)


def test_late_buffers_are_written_after_the_struct_that_names_them() -> None:
    """A guest whose strings lie in the struct itself sees the strings there."""
    guest = Guest()

    def answer(arg: Buffer) -> None:
        behind = arg.pointers[16]
        assert isinstance(behind, Buffer)
        for at, letter in ((8, b"v"), (16, b"w"), (24, b"t")):
            text = behind.pointers[at]
            assert isinstance(text, Buffer)
            assert text.data == bytes(4)
            text.data[:] = letter * 4
        behind.data[32:40] = b"\xee" * 8

    _, _, out = control(guest, 0x101, strings(4, PARAMS + 32, SPARE, SPARE + 8), answer, handle=CLIENT)
    assert out[32:40] == b"vvvv\xee\xee\xee\xee"
    assert guest.memory.read(SPARE, 12) == b"wwww\0\0\0\0tttt"


def test_other_buffers_are_written_before_the_struct() -> None:
    """NV2080_CTRL_CMD_GR_GET_INFO-like lists, here NV2080_CTRL_CMD_BIOS_GET_INFO: the struct is written over a list in it."""
    guest = Guest()
    params = struct.pack("<IxxxxQ", 1, PARAMS)

    def answer(arg: Buffer) -> None:
        behind = arg.pointers[16]
        assert isinstance(behind, Buffer)
        listed = behind.pointers[8]
        assert isinstance(listed, Buffer)
        assert listed.data == params[:8]
        listed.data[:] = b"\xaa" * 8

    _, _, out = control(guest, 0x20800802, params, answer)
    assert out == params


def test_what_the_driver_writes_behind_a_pointer_comes_back() -> None:
    guest = Guest()
    guest.memory.write(SPARE, b"\x01\x02\x03\x04\x05\x06\x07\x08" * 2)

    def answer(arg: Buffer) -> None:
        behind = arg.pointers[16]
        assert isinstance(behind, Buffer)
        listed = behind.pointers[8]
        assert isinstance(listed, Buffer)
        assert listed.data == b"\x01\x02\x03\x04\x05\x06\x07\x08"
        listed.data[4:] = b"\xaa\xbb\xcc\xdd"

    params = struct.pack("<IxxxxQ", 1, SPARE)
    _, _, out = control(guest, 0x20800802, params, answer)
    assert out == params
    assert guest.memory.read(SPARE, 16) == b"\x01\x02\x03\x04\xaa\xbb\xcc\xdd\x01\x02\x03\x04\x05\x06\x07\x08"


def test_the_status_is_one_word() -> None:
    """What stands beside it, padding included, is not part of it."""
    for at in (36, 44):
        guest = Guest()
        guest.call(0x2B, nvos64(0x900E), put(at, 0xFFFFFFFF))
        assert (CLIENT, OBJECT) in guest.live()
    for byte in range(40, 44):
        guest = Guest()
        guest.call(0x2B, nvos64(0x900E), put(byte, 1, 1))
        assert (CLIENT, OBJECT) not in guest.live()


def test_a_control_with_a_handler_has_one_size() -> None:
    """NV503C_CTRL_CMD_REGISTER_VA_SPACE has no role, and yet nvproxy reads it: a wrong size is EINVAL."""
    for size, error in ((15, errno.EINVAL), (17, errno.EINVAL), (0, errno.EINVAL), (16, 0)):
        guest = Guest()
        result, _, _ = control(guest, 0x503C0102, bytes(size))
        assert (result.errno, len(guest.calls)) == (error, not error)


def test_a_registered_address_space_takes_its_object_along() -> None:
    for status, goes in ((0, True), (0x57, False)):
        guest = Guest()
        guest.session.graph.add(CLIENT, 0x5A, 0x90F1, DEVICE)
        guest.session.graph.add(CLIENT, OBJECT, 0x503C, CLIENT)
        control(guest, 0x503C0102, struct.pack("<IxxxxQ", 0x5A, 0), put(28, status))
        guest.session.graph.free(CLIENT, 0x5A)
        assert ((CLIENT, OBJECT) not in guest.live()) is goes
    result, out, _ = control(guest, 0x503C0102, struct.pack("<IxxxxQ", 0x5A, 0), client=0xBAD)
    assert (result.errno, out[28:32], guest.calls) == (0, bytes([INVALID_CLIENT, 0, 0, 0]), [])


def test_parameters_that_are_only_read() -> None:
    """NV00FD_CTRL_CMD_ATTACH_GPU: the argument comes back, its parameters do not."""
    guest = Guest()

    def scribble(arg: Buffer) -> None:
        behind = arg.pointers[16]
        assert isinstance(behind, Buffer)
        assert behind.data[8:16] == HOST[GPU].to_bytes(8, "little")
        behind.data[:] = b"\xee" * len(behind.data)
        arg.data[28:32] = b"\x57\0\0\0"

    params = struct.pack("<IIQ", 0x51, 0, GPU)
    result, out, after = control(guest, 0x00FD0104, params, scribble)
    assert (result.errno, out[28:32], out[16:24]) == (0, b"\x57\0\0\0", PARAMS.to_bytes(8, "little"))
    assert after == params
    guest.call(0xC9, OTHER.to_bytes(4, "little"), lambda arg: arg.data.__setitem__(slice(0, 4), b"\xee" * 4))
    assert guest.memory.read(ARG, 4) == OTHER.to_bytes(4, "little")


@pytest.mark.parametrize(
    ("size", "address", "error"),
    [(0, PARAMS, errno.EINVAL), (8, 0, errno.EINVAL), (0, 0, 0), (8, PARAMS, 0), ((1 << 20) + 1, PARAMS, errno.EINVAL)],
)
def test_length_and_address_go_together(size: int, address: int, error: int) -> None:
    """Of a control that is passed on whole; a length is at most 1 MiB."""
    guest = Guest()
    result, _ = guest.call(0x2A, nvos54(0x20800301, size, address=address))
    assert (result.errno, len(guest.calls)) == (error, not error)
    if error:
        assert result.decision is not None
        assert not result.decision.allowed
    elif size == 0:
        assert guest.calls[0][1] is not None
        assert guest.calls[0][1].pointers == {}


def test_one_mebibyte_of_parameters() -> None:
    guest = Guest()
    guest.memory.map(0x400000, 1 << 20)
    result, _ = guest.call(0x2A, nvos54(0x20800301, 1 << 20, address=0x400000))
    assert (result.errno, len(guest.calls)) == (0, 1)


def test_what_can_be_restored_is_a_property_of_the_class() -> None:
    """nvproxy keeps the parameters of all classes but three, whose objects no checkpoint can bring back."""
    never, can = {0x79, 0xF1, 0x90CD}, 0xFD
    policy = Policy.for_driver("580.159.04", CAPS)
    assert {number for number, rule in policy.alloc.items() if not rule.restorable} == never
    for descriptor in (0, OTHER):
        guest = Guest()
        guest.memory.write(PARAMS, bytes(72) + descriptor.to_bytes(8, "little"))
        guest.call(0x2B, nvos64(can, params=PARAMS))
        assert guest.session.not_restorable() == ()
        buffer = bytearray(72)
        buffer[40:48] = descriptor.to_bytes(8, "little")
        buffer[60:68] = struct.pack("<II", 1, 2)
        guest.memory.write(PARAMS, bytes(buffer))
        guest.call(0x2B, nvos64(0x90CD, params=PARAMS, new=0x77))
        assert [obj.hclass for obj in guest.session.not_restorable()] == [0x90CD]


# -- UVM


def uvm(guest: Guest, request: int, argument: bytes, act: Act = lambda arg: 0) -> tuple[Result, bytes]:
    guest.files[9] = File("uvm", 1 << 23)
    guest.act = act
    guest.calls.clear()
    guest.memory.write(ARG, argument + GUARD)
    result = guest.session.ioctl(9, request, ARG)
    assert (result.ret, bool(result.errno)) in ((0, False), (-1, True))
    assert guest.memory.read(ARG + len(argument), len(GUARD)) == GUARD
    return result, guest.memory.read(ARG, len(argument))


@pytest.mark.parametrize(
    ("flags", "answered", "seen"), [(0, 2, 0), (0, 3, 1), (2, 2, 2), (2, 3, 3), (1, 3, 1), (0, 0, 0)]
)
def test_the_guest_does_not_see_the_sharing_mode(flags: int, answered: int, seen: int) -> None:
    """UVM_INITIALIZE: UVM_INIT_FLAGS_MULTI_PROCESS_SHARING_MODE is 2, which the host is always given."""
    guest = Guest()

    def look(arg: Buffer) -> None:
        assert arg.data[:8] == (flags | 2).to_bytes(8, "little")
        arg.data[:12] = answered.to_bytes(8, "little") + b"\x57\0\0\0"

    result, out = uvm(guest, 0x30000001, flags.to_bytes(8, "little") + bytes(8), look)
    assert result.errno == 0
    assert guest.calls[0][0] == 0x30000001
    assert out == seen.to_bytes(8, "little") + b"\x57\0\0\0" + bytes(4)


def test_a_command_without_an_argument() -> None:
    guest = Guest()
    seen: list[tuple[int, int, Buffer | None]] = []

    class Host:
        error = 0

        def ioctl(self, host_fd: int, request: int, arg: Buffer | None) -> int:
            seen.append((host_fd, request, arg))
            return self.error

    guest.session.host = host = Host()
    assert uvm(guest, 0x30000002, b"")[0][:2] == (0, 0)
    host.error = errno.EBUSY
    assert uvm(guest, 0x30000002, b"")[0][:2] == (-1, errno.EBUSY)
    assert seen == [(1 << 23, 0x30000002, None)] * 2
    for unknown in (0x3000, 62, 63, 0xC020462A):
        result, _ = uvm(guest, unknown, bytes(32))
        assert (result.errno, len(seen)) == (errno.EINVAL, 2)


@pytest.mark.parametrize(("fd", "status"), [(9, 0), (CTL, 0x1F), (77, 0x1F), (-1, 0x1F)])
def test_a_refusal_with_a_status_of_uvm(fd: int, status: int) -> None:
    """UVM_MM_INITIALIZE: a wrong uvmFd is NV_ERR_INVALID_ARGUMENT, and ioctl(2) returns 0."""
    guest = Guest()
    result, out = uvm(guest, 0x4B, struct.pack("<iI", fd, 0))
    assert (result.errno, len(guest.calls)) == (0, not status)
    assert out == struct.pack("<iI", fd, status)


@pytest.mark.parametrize("size", [0, 1, 72, 0x3FFF])
def test_an_array_of_any_length(size: int) -> None:
    """NV_ESC_CARD_INFO: bytes in, bytes out; a size of 0 is a NULL pointer for the host."""
    for error in (0, errno.EIO):
        guest = Guest()
        guest.memory.map(ARG, 0x8000)
        argument = bytes(range(256)) * 64
        guest.memory.write(ARG, argument)

        def answer(arg: Buffer, error: int = error, argument: bytes = argument) -> int:
            assert arg.data == argument[: len(arg.data)]
            arg.data[:] = b"\xee" * len(arg.data)
            return error

        guest.act = answer
        result = guest.session.ioctl(CTL, request(0xC8, size), ARG)
        expected = error if size else 0
        assert result[:2] == (-1 if expected else 0, expected)
        assert (guest.calls[0][1] is None) is (size == 0)
        assert guest.calls[0][0] == request(0xC8, size)
        changed = 0 if error else size
        assert guest.memory.read(ARG, 0x4000) == b"\xee" * changed + argument[changed:0x4000]


def test_an_escape_has_the_size_of_its_struct() -> None:
    for size, error in ((15, errno.EINVAL), (16, 0), (17, errno.EINVAL), (0, errno.EINVAL)):
        guest = Guest()
        guest.memory.write(ARG, struct.pack("<IIII", CLIENT, 0, 0x77, 0))
        result = guest.session.ioctl(CTL, request(0x29, size), ARG)
        assert result[:2] == (-1 if error else 0, error)
        assert len(guest.calls) == (not error)


@pytest.mark.parametrize("params", [8, 0])
def test_the_hosts_errno_is_the_guests(params: int) -> None:
    """Of a control that is passed on whole, too; nothing is written then."""
    guest = Guest()
    guest.memory.write(PARAMS, b"\x11" * 8)

    def fail(arg: Buffer) -> int:
        arg.data[28:32] = b"\x57\0\0\0"
        for behind in arg.pointers.values():
            assert isinstance(behind, Buffer)
            behind.data[:] = b"\xee" * len(behind.data)
        return errno.ENODEV

    argument = nvos54(0x20800301, params, address=PARAMS if params else 0)
    result, out = guest.call(0x2A, argument, fail)
    assert (result.ret, result.errno) == (-1, errno.ENODEV)
    assert result.decision is not None
    assert result.decision.allowed
    assert (out, guest.memory.read(PARAMS, 8)) == (argument, b"\x11" * 8)
    result, out = guest.call(0x2A, argument, put(28, 0x57))
    assert (result.ret, out[28:32]) == (0, b"\x57\0\0\0")


@pytest.mark.parametrize("letter", [0x00, 0x46, 0x47, 0xFF])
@pytest.mark.parametrize("direction", [0, 1, 2, 3])
def test_type_and_direction_do_not_matter(letter: int, direction: int) -> None:
    for nr, argument in ((0x2A, nvos54(0x20800301, 8)), (0x2B, nvos64(0x900E)), (0xC8, bytes(72))):
        guest = Guest()
        guest.memory.write(ARG, argument)
        result = guest.session.ioctl(CTL, direction << 30 | len(argument) << 16 | letter << 8 | nr, ARG)
        assert (result.errno, [number for number, _ in guest.calls]) == (0, [request(nr, len(argument))])


EVENT = [
    # hClass of NV0005_ALLOC_PARAMETERS -> the class that the host is asked for, and the status of a refusal
    (0x79, 0x79, None),
    (0x80, 0x80, None),
    (0x05, None, 0x22),
    (0xDEAD, None, 0x22),
]


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize(("inner", "asked", "status"), EVENT)
def test_an_event_is_of_the_class_that_its_parameters_name(
    inner: int, asked: int | None, status: int | None, short: bool
) -> None:
    """NV0005: hParentClient, hSrcResource, hClass, notifyIndex, data."""
    guest = Guest()
    params = struct.pack("<IIIIQ", 0, 0, inner, 0, OTHER)
    guest.memory.write(PARAMS, params)
    argument = nvos64(0x5, params=PARAMS)
    if short:
        argument = argument[:24] + argument[32:36] + argument[40:44]
    result, out = guest.call(0x2B, argument)
    assert result.errno == 0
    assert len(guest.calls) == (asked is not None)
    assert out[:12] == argument[:12]
    assert int.from_bytes(out[12:16], "little") == inner, "the guest sees the class"
    at = 28 if short else 40
    assert int.from_bytes(out[at : at + 4], "little") == (status or 0)
    if asked is not None:
        arg = guest.calls[0][1]
        assert arg is not None
        assert int.from_bytes(arg.data[12:16], "little") == asked
        assert guest.live()[CLIENT, OBJECT][0] == asked
        behind = arg.pointers[16]
        assert isinstance(behind, Buffer)
        seen = struct.unpack("<IIIIQ", bytes(behind.data))[4] if asked == 0x79 else HOST[OTHER]
        assert guest.memory.read(PARAMS, 24) == params
        assert seen in (HOST[OTHER], OTHER)


def test_an_event_without_parameters() -> None:
    guest = Guest()
    result, _ = guest.call(0x2B, nvos64(0x5, params=0))
    assert (result.errno, guest.calls) == (errno.EFAULT, [])


@pytest.mark.parametrize(
    ("hclass", "address", "error", "calls"),
    [
        (0x900E, PARAMS, 0, 1),  # takes none: the host sees NULL
        (0x80, 0, 0, 1),
        (0x80, PARAMS, 0, 1),
        (0x80, 0x7000, errno.EFAULT, 0),
        (0x90CD, 0, errno.EFAULT, 0),
        (0x79, 0, errno.EFAULT, 0),
        (0x41, PARAMS, 0, 1),
    ],
)
def test_the_parameters_of_a_class(hclass: int, address: int, error: int, calls: int) -> None:
    guest = Guest()
    result, out = guest.call(0x2B, nvos64(hclass, params=address))
    assert (result.errno, len(guest.calls)) == (error, calls)
    assert out[16:24] == address.to_bytes(8, "little")
    if calls:
        arg = guest.calls[0][1]
        assert arg is not None
        behind = arg.pointers.get(16)
        assert (behind is None) is (address == 0 or hclass == 0x900E)
        if isinstance(behind, Buffer):
            assert len(behind.data) == {0x80: 56, 0x41: 4}[hclass]
