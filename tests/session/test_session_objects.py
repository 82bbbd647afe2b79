"""What goes when something is freed: within a client, across clients, with a file; and what a failure leaves."""

from __future__ import annotations

import errno
import struct

import pytest

from nvproxy_model.abi import constants as nv
from nvproxy_model.structs.cl90cd import NV_EVENT_BUFFER_ALLOC_PARAMETERS
from nvproxy_model.structs.nvos import NV_MEMORY_ALLOCATION_PARAMS
from tests.session.session_world import World, request

HEADER, RECORD, BUFFER, COPY = 0x20, 0x21, 0x30, 0x40


class Two(World):
    """Two clients of two files; the first has an event buffer, which the second duplicated."""

    def __init__(self) -> None:
        super().__init__()
        self.fd, self.other_fd = self.open(), self.open()
        _, _, self.client = self.alloc(self.fd, 0, 0, 0, 0x41)
        _, _, self.other = self.alloc(self.other_fd, 0, 0, 0, 0x41)
        memory = NV_MEMORY_ALLOCATION_PARAMS.at(self.policy.version).make(size=0x1000, attr2=0x400000)
        for handle in (HEADER, RECORD):
            assert self.alloc(self.fd, self.client, self.client, handle, nv.NV01_MEMORY_DEVICELESS, memory)[1] == 0
        params = NV_EVENT_BUFFER_ALLOC_PARAMETERS.make(
            recordSize=32, recordCount=4, hBufferHeader=HEADER, hRecordBuffer=RECORD
        )
        assert self.alloc(self.fd, self.client, self.client, BUFFER, nv.NV_EVENT_BUFFER, params)[1] == 0
        assert self.dup(self.other_fd, self.other, self.other, COPY, self.client, BUFFER)[1] == 0

    @property
    def live(self) -> set[tuple[int, int]]:
        self.check_graph()
        return {(obj.client, obj.handle) for obj in self.session.objects()}


def test_a_duplicate_goes_with_the_first_clients_memory() -> None:
    two = Two()
    assert two.free(two.fd, two.client, RECORD)[1] == 0
    assert two.live == {(two.client, two.client), (two.client, HEADER), (two.other, two.other)}


def test_a_duplicate_outlives_the_original() -> None:
    two = Two()
    assert two.free(two.fd, two.client, BUFFER)[1] == 0
    assert (two.other, COPY) in two.live


def test_freeing_a_client_takes_what_others_have_of_it() -> None:
    two = Two()
    assert two.free(two.fd, two.client, two.client)[1] == 0
    assert two.live == {(two.other, two.other)}
    assert two.free(two.fd, two.client, HEADER)[1] == nv.NV_ERR_INVALID_CLIENT


def test_closing_a_file_frees_its_clients_only() -> None:
    two = Two()
    two.close(two.other_fd)
    assert two.live == {(two.client, handle) for handle in (two.client, HEADER, RECORD, BUFFER)}
    two.close(two.fd)
    assert two.live == set()


def test_a_mapping_keeps_a_closed_files_clients() -> None:
    two = Two()
    argument = struct.pack("<IIIIQQQIIiI", two.client, two.client, HEADER, 0, 0, 0x1000, 0, 0, 0, two.fd, 0)
    assert two.ioctl(two.fd, request(0x4E, len(argument)), argument)[0].errno == 0
    file = two.files[two.fd]
    assert two.session.mmap(two.fd, 0x1001).errno == errno.EINVAL
    assert two.session.mmap(two.fd, 0x1000, -1).errno == errno.EINVAL
    assert two.session.mmap(two.fd, 0, 16).errno == errno.EINVAL
    assert two.session.mmap(two.fd, 0x1000).errno == 0
    assert two.session.close(two.fd).close == ()
    assert (two.client, BUFFER) in two.live
    assert two.session.munmap(file).close == (file.host_fd,)
    assert two.live == {(two.other, two.other)}


def test_a_file_is_mapped_once_in_its_life() -> None:
    two = Two()
    argument = struct.pack("<IIIIQQQIIiI", two.client, two.client, HEADER, 0, 0, 0x1000, 0, 0, 0, two.fd, 0)
    assert two.ioctl(two.fd, request(0x4E, len(argument)), argument)[0].errno == 0
    assert two.ioctl(two.fd, request(0x4E, len(argument)), argument)[0].errno == errno.EINVAL


@pytest.mark.parametrize("status", [None, nv.NV_ERR_INVALID_STATE])
def test_a_failing_host_leaves_the_objects(status: int | None) -> None:
    two = Two()
    before = two.live
    for call in (
        lambda: two.free(two.fd, two.client, RECORD),
        lambda: two.dup(two.fd, two.client, two.client, 0x50, two.client, RECORD),
        lambda: two.alloc(two.fd, two.client, two.client, 0x51, nv.NV01_DEVICE_0),
        lambda: two.alloc(two.fd, 0, 0, 0, 0x41),
    ):
        two.driver.answer_next(errno=0 if status else errno.EIO, status=status)
        result, answered, *_ = call()
        assert (result.errno, answered) == ((0, status) if status else (errno.EIO, 0))
        assert two.live == before


def test_what_a_checkpoint_cannot_bring_back() -> None:
    two = Two()
    assert {obj.handle for obj in two.session.not_restorable()} >= {COPY}
    assert not {two.client, HEADER, RECORD} & {obj.handle for obj in two.session.not_restorable()}
