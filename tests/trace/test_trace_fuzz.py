"""The fuzz targets on bytes that Hypothesis makes of real input: no exception, whatever is cut, joined or changed."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import TRACES
from tests.trace.fuzz import TARGETS

SEEDS = {
    "trace": gzip.decompress((TRACES / "nvml-events.jsonl.gz").read_bytes())[:6000],
    "strace_log": b'[pid 7] openat(AT_FDCWD, "/dev/nvidiactl", O_RDWR) = 3\n[pid 7] ioctl(3, 0xc020462a <unfinished ...>\n',
    "nvproxy_log": b"[   1:   7] nvproxy: frontend ioctl: nr = 43 = 0x2b, argSize = 40\n[ 1: 7] nvproxy: allocation class 0xf8\n",
    "sniffer_log": b"Control ioctl: request=0xc020462a [nr=NV_ESC_RM_CONTROL, cmd=0x20810110] => ret=0 status=0x0\n",
    "spool_frames": b"NVTR\x74\0\0\0\x03\0\0\0\x01\0\0\0\x01" + bytes(95) + b"\x8b\xff\xff\xff",
}


@pytest.mark.parametrize("name", TARGETS)
@given(data=st.data())
def test_no_bytes_raise(name: str, data: st.DataObject) -> None:
    seed = SEEDS[name]
    at = data.draw(st.integers(0, len(seed)))
    to = data.draw(st.integers(at, min(len(seed), at + 60)))
    raw = seed[:at] + data.draw(st.binary(max_size=40)) + seed[to:]
    if name == "trace" and data.draw(st.booleans()):
        packed = gzip.compress(raw, 1)
        raw = packed[: data.draw(st.integers(0, len(packed)))]
    TARGETS[name](raw)


def test_every_target_has_a_seed() -> None:
    assert set(SEEDS) == set(TARGETS)
