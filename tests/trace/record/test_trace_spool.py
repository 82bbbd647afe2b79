"""The spool's bytes, written by hand: what is taken for a frame, what is reported, and how much a hostile one may cost."""

from __future__ import annotations

import io
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvproxy_model.trace import format as fmt
from nvproxy_model.trace.format import UNFINISHED
from nvproxy_model.trace.lines import Problems
from nvproxy_model.trace.record import mapped, spool
from nvproxy_model.trace.record.mapped import FRAMES_AT, Head

PROCESS, OPEN, FD, ENTER, LEAVE, MMAP, CLOSE, DUP, EXEC = range(1, 10)
FORKED, DENIED, SHELL = 32, 64, 128


def frame(kind: int, text: bytes = b"", sections: tuple[tuple[int, bytes], ...] = (), **more: int) -> bytes:
    """One frame, as recorder/spool.h lays it out."""
    heads = b"".join(struct.pack("=II", where & 0xFFFFFFFF, len(data)) for where, data in sections)
    body = heads + text + b"".join(data for _, data in sections)
    size = 112 + len(body) + 4
    names = ("flags", "pid", "tid", "err", "time", "id", "ret", "fd", "request", "space", "key", "psize")
    values = {"pid": 7, "tid": 7, "fd": 3, **more}
    numbers = [values.get(name, 0) for name in names]
    args = [values.get(f"arg{i}", 0) for i in range(4)]
    head = struct.pack("=4sIHHIIIQQqiIIIIIII4Q", b"NVTR", size, kind, *numbers, len(text), len(sections), 0, *args)
    data = head + body + struct.pack("=I", ~size & 0xFFFFFFFF)
    return data + bytes(-len(data) % 8)


def spooled(*frames: bytes, **more: int) -> bytes:
    """A whole spool: head, no table, frames."""
    body = b"".join(frames)
    head = Head(b"NVTS", 1, 0, 1, FRAMES_AT + len(body), FRAMES_AT + len(body), 0, 0, 0, 0, FRAMES_AT, 0)
    for name, value in more.items():
        setattr(head, name, value)
    return bytes(head).ljust(FRAMES_AT, b"\0") + body + bytes(4096)


def read(data: bytes, first: int | None = None) -> tuple[list[dict[str, Any]], list[str], spool.Seen]:
    problems, seen = Problems(), spool.Seen()
    records = list(spool.records(io.BytesIO(data), problems, seen, first=first))
    for obj in records:
        fmt.record(obj, 1)
    return records, [text for _, text in problems.kept], seen


def test_a_whole_spool() -> None:
    records, problems, seen = read(
        spooled(
            frame(PROCESS, b"./a\0b", time=5),
            frame(OPEN, b"/dev/nvidiactl", time=6, ret=3),
            frame(ENTER, b"/dev/nvidiactl", ((0, b"\1\2"), (1, b"p"), (0x10008, b"xy")), id=1, time=7, key=0x2A),
            frame(LEAVE, b"", ((0, b"\1\3"), (1, b"p"), (0x10008, b"xy"), (2, b"\x56\0\0\0")), id=1, time=9, arg1=2),
        ),
        first=7,
    )
    assert problems == []
    assert [record["k"] for record in records] == ["process", "open", "ioctl"]
    assert records[0]["command"] == ["./a", "b"]
    call = records[2]
    assert (call["top0"], call["top1"], call["status"], call["bufs"]) == ("0102", "0103", "0x56", [[8, "7879"]])
    assert (call["par0"], "par1" in call) == ("70", False)
    assert (seen.ioctls, seen.opens, seen.unseen) == (1, 1, [])


def test_frames_alone_are_read_too() -> None:
    records, problems, _ = read(frame(FD, b"/dev/nvidia0") * 3)
    assert len(records) == 3
    assert problems == []


GOOD = frame(FD, b"/dev/nvidia0")


@pytest.mark.parametrize(
    "bad",
    [
        frame(FD, b"/dev/nvidia0")[:-8] + bytes(8),  # the closing word is missing
        frame(FD, b"/dev/nvidia0")[:-8] + b"\xff" * 8,
        frame(FD, fd=-5),
        frame(FD, err=4096),
        frame(FD, pid=1 << 31),
        frame(FD, tid=1 << 31),
        frame(FD, time=1 << 63),
        frame(FD, ret=-(1 << 63)),
        frame(FD, arg0=1 << 63),
        frame(0),
        frame(10),
        # A section that ends before its frame does, and one that ends after it.
        GOOD[:68] + struct.pack("=I", 0) + GOOD[72:],
        frame(ENTER, b"", ((0, b"abcd"),)).replace(
            struct.pack("=II", 0, 4) + b"abcd", struct.pack("=II", 0, 5) + b"abcd"
        ),
        GOOD[:72] + struct.pack("=I", 3) + GOOD[76:],
    ],
)
def test_what_is_not_a_frame_is_reported_and_costs_itself_only(bad: bytes) -> None:
    records, problems, _ = read(spooled(GOOD, bad, GOOD))
    assert len(records) == 2
    assert problems == [f"a torn frame at byte {FRAMES_AT + len(GOOD)} of the spool"]


def test_room_that_was_taken_and_not_written() -> None:
    records, problems, _ = read(spooled(GOOD, bytes(256), GOOD))
    assert len(records) == 2
    assert problems == [f"256 bytes at {FRAMES_AT + len(GOOD)} of the spool were taken and not written"]
    _, problems, _ = read(spooled(GOOD, cursor=FRAMES_AT + len(GOOD) + 64))
    assert len(problems) == 1
    data = spooled(GOOD, GOOD)[: FRAMES_AT + len(GOOD)]
    assert read(data)[1] == [f"the spool ends {len(GOOD)} bytes early"]


def test_what_a_program_could_not_write_is_a_problem() -> None:
    assert read(spooled(GOOD, lost=3, lost_answers=2))[1] == [
        "3 calls could not be written (no room left, or none could be mapped)",
        "the ends of 2 calls could not be written (no room left)",
    ]


def test_a_damaged_head() -> None:
    for more in ({"table_at": 1 << 40}, {"table_at": 0}, {"table_size": 1 << 30}):
        records, problems, _ = read(spooled(GOOD, **more))
        assert len(records) == 1
        assert problems[0] == "the spool's head is damaged: frames are looked for in all of it"


def test_unfinished_calls_come_last_in_the_order_of_their_begin() -> None:
    records, problems, seen = read(
        spooled(
            frame(ENTER, b"/dev/nvidia0", id=2, time=20, key=2),
            frame(ENTER, b"/dev/nvidia0", id=1, tid=8, time=10, key=1),
            frame(ENTER, b"/dev/nvidia0", id=3, time=30, key=3),
            frame(LEAVE, id=3, time=40),
            frame(LEAVE, id=9, time=41),
        )
    )
    assert [(record["key"], record.get("fl", 0)) for record in records] == [
        ("0x3", 0),
        ("0x1", UNFINISHED),
        ("0x2", UNFINISHED),
    ]
    assert problems == ["process 7: the end of a call without its begin"]
    assert seen.unfinished == 2


def test_memory_that_could_not_be_read() -> None:
    unreadable = 1 << 31
    (call,), problems, seen = read(
        spooled(
            frame(ENTER, b"/dev/nvidia0", ((0, b"ab"), (1 | unreadable, bytes(4))), id=1, psize=4),
            frame(LEAVE, b"", ((unreadable, bytes(2)), (2 | unreadable, bytes(4))), id=1),
        )
    )
    assert (call["top0"], call["fault"], call["psize"]) == ("6162", True, 4)
    assert not {"top1", "par0", "status"} & set(call)
    assert (problems, seen.faults) == ([], 1)


@pytest.mark.parametrize(
    ("frames", "unseen"),
    [
        ([frame(PROCESS, time=1)], []),
        ([frame(PROCESS, time=1), frame(EXEC, b"/static", time=2)], [(7, "/static")]),
        # A child whose parent reports it after it spoke.
        ([frame(PROCESS, time=1), frame(PROCESS, pid=8, time=5), frame(EXEC, b"/a", pid=8, time=4)], []),
        ([frame(PROCESS, time=1), frame(EXEC, b"/a", time=2), frame(EXEC, b"/a", time=3, err=2)], []),
        ([frame(PROCESS, time=1), frame(EXEC, b"/a", time=2), frame(PROCESS, time=3)], []),
        # A fork is not a program that spoke.
        ([frame(PROCESS, time=1), frame(EXEC, b"/a", time=2), frame(PROCESS, time=3, flags=FORKED)], [(7, "/a")]),
        ([frame(PROCESS, time=1), frame(EXEC, b"ls", time=2, flags=SHELL), frame(PROCESS, pid=9, arg0=7, time=3)], []),
        ([frame(PROCESS, time=1), frame(EXEC, b"ls", time=2, flags=SHELL)], [(7, "ls")]),
        ([frame(PROCESS, time=1), frame(EXEC, b"", time=2)], [(7, "(by descriptor)")]),
    ],
)
def test_programs_that_do_not_speak(frames: list[bytes], unseen: list[tuple[int, str]]) -> None:
    _, problems, seen = read(spooled(*frames), first=7)
    assert seen.unseen == unseen
    assert problems == []


def test_a_first_program_that_does_not_speak() -> None:
    _, problems, seen = read(spooled(frame(PROCESS, pid=8, time=1)), first=7)
    assert problems == ["the program itself did not load the recorder: its calls are not in the trace"]
    _, problems, seen = read(spooled(frame(PROCESS, time=1), frame(EXEC, b"/a\x1b", time=2, flags=DENIED)), first=7)
    assert problems == ["process 7 became /a\\x1b without the right to write the spool"]
    assert seen.unseen == [(7, "/a\x1b")]


@given(st.binary(max_size=400), st.integers(0, 600), st.integers(0, 8), st.booleans())
def test_any_spool_is_read(noise: bytes, at: int, drop: int, head: bool) -> None:
    data = spooled(GOOD * 3) if head else GOOD * 3
    at += FRAMES_AT if head else 0
    read(data[:at] + noise + data[at + drop :])


@given(st.binary(min_size=72, max_size=72))
def test_any_head_is_read(noise: bytes) -> None:
    read(b"NVTS" + noise[4:] + spooled(GOOD)[72:])


def test_headers_that_claim_the_largest_size_cost_no_more_than_bytes() -> None:
    """None of what they claim is copied, and no more than a few pieces of the file are held."""
    looked = 0
    real = spool._Stream.peek

    def peek(self: Any, start: int, size: int) -> bytes:
        nonlocal looked
        looked += size
        return real(self, start, size)

    # Header upon header, and more of a file than may be held.
    dense = (b"NVTR" + struct.pack("=I", 1 << 18)) * (1 << 15)
    long = (b"NVTR" + struct.pack("=I", 3 << 20) + b"x" * 2040) * (1 << 14)
    for data in map(spooled, (dense, dense * 2, long)):
        looked = 0
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(spool._Stream, "peek", peek)
            if len(data) > len(long):
                tracemalloc.start()
            try:
                records, problems, _ = read(data)
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
        assert records == []
        assert len(problems) == 1
        assert looked < 4 * len(data)
        assert peak < 24 << 20


def test_the_keeper_makes_room_and_stops() -> None:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "spool")
        keeper = mapped.Keeper(path, b"table")
        with pytest.raises(FileExistsError):
            mapped.Keeper(path)
        keeper.head.cursor += 1 << 20
        keeper._grow()
        assert keeper.head.limit - keeper.head.cursor == 4 << 20
        assert path.stat().st_size == keeper.head.limit
        with mapped.keeping(keeper):
            pass
        with path.open("rb") as raw:
            assert spool.keeps_values(raw)
            raw.seek(0)
            assert mapped.Head.from_buffer_copy(raw.read(72)).state == 2
