"""The recorder of a brokered run: what it could not write is known, and the trace does not end as if it were whole."""

from __future__ import annotations

import errno
import io
import os

import orjson
import pytest

from nvproxy_model.notification import Request
from nvproxy_model.trace.format import Header, Writer
from nvproxy_model.trace.record.brokered import Brokered


class Disk(io.BytesIO):
    full = False

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


def test_a_trace_that_could_not_be_written_further() -> None:
    disk = Disk()
    writer = Writer(disk, Header(recorder="broker"))
    recorder = Brokered(writer, [])
    request = Request(1, os.getpid(), "openat", (0, 0, 0, 0, 0, 0))
    recorder.opened(request, "/dev/nvidiactl", 2, None)
    disk.full = True
    with pytest.raises(OSError, match="No space"):
        recorder.opened(request, "/dev/nvidia0", 2, None)
    disk.full = False  # somebody made room: the trace is not whole for that
    writer.lose(recorder.problems)
    writer.end()
    last = orjson.loads(disk.getvalue().splitlines()[-1])
    assert last["k"] == "lost"
    assert last["why"] == ["the trace could not be written further: No space left on device"]


def test_a_path_that_is_not_utf_8() -> None:
    disk = Disk()
    recorder = Brokered(Writer(disk, Header(recorder="broker")), [])
    recorder.opened(Request(1, os.getpid(), "openat", (0, 0, 0, 0, 0, 0)), os.fsdecode(b"/dev/nvidia\xff"), 2, None)
    assert orjson.loads(disk.getvalue().splitlines()[-1])["path"] == "/dev/nvidia\\xff"
    assert recorder.problems.count == 0
