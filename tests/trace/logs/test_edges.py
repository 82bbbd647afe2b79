"""The edges of each reader: numbers at the ends of their ranges, every escape of a string, every style of a time stamp."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvproxy_model.trace.format import UNFINISHED
from nvproxy_model.trace.lines import Problems, TraceError
from nvproxy_model.trace.logs import strace
from nvproxy_model.trace.logs.kinds import KINDS, Import
from nvproxy_model.trace.logs.prefixes import Clock, Line, Time, strip, texts, utf8
from nvproxy_model.trace.logs.syntax import literal_bytes

Write = Callable[..., Path]
CTL = "/dev/nvidiactl"
OPENED = f'openat(AT_FDCWD, "{CTL}", O_RDWR) = 3\n'


def read(path: Path, kind: str | None = None) -> tuple[list[dict[str, Any]], Import]:
    source = Import(path, kind=kind)
    return list(source), source


def one(call: str, write: Write) -> tuple[dict[str, Any] | None, str]:
    """The record of one ioctl line after an open, or what was wrong with it."""
    records, source = read(write(f"{OPENED}{call}\n"), "strace")
    return (records[1] if len(records) > 1 else None), source.problems.kept[0][1] if source.problems.count else ""


# strace

LIMITS = {
    "9223372036854775807": (1 << 63) - 1,
    "-9223372036854775807": -(1 << 63) + 1,
    "0x8000000000000001": -(1 << 63) + 1,
    "0xffffffffffffffff": -1,
    "00": 0,
    "07": 7,
    "0777": 0o777,
    "0x7": 7,
    "0xF": 15,
}


@pytest.mark.parametrize("text", LIMITS)
def test_the_ends_of_results(text: str, write: Write) -> None:
    record, problem = one(f"ioctl(3, 0xc020462a, 0x1) = {text}", write)
    assert record is not None, problem
    assert record["ret"] == LIMITS[text]


@pytest.mark.parametrize(
    "text", ["9223372036854775808000", "-9223372036854775808", "0x8000000000000000", "0x1ffffffffffffffff", "08", "-9"]
)
def test_beyond_the_ends(text: str, write: Write) -> None:
    record, problem = one(f"ioctl(3, 0xc020462a, 0x1) = {text}", write)
    if text == "-9":
        assert record is not None
        assert record["ret"] == -9
    else:
        assert (record, bool(problem)) == (None, True)


@pytest.mark.parametrize(
    ("text", "code"), [("EPERM", 1), ("EINVAL", 22), ("(errno 4095)", 4095), ("(errno 1)", 1), ("ENOTTY (x)", 25)]
)
def test_errnos(text: str, code: int, write: Write) -> None:
    record, _ = one(f"ioctl(3, 0xc020462a, 0x1) = -1 {text}", write)
    assert record is not None
    assert (record["ret"], record["err"]) == (-1, code)


@pytest.mark.parametrize("text", ["(errno 0)", "(errno 4096)", "ENOTHING"])
def test_errnos_that_are_none(text: str, write: Write) -> None:
    assert one(f"ioctl(3, 0xc020462a, 0x1) = -1 {text}", write)[0] is None


def test_every_errno_of_linux(write: Write) -> None:
    text = OPENED + "".join(f"ioctl(3, 0xc020462a, 0x1) = -1 {name} (x)\n" for name in errno.errorcode.values())
    records, source = read(write(text))
    assert not source.problems.count
    assert [r["err"] for r in records[1:]] == list(errno.errorcode)


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("<0.000123>", 123_000),
        ("<1.5>", 1_500_000_000),
        ("<2>", 2_000_000_000),
        ("<0.000000001>", 1),
        ("<12.123456789>", 12_123_456_789),
    ],
)
def test_durations(text: str, nanoseconds: int, write: Write) -> None:
    record, _ = one(f"ioctl(3, 0xc020462a, 0x1) = 0 {text}", write)
    assert record is not None
    assert record["d"] == nanoseconds


SYMBOLS = {
    "TCGETS": 0x5401,
    "TCSETS": 0x5402,
    "TIOCGWINSZ": 0x5413,
    "FIONREAD": 0x541B,
    "FIONBIO": 0x5421,
    "FIONCLEX": 0x5450,
    "FIOCLEX": 0x5451,
    "FIOASYNC": 0x5452,
}


@pytest.mark.parametrize("name", SYMBOLS)
def test_requests_by_name(name: str, write: Write) -> None:
    """asm-generic/ioctls.h. They are any file's, and no driver of ours looks at them."""
    record, _ = one(f"ioctl(3, {name}, 0x1) = -1 ENOTTY (x)", write)
    assert record is not None
    assert (record["kind"], record["req"]) == ("other", hex(SYMBOLS[name]))


@pytest.mark.parametrize(("name", "number"), [("FIBMAP", "0x1"), ("FIGETBSZ", "0x2")])
def test_uvm_s_first_commands(name: str, number: str, write: Write) -> None:
    records, _ = read(write(f"ioctl(4</dev/nvidia-uvm>, {name}, 0x1) = 0\n"), "strace")
    assert [(r["kind"], r["key"]) for r in records] == [("uvm", number)]


def test_a_request_that_nobody_knows(write: Write) -> None:
    assert one("ioctl(3, SNDCTL_TMR_TIMEBASE or TCGETS2, 0x1) = 0", write) == (None, "a request that is not a number")
    assert one("ioctl(3) = 0", write) == (None, "an ioctl without a request")
    assert one("ioctl(3, 0xc020462a, 0x1", write)[1] == "a call that does not end"
    assert one("ioctl(3, 0xc020462a, 0x1)", write)[1] == "a call without its result"


ESCAPES = {
    r"\x00\xff\x7F": b"\0\xff\x7f",
    r"\0\1\12\377\400": b"\0\1\n\xff\0",
    r"\18": b"\x018",
    r"\n\t\r\f\v\a\b\e": b"\n\t\r\f\v\a\b\x1b",
    r"\"\\\'": b"\"\\'",
    r"plain": b"plain",
}


@pytest.mark.parametrize("text", ESCAPES)
def test_every_escape_of_a_string(text: str) -> None:
    assert literal_bytes(text) == ESCAPES[text]


@pytest.mark.parametrize("text", [r"\q", r"\ud800", r"\8"])
def test_escapes_that_strace_does_not_write(text: str) -> None:
    with pytest.raises(ValueError, match="an escape"):
        literal_bytes(text)


BYTES = (
    "".join(rf"\x{value:02x}" for value in range(8))
    + r"\x05\x3d\x00\x00"
    + r"\x00" * 12
    + r"\x18\x00\x00\x00\x56\x00\x00\x00"
)


@pytest.mark.parametrize(
    ("argument", "found"),
    [
        (f'"{BYTES}" => "{BYTES}"', {"kind": "control", "key": "0x3d05", "status": "0x56", "top0": 32, "top1": None}),
        (f'"{BYTES}"', {"kind": "control", "key": "0x3d05", "status": "0x56", "top0": 32, "top1": None}),
        (f'"{BYTES}"...', {"kind": "control", "key": "0x3d05", "status": "0x56", "top0": 32, "top1": None}),
        (f'=> "{BYTES}"', {"kind": "control", "key": "0x3d05", "status": "0x56", "top0": None, "top1": 32}),
        (f'argp="{BYTES[:44]}"...', {"kind": "fe", "key": "0x2a", "status": None, "top0": 11, "top1": None}),
        (f'argp="{BYTES[:48]}"...', {"kind": "control", "key": "0x3d05", "status": None, "top0": 12, "top1": None}),
        ("0x7ffc", {"kind": "fe", "key": "0x2a", "status": None, "top0": None, "top1": None}),
    ],
)
def test_the_bytes_of_a_control(argument: str, found: dict[str, Any], write: Write) -> None:
    record, problem = one(f"ioctl(3, 0xc020462a, {argument}) = 0", write)
    assert record is not None, problem
    sizes = {name: len(bytes.fromhex(record[name])) if name in record else None for name in ("top0", "top1")}
    assert {"kind": record["kind"], "key": record["key"], "status": record.get("status"), **sizes} == found


@pytest.mark.parametrize(("size", "at"), [(0x20, 28), (0x30, 40)])
def test_the_status_of_both_forms_of_an_allocation(size: int, at: int, write: Write) -> None:
    data = bytearray(size)
    data[12:14] = b"\xcd\x90"
    data[at] = 0x22
    text = "".join(rf"\x{byte:02x}" for byte in data)
    record, _ = one(f'ioctl(3, _IOC(_IOC_READ|_IOC_WRITE, 0x46, 0x2b, {size:#x}), "{text}") = 0', write)
    assert record is not None
    assert (record["kind"], record["key"], record["status"]) == ("alloc", "0x90cd", "0x22")
    record, _ = one(f'ioctl(3, _IOC(_IOC_READ|_IOC_WRITE, 0x46, 0x2b, {size:#x}), "{text}") = -1 EIO (x)', write)
    assert record is not None
    assert "status" not in record


@pytest.mark.parametrize(
    ("flags", "same", "shared"),
    [
        ("CLONE_VM|CLONE_FILES|CLONE_THREAD", True, True),
        ("CLONE_VM|CLONE_FILES", False, True),
        ("CLONE_CHILD_SETTID|SIGCHLD", False, False),
    ],
)
def test_what_a_clone_shares(flags: str, same: bool, shared: bool, write: Write) -> None:
    text = (
        f"[pid 1] {OPENED}[pid 1] clone(child_stack=NULL, flags={flags}) = 2\n"
        f'[pid 2] openat(AT_FDCWD, "/dev/nvidia0", O_RDWR) = 4\n[pid 2] ioctl(3, 0x46c9, 1) = 0\n[pid 1] ioctl(4, 0x46c9, 1) = 0\n'
    )
    records, _ = read(write(text), "strace")
    by = {(r["tid"], r["k"]): r for r in records}
    assert (by[2, "ioctl"]["pid"] == by[1, "open"]["pid"]) is same
    assert by[2, "ioctl"]["dev"] == CTL
    assert ((1, "ioctl") in by) is shared


def test_a_closed_range(write: Write) -> None:
    text = OPENED + OPENED.replace("= 3", "= 7") + OPENED.replace("= 3", "= 9")
    text += "close_range(4, 8, 0) = 0\nclose_range(9, 4294967295, CLOSE_RANGE_CLOEXEC) = 0\nclose_range(x, 8, 0) = 0\n"
    text += "".join(f"ioctl({fd}, 0x46c9, 1) = 0\n" for fd in (3, 7, 9))
    records, source = read(write(text), "strace")
    assert [(r["k"], r["fd"]) for r in records[3:]] == [("close", 7), ("ioctl", 3), ("ioctl", 9)]
    assert not source.problems.count


@pytest.mark.parametrize("command", ["F_DUPFD", "F_DUPFD_CLOEXEC", "0", "0x406", "1030"])
def test_every_way_to_copy(command: str, write: Write) -> None:
    records, _ = read(
        write(f"{OPENED}fcntl(3, {command}, 10) = 11\nfcntl(3, F_GETFL) = 2\nioctl(11, 0x46c9, 1) = 0\n"), "strace"
    )
    assert [(r["k"], r["fd"], r.get("dev")) for r in records[1:]] == [("dup", 3, CTL), ("ioctl", 11, CTL)]


def test_a_mapping(write: Write) -> None:
    text = OPENED + "mmap(NULL, 8192, PROT_READ|PROT_WRITE, MAP_SHARED, 3, 0x1000) = 0x7f0000001000\n"
    text += "mmap(NULL, 4096, PROT_READ, MAP_SHARED, 3, 0) = -1 EINVAL (Invalid argument)\n"
    text += "mmap(NULL, 4096, PROT_READ, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7f0000003000\nmmap(NULL, x, 0, 0, 3, 0) = 0x1\n"
    records, source = read(write(text), "strace")
    assert [(r["len"], r["off"], r.get("va"), r.get("err")) for r in records[1:]] == [
        (8192, 0x1000, 0x7F0000001000, None),
        (4096, 0, None, 22),
    ]
    assert source.problems.kept == [(5, "a mapping whose size is not a number")]


@pytest.mark.parametrize(("size", "fits"), [(4096, True), (4097, False)])
def test_the_longest_path(size: int, fits: bool, write: Write) -> None:
    path = "/dev/nvidia0".ljust(size, "x")
    for kind, text in (
        ("strace", f'openat(AT_FDCWD, "{path}", O_RDWR) = 3'),
        ("strace", f"ioctl(3<{path}>, 0x46c9, 1) = 0"),
        ("nvproxy-log", f"{TASK}X close(0x3 {path}) = 0 (0x0)"),
        ("nvproxy-log", f"{TASK}X openat(AT_FDCWD /, 0x7f {path}, O_RDWR, 0o0) = 3 (0x3)"),
    ):
        records, source = read(write(text + "\n"), kind)
        assert (len(records), source.problems.count) == ((1, 0) if fits else (0, 1)), text[:40]


@pytest.mark.parametrize(
    ("ret", "fits"), [(-4095, True), (-4096, False), (0, True), (2147483647, True), (2147483648, False)]
)
def test_what_an_open_can_return(ret: int, fits: bool, write: Write) -> None:
    records, source = read(write(OPENED.replace("= 3", f"= {ret}")), "strace")
    assert (len(records), source.problems.count) == ((1, 0) if fits else (0, 1))


def test_limits_of_tasks_and_files(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strace, "_DESCRIPTORS", 2)
    records, source = read(write(OPENED + OPENED.replace("= 3", "= 4") + OPENED.replace("= 3", "= 5")), "strace")
    assert (len(records), [line for line, _ in source.problems.kept]) == (2, [3])


def test_calls_that_never_returned(write: Write) -> None:
    """An ioctl is kept, whatever else was interrupted before it; an open has no result to show, and is counted."""
    text = f'{OPENED}[pid 7] openat(AT_FDCWD, "{CTL}", O_RDWR <unfinished ...>\n'
    text += f"[pid 8] ioctl(4<{CTL}>, 0xc020462a, 0x1 <unfinished ...>\n"
    records, source = read(write(text), "strace")
    assert [(r["k"], r.get("fl")) for r in records] == [("open", None), ("ioctl", UNFINISHED)]
    assert [text for _, text in source.problems.kept] == ["an open whose result is not in this log"]


@pytest.mark.parametrize(
    "opened",
    [
        f'openat(AT_FDCWD</root>, "{CTL}", O_RDWR) = 3',
        'openat(AT_FDCWD</dev>, "nvidiactl", O_RDWR) = 3',
        'openat(AT_FDCWD, "/dev/./nvidiactl", O_RDWR) = 3',
        'openat(AT_FDCWD, "/dev//nvidiactl", O_RDWR) = 3',
        'openat(AT_FDCWD, "/dev/shm/../nvidiactl", O_RDWR) = 3',
    ],
)
def test_a_path_is_where_it_leads(opened: str, write: Write) -> None:
    records, source = read(write(f"{opened}\n"), "strace")
    assert ([r["path"] for r in records], source.problems.count) == ([CTL], 0)


@pytest.mark.parametrize("name", ["nvidiactl", "notes.txt", "/etc/hosts", "/root/dev/null"])
def test_a_path_that_leads_elsewhere(name: str, write: Write) -> None:
    records, source = read(write(f'{OPENED}openat(AT_FDCWD, "{name}", O_RDWR) = 4\n'), "strace")
    assert (len(records), source.problems.count) == (1, 0)


def test_the_task_that_was_first_is_forgotten_first(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strace, "_TASKS", 2)
    asked = "[pid 1] ioctl(3, 0xc020462a, 0x1) = 0\n"
    records, _ = read(write(f"[pid 1] {OPENED}[pid 2] {OPENED}{asked}[pid 3] {OPENED}{asked}"), "strace")
    assert [r.get("dev") for r in records if r["k"] == "ioctl"] == [CTL, None]


def test_a_request_that_only_another_driver_has_needs_no_open(write: Write) -> None:
    """NVKMS' ioctl has the letter m and 16 bytes (nvkms-ioctl.h); one that any driver may have is not kept."""
    text = "ioctl(9, 0xc0106d00, 0x1) = 0\nioctl(9, 0x5421, 0x1) = 0\n"
    records, source = read(write(text), "strace")
    assert [(r["kind"], r["req"], r["dev"]) for r in records] == [("other", "0xc0106d00", None)]
    assert source.problems.count == 0


def test_a_file_that_is_closed_is_not_known(write: Write) -> None:
    """Descriptor 0 too, which a program has that closed its standard input."""
    text = f'openat(AT_FDCWD, "{CTL}", O_RDWR) = 0\nclose(0) = 0\nioctl(0, 0xc020462a, 0x1) = 0\n'
    records, _ = read(write(text), "strace")
    assert [(r["k"], r.get("dev")) for r in records] == [("open", None), ("close", None), ("ioctl", None)]


def test_interrupted_calls(write: Write) -> None:
    text = (
        f"[pid 1] {OPENED}[pid 1] ioctl(3, 0xc020462a,  <unfinished ...>\n[pid 1] <... ioctl resumed> 0x7ffc) = 0 <0.5>\n"
        "[pid 1] ioctl(3, 0xc030462b <unfinished ...>\n[pid 1] <... ioctl resumed>, 0x7ffc) = 0\n"
        "[pid 1] ioctl(3, 0xc00446c9, 0x1 <detached ...>\n[pid 1] <... close resumed>) = 0\n[pid 1] <... ioctl resumed>) = 0\n"
        '[pid 1] <... ioctl resumed>) = 0\n[pid 2] write(1,  <unfinished ...>\n[pid 2] <... write resumed>"", 0) = 0\n'
    )
    records, source = read(write(text), "strace")
    assert [(r["key"], r.get("ret"), r.get("d")) for r in records[1:]] == [
        ("0x2a", 0, 500_000_000),
        ("0x2b", 0, None),
        ("0xc9", 0, None),
    ]
    assert source.problems.kept == [(9, "an ioctl is resumed that was not begun in this log")]


# Prefixes

STAMPS = {
    "10:22:01 x": Time("clock", 37_321_000_000_000),
    "10:22:01.000000001 x": Time("clock", 37_321_000_000_001),
    "0.000001 x": Time("delta", 1000),
    "1700000000.25 x": Time("date", 1_700_000_000_250_000_000),
    "1970-01-02T00:00:01Z x": Time("date", 86_401_000_000_000),
    "1970-01-02T00:00:01+01:00 x": Time("date", 82_801_000_000_000),
    "1970-01-01T23:00:01-0130 x": Time("date", 88_201_000_000_000),
    "1970-01-02 00:00:01,5 x": Time("date", 86_401_500_000_000),
    "Jan  2 00:00:01 host tag[7]: x": Time("date", 946_771_201_000_000_000),
    "Jan 2 2001 00:00:01 host tag: x": Time("date", 978_393_601_000_000_000),
    "I0102 00:00:01.5     221 strace.go:5] x": Time("date", 946_771_201_500_000_000),
    "Feb 29 00:00:00 host tag: x": Time("date", 951_782_400_000_000_000),
    "Feb 30 00:00:00 host tag: x": None,
}


@pytest.mark.parametrize("text", STAMPS)
def test_time_stamps(text: str) -> None:
    assert strip(text) == ("x", None, STAMPS[text])


def test_the_innermost_stamp_and_the_bracket_count() -> None:
    assert strip("7 8 9 10:00:00 1.5 x") == ("x", "9", Time("delta", 1_500_000_000))
    assert strip("7 [pid 8] x").pid == "8"
    assert strip("   7\tx").pid is None
    assert strip("> " * 40 + "x").body.startswith("> ")


def test_a_clock() -> None:
    clock = Clock()
    assert [clock.at(Time("clock", hour * 3600 * 10**9)) // 10**9 for hour in (23, 24 - 1, 0, 1, 23, 13)] == [
        0,
        0,
        3600,
        7200,
        86400,
        50400,
    ]
    assert clock.at(None) == clock.at(Time("date", 5)) == clock.last
    clock = Clock()
    assert [clock.at(Time("delta", 5)), clock.at(Time("delta", 5)), clock.at(Time("delta", 1))] == [0, 5, 6]
    for back, later in ((0, -12 * 3600), (1, 12 * 3600 - 1)):  # from more than twelve hours ahead it is the next day
        clock = Clock()
        clock.at(Time("clock", 23 * 3600 * 10**9))
        assert clock.at(Time("clock", (11 * 3600 - back) * 10**9)) == later * 10**9
    clock = Clock()
    with pytest.raises(ValueError, match="out of range"):
        clock.at(Time("date", (1 << 33) * 10**9))
    assert Clock().at(Time("date", (1 << 33) * 10**9 - 1)) == 0


def lines(*texts_of: str, ended: bool = True) -> list[Line]:
    return list(texts((n, text.encode(), ended or n < len(texts_of)) for n, text in enumerate(texts_of, 1)))


@pytest.mark.parametrize(
    ("text", "end", "torn"),
    [
        ("cmd 0x12", 8, False),
        ("cmd 0x12>", 8, True),
        ("cmd 0x12 >", 8, True),
        ("cmd 0x12…", 8, True),
        ("cmd 0x12...", 8, True),
        ("cmd 0x12\\", 8, True),
        ("cmd 0x12 > more", 8, False),
        ("cmd 0x12, more", 8, False),
    ],
)
def test_marks_of_a_cut(text: str, end: int, torn: bool) -> None:
    (line,) = lines(text)
    assert line.torn(end) is torn
    (line,) = lines(text, ended=False)
    assert line.torn(end) is (torn or text == "cmd 0x12")


@pytest.mark.parametrize(
    ("following", "broken"),
    [
        ("34, object", True),
        ("34 (x)", True),
        ("34)", True),
        ("34", True),
        ("hello", False),
        ("[pid 7] x", False),
        ("123456789", False),
    ],
)
def test_a_number_over_two_lines(following: str, broken: bool) -> None:
    assert lines("command 0x12", following)[0].whole is not broken
    assert lines("command 12", following)[0].whole


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_file_that_ends_inside_a_character(cut: int) -> None:
    """U+1F600 is two units of UTF-16, of which some bytes are there."""
    whole = b"\xff\xfea\x00" + b"\x3d\xd8\x00\xde"[:cut]
    assert b"".join(utf8([whole])) == "a\ufffd".encode()


def test_an_envelope_in_an_envelope_in_an_envelope() -> None:
    import json

    text = "x openat( y"
    for _ in range(4):
        text = json.dumps({"log": text})
    assert [line.text for line in lines(text)] == ["x openat( y"]
    deeper = json.dumps({"log": text})
    assert [line.text for line in lines(deeper)] != ["x openat( y"]
    inner: object = "x openat( y"
    for deep in range(1, 16):
        inner = {"log": inner}
        assert [line.text for line in lines(json.dumps(inner))] == (["x openat( y"] if deep <= 13 else []), deep
    assert [line.text for line in lines('{"msg": "a\\nb\\n"}')] == ["a", "b"]
    assert [line.text for line in lines('{"msg": 7, "other": "openat( x"}')] == ["openat( x"]
    assert [line.text for line in lines('{"none": "x"}')] == []
    assert [line.text for line in lines('{"msg": "torn')] == ['{"msg": "torn']


# runsc, nvproxy

TASK = "I0915 10:11:12.032901     221 strace.go:605] [   2:   7] prog "


@pytest.mark.parametrize(
    ("took", "nanoseconds"),
    [
        ("1ns", 1),
        ("20.731µs", 20_731),
        ("1.5us", 1500),
        ("3ms", 3_000_000),
        ("1.5s", 1_500_000_000),
        ("1m2s", 62_000_000_000),
        ("1h", 3600 * 10**9),
        ("999999999h", 1 << 62),
    ],
)
def test_runsc_s_durations(took: str, nanoseconds: int, write: Write) -> None:
    records, _ = read(write(f"{TASK}X close(0x3 {CTL}) = 0 (0x0) ({took})\n"))
    assert [r["d"] for r in records] == [nanoseconds]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (f"X ioctl(0x3 {CTL}, 0x100000000, 0x7) = 0 (0x0)", "an ioctl that is not whole"),
        (f"X ioctl(0x80000000 {CTL}, 0xc020462a, 0x7) = 0 (0x0)", "a descriptor that is out of range"),
        (f"X ioctl(0x3 {CTL}, 0xc020462a, 0x7) = 0 errno=0 (x)", "an errno that Linux does not have: 0"),
        (f"X ioctl(0x3 {CTL}, 0xc020462a, 0x7) = 0 errno=4096 (x)", "an errno that Linux does not have: 4096"),
        (f"X ioctl(0x3 {CTL}, 0xc020462a, 0x7) = 2147483648 (0x80000000)", "a result that is out of range"),
        (f"X ioctl(0x3 {CTL}, 0xc020462a, 0x7)", "a call without its result"),
        (f"X openat(AT_FDCWD /, {CTL}", "an open that is not whole"),
        (f"X mmap(0x0, {CTL}) = 0 (0x0)", "an mmap that is not whole"),
        (f"X mmap(0x0, x, 0, 0, 0x3 {CTL}, 0x0) = 0 (0x0)", "an mmap that is not whole"),
    ],
)
def test_runsc_s_broken_lines(line: str, problem: str, write: Write) -> None:
    records, source = read(write(TASK + line + "\n"), "nvproxy-log")
    assert (records, source.problems.kept) == ([], [(1, problem)])


@pytest.mark.parametrize(
    ("line", "ret", "err"),
    [
        (f"X ioctl(0x7fffffff {CTL}, 0xc020462a, 0x7) = 2147483647 (0x7fffffff)", 2147483647, None),
        (f"X ioctl(0x3 {CTL}, 0xffffffff, 0x7) = 0 (0x0)", 0, None),
        (f"X ioctl(0x3 {CTL}, 0xc020462a, 0x7) = -1 errno=4095 (x)", -1, 4095),
        (f"X ioctl(0x3 {CTL}, 0xc020462a, 0x7) = 0 errno=1", -1, 1),
        (f"X ioctl(0x3 {CTL}, 0xc020462a, 0x7) = 18446744073709551615 (0xffffffffffffffff)", -1, None),
    ],
)
def test_runsc_s_results(line: str, ret: int, err: int | None, write: Write) -> None:
    records, source = read(write(TASK + line + "\n"), "nvproxy-log")
    assert not source.problems.count
    assert [(r["ret"], r.get("err")) for r in records] == [(ret, err)]


@pytest.mark.parametrize(
    ("text", "ret"),
    [
        ("9223372036854775807", (1 << 63) - 1),
        ("9223372036854775808", None),
        ("9223372036854775809", -(1 << 63) + 1),
        ("18446744073709551615", -1),
        ("18446744073709551616", None),
        ("27670116110564327424", None),
        ("-9223372036854775807", -(1 << 63) + 1),
        ("-9223372036854775808", None),
        ("-9223372036854775809", None),
    ],
)
def test_the_ends_of_runsc_s_results(text: str, ret: int | None, write: Write) -> None:
    line = f"{TASK}X mmap(0x0, 0x1000, PROT_READ, MAP_SHARED, 0x4 {CTL}, 0x2000) = {text} (0x1)"
    records, source = read(write(line + "\n"), "nvproxy-log")
    assert [r["ret"] for r in records] == ([] if ret is None else [ret])
    assert source.problems.count == (ret is None)


@pytest.mark.parametrize(
    "node", ["/dev/null", "/dev/nvram", "/tmp/dev/x", "(bad FD)", "socket:[7]", "/dev/x, /dev/nvidia0"]
)
def test_runsc_s_lines_about_other_files(node: str, write: Write) -> None:
    text = f"{TASK}X close(0x5 {node}) = 0 (0x0)\n{TASK}E ioctl(0x5 {node}, 0x5401, 0x7)\n{TASK}X close(0x3 {CTL}) = 0 (0x0)\n"
    records, source = read(write(text))
    assert ([r["fd"] for r in records if r.get("dev") == CTL], source.problems.count) == ([3], 0)
    assert len(records) == 1


def test_a_line_about_a_node_that_is_no_call(write: Write) -> None:
    records, source = read(write(f"[   1:   1] prog looks at {CTL}\nE ioctl(0x3 {CTL} and then {CTL}\n"), "nvproxy-log")
    assert (records, [line for line, _ in source.problems.kept]) == ([], [2])
    with pytest.raises(TraceError, match="no line of strace"):
        read(write(f"prog looks at {CTL}\n"))


@pytest.mark.parametrize(
    "said",
    [
        "added object 0xc1d00001:0x5c000001 (class 0x00000080) with parent 0xc1d00001, dependencies []",
        "freed object 0xc1d00001:0x5c000001 (class 0x00000080)",
        "freeing object with unknown handle 0xc1d00001:0x1",
        "handle 0xc1d00001:0x1 already in use",
        "client handle 0xc1d00001 already in use",
        "client 0xc1d00001 is already released",
        "client 0xc1d00001 or 0xc1d00002 is already released",
        "failed to get client with unknown handle 0xc1d00001",
        "failed to get clients with unknown handles 0xc1d00001 (0x0) and 0xc1d00002 (0x0)",
        "failed to get object with unknown handle 0xc1d00001:0x1",
        "overwriting allocation class 0x00000005 with 0x00000079",
        "NV_ESC_RM_ALLOC_CONTEXT_DMA2 class 0x00000002",
        "VID_HEAP_CONTROL function 2",
        "inferred memory type Uncached for caching type 1",
        "unknown caching type 9",
        "pinned 4096 bytes for OS descriptor with handle 0x5c000001",
        "pinned pages for OS descriptor with handle 0x5c000001",
        "unpinned 4096 bytes for released OS descriptor",
        "unpinning pages for released OS descriptor",
        "failed to unmap 0x1000-0x2000: invalid argument",
        "disabling MADV_POPULATE_WRITE before NV01_MEMORY_SYSTEM_OS_DESCRIPTOR allocation: invalid argument",
        "UVM_TOOLS_READ_PROCESS_MEMORY(targetVa=0x1000, len=8) returned status 64",
        "NVIDIA driver capability set is empty; all GPU operations will fail",
        "failed to open host /dev/nvidia0: no such file or directory",
        "failed to open nvidia-uvm: permission denied",
    ],
)
def test_what_says_nothing_about_a_call(said: str, write: Write) -> None:
    records, source = read(write(f"[   1:   1] nvproxy: {said}\n"))
    assert (records, source.problems.count) == ([], 0)


@pytest.mark.parametrize(
    ("said", "escape"),
    [
        ("unknown NV_ESC_RM_ALLOC_MEMORY class 0x0000003f", 0x27),
        ("handler is undefined for NV_ESC_RM_ALLOC_MEMORY class 0x0000003f", 0x27),
        ("unknown VID_HEAP_CONTROL function 27", 0x4A),
        ("NV_ESC_RM_IDLE_CHANNELS: NumChannels 4294967295 is too large", 0x41),
        ("mismatched param sizes for alloc class 0x00000080. Param struct has size 56, got 48 (bytes).", 0x2B),
        ("requested classlist size exceeds max (200 > 160)", 0x2A),
        ("NV83DE_CTRL_CMD_DEBUG_READ_MEMORY length 4294967295 exceeds limit 1073741824", 0x2A),
        ("rmAllocIMEXSession got capDescriptor file of incompatible type *host.fd", 0x2B),
        ("ignoring NV_ESC_NUMA_INFO", 0xD7),
    ],
)
def test_refusals_of_arguments(said: str, escape: int, write: Write) -> None:
    records, source = read(write(f"[   1:   1] nvproxy: {said}\n"))
    assert not source.problems.count
    assert [(r["kind"], r["key"], r["by"], r["refused"]) for r in records] == [
        ("fe", hex(escape), "nvproxy", said[:120])
    ]


def test_a_refusal_belongs_to_the_call_that_is_under_way(write: Write) -> None:
    text = (
        "[   1:   1] nvproxy: frontend ioctl: nr = 78 = 0x4e, argSize = 56\n"
        "[   1:   2] nvproxy: frontend ioctl: nr = 41 = 0x29, argSize = 16\n"
        "[   1:   1] nvproxy: attempted to reuse FD 7 for NV_ESC_RM_MAP_MEMORY\n"
        "[   1:   3] nvproxy: attempted to reuse FD 7 for NV_ESC_RM_MAP_MEMORY\n"
        "[   1:   4] nvproxy: frontend ioctl failed: status=0x57\n"
        "[   1:   2] nvproxy: frontend ioctl failed: status=0x57\n"
    )
    records, source = read(write(text))
    assert [(r["tid"], r["key"], r.get("by"), r.get("status")) for r in records] == [
        (1, "0x4e", "nvproxy", None),
        (2, "0x29", "driver", "0x57"),
    ]
    assert [line for line, _ in source.problems.kept] == [4, 5]


REFUSAL = "W0915 10:11:12.032957     221 frontend.go:1240] [   2:   2] nvproxy: missing capability for allocation class 0x000090cd"
OTHER = (
    "D0915 10:11:12.032910     221 frontend.go:154] [   2:   3] nvproxy: frontend ioctl: nr = 42 = 0x2a, argSize = 32"
)


@pytest.mark.parametrize("between", ["\r", "", " ", "\r\r", " 50%|####    |\r"])
@pytest.mark.parametrize(("first", "second"), [(REFUSAL, OTHER), (OTHER, REFUSAL)])
def test_messages_without_a_newline_between(first: str, second: str, between: str, write: Write) -> None:
    """Two threads wrote theirs at once, or a terminal's returns are all that ends the lines."""
    records, source = read(write(first + between + second + "\n"))
    assert {record["key"] for record in records} == {"0x90cd", "0x2a"}
    assert [record["refused"] for record in records if "refused" in record] == ["missing capability"]
    assert not source.problems.count


def test_two_messages_that_cannot_be_parted_are_reported(write: Write) -> None:
    _, source = read(
        write("nvproxy: control command 0x201 nvproxy: missing capability for allocation class 0x000090cd\n")
    )
    assert [text for _, text in source.problems.kept] == [
        "two messages of nvproxy in one line: only the first was read"
    ]


@pytest.mark.parametrize("end", ["\r", "\r\n", "\r\r\n"])
def test_returns_end_lines_of_strace(end: str, write: Write) -> None:
    calls = [OPENED.strip(), "ioctl(3, 0xc020462a, 0x1) = 0", "ioctl(3, 0xc030462b, 0x1) = 0"]
    records, source = read(write("".join(call + end for call in calls)))
    assert [record.get("key") for record in records] == [None, "0x2a", "0x2b"]
    assert not source.problems.count


@pytest.mark.parametrize(
    "result", ["0", "0 ", "-1 EINVAL (Invalid argument)", "0 <0.000012>", "-1 EINVAL (Invalid argument)[pid 7] "]
)
def test_two_calls_of_strace_in_one_line_are_reported(result: str, write: Write) -> None:
    _, problem = one(f"ioctl(3, 0xc020462a, 0x1) = {result}ioctl(3, 0xc030462b, 0x1) = 0", write)
    assert problem == "a second call in the same line: neither was read"


def test_a_call_behind_another_driver_s_is_reported(write: Write) -> None:
    text = 'openat(AT_FDCWD, "/dev/tty", O_RDWR) = 4\nioctl(4, TCGETS, 0x1) = 0ioctl(3, 0xc030462b, 0x1) = 0\n'
    _, source = read(write(OPENED + text))
    assert source.problems.count == 1


@pytest.mark.parametrize("request_", ["_IOC(_IOC_NONE, 0, 0x25, 0)", "_IOC(_IOC_NONE, 0, 0x1, 0x3000)"])
def test_uvm_s_requests_of_a_log_that_begins_late(request_: str, write: Write) -> None:
    """strace -p shows no open: what may be UVM's is reported, what the log shows to be another file's is not."""
    call = f"ioctl(9, {request_}, 0x1) = 0\n"
    _, source = read(write(OPENED + call))
    assert [line for line, _ in source.problems.kept] == [2]
    _, source = read(write(OPENED + 'openat(AT_FDCWD, "/dev/other", O_RDWR) = 9\n' + call))
    assert not source.problems.count


def test_long_words_are_cut(write: Write) -> None:
    words = "mismatched param sizes for alloc class ".ljust(200, "x")
    records, _ = read(write(f"[   1:   1] nvproxy: {words}\n"))
    assert [r["refused"] for r in records] == [words[:120]]
    words = "nobody knows ".ljust(200, "y")
    _, source = read(write(f"[   1:   1] nvproxy: {words}\n"))
    assert source.problems.kept == [(1, f"nvproxy said something that is not understood: {words[:80]!r}")]


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize(
    ("command", "failed", "found"),
    [
        (
            "control command 0x20800a01",
            "rm control failed: cmd=0x20800a01 status=0x56",
            ("0xc000462a", "control", "0x20800a01", "0x56"),
        ),
        (
            "allocation class 0x00002080",
            "rm alloc failed: hClass=0x00002080 status=0x22",
            ("0xc000462b", "alloc", "0x2080", "0x22"),
        ),
    ],
)
def test_a_failure_is_of_the_call_that_it_names(
    begun: bool, command: str, failed: str, found: tuple[str, ...], write: Write
) -> None:
    """One call, whether the log holds its beginning or not: NV_ESC_RM_CONTROL is 0x2a, NV_ESC_RM_ALLOC 0x2b."""
    said = [command] * begun + [failed]
    records, source = read(write("".join(f"[   1:   4] nvproxy: {line}\n" for line in said)), "nvproxy-log")
    assert [(r["req"], r["kind"], r["key"], r["status"]) for r in records] == [found]
    assert source.problems.count == 0


@pytest.mark.parametrize("prefix", ["", "12: ", "  > ", "web-1  | "])
def test_a_call_of_runsc_that_was_quoted(prefix: str, write: Write) -> None:
    line = f"ioctl(0x3 {CTL}, 0xc020462a, 0x7ffc) = 0 (0x0)"
    records, source = read(write(f"{prefix}{line}\n"), "nvproxy-log")
    assert ([(r["k"], r["req"]) for r in records], source.problems.count) == ([("ioctl", "0xc020462a")], 0)


def test_the_words_of_an_internal_failure(write: Write) -> None:
    text = "[   1:   1] nvproxy: uvm ioctl 75 = 0x4b\n[   1:   1] nvproxy: UVM_MM_INITIALIZE internally failed: status=0x1f\n"
    records, _ = read(write(text))
    assert [(r["refused"], r["by"], r["status"]) for r in records] == [
        ("UVM_MM_INITIALIZE internally failed", "nvproxy", "0x1f")
    ]


def test_an_exit_of_another_call(write: Write) -> None:
    text = f"{TASK}E ioctl(0x3 {CTL}, 0xc0104629, 0x7)\n{TASK}X ioctl(0x4 {CTL}, 0xc0384627, 0x7) = 0 (0x0)\n"
    records, _ = read(write(text))
    assert [(r["fd"], r["key"], r.get("ret")) for r in records] == [(3, "0x29", None), (4, "0x27", 0)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_that_is_given_is_taken(kind: str, write: Write) -> None:
    records, source = read(write("nothing here\n"), kind)
    assert (records, source.kind, source.problems.count) == ([], kind, 0)


def test_two_drivers_in_one_log(write: Write) -> None:
    text = "NVIDIA driver version: 580.126.20\nNVIDIA driver version: 580.126.20\nUnsupported Nvidia driver version: 570.86.15\n"
    source = Import(write(text + "NVIDIA driver version: 580.1"), kind="nvproxy-log")
    assert list(source) == []
    assert source.drivers == {"580.126.20": 1, "570.86.15": 3}
    assert [line for line, _ in source.problems.kept] == [3]


def test_a_record_of_each_reader_has_a_line(write: Write) -> None:
    problems = Problems()
    found = list(KINDS["strace"][1](lines(OPENED.strip(), "x", "ioctl(3, 0xc020462a, 1) = 0"), problems))
    assert [r["k"] for r in found] == ["open", "ioctl"]
