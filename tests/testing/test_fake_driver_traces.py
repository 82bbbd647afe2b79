"""FakeDriver against what a real driver answered: every frontend call of the recorded traces, one after the other."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nvproxy_model.fields import CStruct
from nvproxy_model.policy.plan import plan
from nvproxy_model.session.ports import Buffer
from nvproxy_model.structs.nvos import NVOS54_PARAMETERS, NVOS64_PARAMETERS
from nvproxy_model.testing import FakeDriver
from tests import TRACES

RECORDED = sorted(TRACES.glob("*.jsonl.gz"))
VERSION = "580.159.04"
POINTER = 16
"""Where both NVOS54 and NVOS64 have the pointer to their parameters."""

OTHER: dict[tuple[str, str], str] = {
    # (what, recorded status): why a driver without hardware answers otherwise.
    ("control 0x2080123d", "0x56"): "not implemented for this GPU",
    ("control 0x20800407", "0x56"): "not implemented for this GPU",
    ("control 0x20801357", "0x56"): "not implemented for this GPU",
    ("control 0x2080852f", "0x56"): "not implemented for this GPU",
    ("control 0x20801322", "0x56"): "not implemented for this GPU",
    ("control 0x20808546", "0x56"): "not implemented for this GPU",
    ("control 0x2080a0f2", "0x56"): "not implemented for this GPU",
    ("control 0x2080a63c", "0x56"): "not implemented for this GPU",
    ("control 0xb0cc0119", "0x56"): "not implemented for this GPU",
    ("control 0xb0cc010a", "0x1b"): "the profiler's reservations, which are not modelled",
    ("control 0xb0cc010a", "0x1f"): "the profiler's reservations, which are not modelled",
    ("control 0x90e70113", "0x55"): "nothing in this board's black box",
    (
        "control 0x410110",
        "0x0",
    ): "an object that NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD brought, which is not modelled",
    ("control 0x2080014b", "0x57"): "an inforom object that this board lacks",
    ("alloc 0x73", "0x56"): "a GPU without a display",
    ("alloc 0x3e", "0x1f"): "memory attributes that the heap refuses",
    ("alloc 0xc639", "0x0"): "a class that nvproxy does not admit: not in the table",
    ("alloc 0xc640", "0x0"): "a class that nvproxy does not admit: not in the table",
}


def _records(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt") as lines:
        yield from map(json.loads, lines)


class _Replay:
    """Hands each recorded call to the fake, with the handles that the fake chose in place of those that the driver chose."""

    def __init__(self) -> None:
        self.driver = FakeDriver(VERSION)
        self.handles: dict[bytes, bytes] = {}
        self.answers: Counter[tuple[str, str, str]] = Counter()

    def _ours(self, data: bytes) -> bytearray:
        words = (data[at : at + 4] for at in range(0, len(data), 4))
        return bytearray(b"".join(self.handles.get(word, word) for word in words))

    def call(self, record: dict[str, Any]) -> None:
        request = int(record["req"], 16)
        number = request & 0xFF
        rule = self.driver.rules("frontend").get(number)
        of = rule.params_at(self.driver.version) if rule is not None else None
        top, answered = bytes.fromhex(record["top0"]), bytes.fromhex(record.get("top1", record["top0"]))
        if not isinstance(of, CStruct) or len(top) != of.sizeof() or plan(of).status is None:
            return
        arg = Buffer(self._ours(top))
        if record["kind"] in ("alloc", "control") and any(top[POINTER : POINTER + 8]):
            arg.pointers[POINTER] = Buffer(self._ours(bytes.fromhex(record.get("par0", ""))))
        self.driver.ioctl(record["fd"], request, arg)
        status = plan(of).status
        assert status is not None
        where = slice(status.offset, status.offset + status.size)
        recorded, ours = (hex(int.from_bytes(data[where], "little")) for data in (answered, arg.data))
        self.answers[f"{record['kind']} {record['key']}", recorded, ours] += 1
        if record["kind"] == "alloc" and recorded == ours == "0x0":
            handle = NVOS64_PARAMETERS.field("hObjectNew").offset
            self.handles[answered[handle : handle + 4]] = bytes(arg.data[handle : handle + 4])


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.partition(".")[0])
def test_statuses_are_the_drivers(path: Path) -> None:
    replay = _Replay()
    for record in _records(path):
        if record["k"] == "close":
            replay.driver.close(record["fd"])
        elif (
            record["k"] == "ioctl"
            and record["kind"] in ("fe", "alloc", "control")
            and "top0" in record
            and not record.get("err")
        ):
            replay.call(record)
    assert sum(replay.answers.values()) > 20, "nothing was compared"
    wrong = {key: n for key, n in replay.answers.items() if key[1] != key[2] and (key[0], key[1]) not in OTHER}
    assert wrong == {}


def test_there_are_traces() -> None:
    assert len(RECORDED) >= 10
    assert NVOS54_PARAMETERS.field("params").offset == NVOS64_PARAMETERS.field("pAllocParms").offset == POINTER
