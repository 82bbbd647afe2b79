"""Any wrapping around any line, in any encoding; numbers that were cut; limits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvproxy_model.trace.lines import TraceError
from nvproxy_model.trace.logs.kinds import Import
from nvproxy_model.trace.logs.prefixes import LINE_LIMIT

Write = Callable[..., Path]
CTL = "/dev/nvidiactl"
OPENED = f'openat(AT_FDCWD, "{CTL}", O_RDWR) = 3'
ASKED = "ioctl(3, _IOC(_IOC_READ|_IOC_WRITE, 0x46, 0x2a, 0x20), 0x7ffc) = 0"


def read(path: Path, kind: str | None = None) -> tuple[list[dict[str, Any]], Import]:
    source = Import(path, kind=kind)
    return list(source), source


@pytest.mark.parametrize("digit", "0123456789abcdef")
@pytest.mark.parametrize("wording", ["unknown control command {}", "control command {}"])
def test_a_number_that_ends_the_file_is_doubtful(wording: str, digit: str, write: Write) -> None:
    """Whatever its last digit, more may have followed; with a newline after it nothing did."""
    number = f"0x2{digit}"
    line = f"[   1:   1] nvproxy: {wording.format(number)}"
    for end, expected in (("", 0), (">", 0), ("…", 0), ("...", 0), ("\n", 1), ("\r\n", 1)):
        records, source = read(write(line + end))
        assert len([r for r in records if r["key"] == number]) == expected, end
        assert source.problems.count == 1 - expected


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("nvproxy: uvm ioctl 34 = 0x22", True),
        ("nvproxy: uvm ioctl 345 = 0x15", False),
        ("nvproxy: handler is undefined for uvm ioctl 34 = 0x22", True),
        ("nvproxy: unknown uvm ioctl 2", False),
        ("nvproxy: unknown control command 0x3d05 (paramsSize=2", True),
        ("nvproxy: unknown control command 0x3d05 (paramsSize=24)", True),
        ("nvproxy: allocation class 0x000090cd", True),
        ("nvproxy: allocation class 0x00009", False),
        ("nvproxy: frontend ioctl: nr = 42 = 0x2a, argSize = 3", False),
        ("Control ioctl: request=0xc020462a [nr=NV_ESC_RM_CONTROL, cmd=0x20810110] => ret=0 status=0x5", False),
        ("Control ioctl: request=0xc020462a [nr=NV_ESC_RM_CONTROL, cmd=0x20810110] => ret=0", True),
        ("Control ioctl: request=0xc020462a [nr=NV_ESC_RM_CONTROL, cmd=0x2081", False),
        ("ioctl(3</dev/nvidiactl>, 0xc020462a, 0x7ffc) = 0", True),
        ("ioctl(3</dev/nvidiactl>, 0xc020462a, 0x7ffc) = 1", False),
        ("ioctl(3</dev/nvidiactl>, 0xc020462a, 0x7ffc) = -1 EINVAL (Invalid argument)", True),
        ("python X ioctl(0x3 /dev/nvidiactl, 0xc020462a, 0x7ebe5111", False),
    ],
)
def test_a_last_line_without_an_end(text: str, whole: bool, write: Write) -> None:
    records, source = read(write(text))
    assert (len(records), source.problems.count) == ((1, 0) if whole else (0, 1))


@pytest.mark.parametrize("rest", ["3504, object 0x5c000002", "35 (paramsSize=16)", "35"])
def test_a_number_that_goes_on_in_the_next_line_is_doubtful(rest: str, write: Write) -> None:
    records, source = read(write(f"[   1:   1] nvproxy: control command 0x2080\n{rest}\n"))
    assert records == []
    assert "cut" in source.problems.kept[0][1]


RESULTS = [("0x5", 5), ("5", 5), ("0", 0), ("0xffffffffffffffff", -1), ("017", 15), ("?", None)]


@pytest.mark.parametrize(("result", "ret"), [*RESULTS, ("0x7fffffffffffffff", (1 << 63) - 1)])
def test_results(result: str, ret: int | None, write: Write) -> None:
    records, source = read(write(f"{OPENED}\nioctl(3, 0xc020462a, 0x1) = {result}\n"))
    assert not source.problems.count
    assert records[1].get("ret") == ret


@pytest.mark.parametrize(
    "result",
    ["99999999999999999999", "-99999999999999999999", "0x10000000000000000", "099", "-1 EUNHEARD (x)", "", "x"],
)
def test_results_that_are_none(result: str, write: Write) -> None:
    records, source = read(write(f"{OPENED}\nioctl(3, 0xc020462a, 0x1) = {result}\n"))
    assert len(records) == 1
    assert [line for line, _ in source.problems.kept] == [2]


def test_a_framebuffer_s_request_is_not_ours(write: Write) -> None:
    """linux/fb.h has NVIDIA's letter: on a descriptor that the log never opened only numbers that it lacks are ours."""
    text = "ioctl(7, _IOC(_IOC_READ|_IOC_WRITE, 0x46, 0x01, 0x20), 0x7f) = 0\nioctl(7, 0xc0204627, 0x7f) = 0\n"
    records, _ = read(write(text))
    assert [r["key"] for r in records] == ["0x27"]


def test_a_copy_of_an_unknown_file_hides_the_device(write: Write) -> None:
    text = f"{OPENED}\nioctl(3, 0xc0204601, 1) = 0\ndup2(4, 3) = 3\nioctl(3, 0xc0204601, 1) = 0\n"
    records, _ = read(write(text))
    assert [r["k"] for r in records] == ["open", "ioctl"]


def test_another_driver_s_broken_line_is_its_own_affair(write: Write) -> None:
    text = (
        f'{OPENED}\nopenat(AT_FDCWD, "/tmp/x", O_RDWR) = 4\nioctl(4, 0xc020462a, 0x1) = 099\nioctl(1, TCGETS, {{B384\n'
    )
    assert read(write(text))[1].problems.count == 0


PREFIXES = [
    "",
    "4711 ",
    "[pid 4711] ",
    "10:22:01 ",
    "10:22:01.123456 ",
    "1727000000.123456 ",
    "     0.000123 ",
    "10:22:01 (+     0.000123) ",
    "[00007f9b3f1d3aff] ",
    "[????????????????] ",
    "[ 257] ",
    "[pid 4711<python3>] 10:22:01.123456 [ 257] [00007f9b3f1d3aff] ",
    "[pid 4711 /* 3 in strace's PID NS */] ",
    "4711<my prog> 10:22:01 ",
    "2026-11-30T10:22:01.123456Z ",
    "2026-11-30 10:22:01,123 ",
    "2026-11-30T10:22:01+01:00 stderr F ",
    "[pod/a-7f/main] 2026-11-30T10:22:01.5Z ",
    "Nov 30 20:11:12 node strace[123]: ",
    "Nov  3 20:11:12.123456 node strace[123]: ",
    "Mon 2026-11-30 20:11:12 UTC node strace[123]: ",
    "<14>1 2026-11-30T10:22:01Z ",
    "app-1  | ",
    "web.1.abc@node1    | ",
    "12:",
    "log/strace.txt:12:",
    "log/strace.txt-12-",
    "strace.txt:",
    "  17\t",
    "> ",
    "> > ",
    "    ",
    "\t",
    "- ",
    "```",
    "\x1b[2m\x1b[36mapp-1  | \x1b[0m",
    "\ufeff",
    "MESSAGE=",
    "pod-abc main ",
    "unheard of tool, v2 | ",
    '<165>1 2026-11-30T10:22:01.003Z node runsc 221 ID47 [ex@32473 a="b [1]"][x y="z"] ',
    "<34>1 2026-11-30T10:22:01.003+01:00 node runsc - - - ",
    '2026-11-30T10:22:01Z {app="train", pod="a-7f"} ',
    "(pid=1234) ",
    "(RayTrainWorker pid=1234, ip=10.0.0.1) ",
    "\x1b_bk;t=1700000000123\x07",
    "+",
    "1) ",
    "\u00a0\u00a0",
    "\u2502 ",
]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_any_prefix_on_any_line(prefix: str, end: str, write: Write) -> None:
    records, source = read(write(f"{prefix}{OPENED}{end}{prefix}{ASKED}{end}"))
    assert (source.kind, source.problems.count) == ("strace", 0)
    assert [(r["k"], r.get("key"), r.get("dev")) for r in records] == [("open", None, None), ("ioctl", "0x2a", CTL)]
    assert {r["pid"] for r in records} == ({4711} if "4711" in prefix else {0})
    said = "[   2:   7] nvproxy: missing capability for allocation class 0x000090cd"
    for header in ("", "W0915 10:11:12.032957     221 frontend.go:1240] "):
        records, source = read(write(f"{prefix}{header}{said}{end}"))
        assert (source.kind, source.problems.count) == ("nvproxy-log", 0)
        assert [(r["kind"], r["key"], r["pid"], r["tid"]) for r in records] == [("alloc", "0x90cd", 2, 7)]


ENVELOPES = [
    lambda line: json.dumps({"msg": line, "level": "info"}),
    lambda line: json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-09-15T10:11:12Z"}),
    lambda line: json.dumps({"jsonPayload": {"message": line}, "insertId": "7"}),
    lambda line: json.dumps({"MESSAGE": list(line.encode()), "_PID": "7"}),
    lambda line: json.dumps({"log": json.dumps({"msg": line}) + "\n", "stream": "stdout"}),
    lambda line: "[pod/a/b] " + json.dumps({"message": line}),
    lambda line: json.dumps({"something": {"quite": {"different": line}}}),
    lambda line: json.dumps({"resourceLogs": [{"body": {"stringValue": line}}]}),
    lambda line: json.dumps([{"textPayload": line}]),
    lambda line: json.dumps([{"textPayload": line, "severity": "INFO"}], indent=2),
    lambda line: "  " + json.dumps({"text": line}) + ",",
    json.dumps,
    lambda line: json.dumps({"stream": "stderr", "logtag": "F", "log": line}),
    lambda line: json.dumps({"kubernetes": {"pod": "x"}, "log": line, "stream": "stderr"}),
    lambda line: json.dumps({"msg": "a line", "fields": {"line": line}}),
    lambda line: json.dumps({"message": line, "log": {"file": "x"}, "event": {"original": line}}),
    lambda line: "[0] kube.var.log: [[1700000000.1, {}], " + json.dumps({"log": line}) + "]",
    lambda line: json.dumps({"data": {"result": [{"stream": {"a": "b"}, "values": [["1700000000", line]]}]}}),
    lambda line: json.dumps({"hits": {"hits": [{"_source": {"message": line}}]}}, indent=1),
]


@pytest.mark.parametrize("envelope", ENVELOPES)
def test_any_envelope(envelope: Callable[[str], str], write: Write) -> None:
    records, source = read(write("\n".join(map(envelope, (OPENED, ASKED))) + "\n"))
    assert (source.kind, source.problems.count) == ("strace", 0)
    assert [r.get("key", r["k"]) for r in records] == ["open", "0x2a"]


@pytest.mark.parametrize(
    ("first", "last"),
    [
        ('{"log":"%s","stream":"stdout"}', '{"log":"%s\\n","stream":"stdout"}'),
        ("2026-09-15T10:11:12.5Z stdout P %s", "2026-09-15T10:11:12.6Z stdout F %s"),
    ],
)
def test_a_line_in_pieces(first: str, last: str, write: Write) -> None:
    """Container runtimes cut long lines: no number is taken from half of one."""
    line = (
        "W0915 10:11:12.03 221 frontend.go:927] [   2:   2] nvproxy: unknown control command 0x20803504 (paramsSize=16)"
    )
    for at in range(1, len(line)):
        records, source = read(write(f"{first % line[:at]}\n{last % line[at:]}\n"), "nvproxy-log")
        assert ([r["key"] for r in records], source.problems.count) == (["0x20803504"], 0), at


def test_lines_that_lost_their_newlines(write: Write) -> None:
    """In one string, in objects whose lines never had one, and with nothing between: read, or counted, never lost."""
    log = "".join(
        f"I1021 20:39:11.86{n:04}   33296 strace.go:605] [   1:   1] smi X ioctl(0x3 {CTL}, 0xc04846d2, 0x7e) = 0 (0x0) (2µs)\n"
        for n in range(5)
    )
    bare = "".join(json.dumps({"stream": "stderr", "log": line}) + "\n" for line in log.splitlines())
    for text in (json.dumps(log), bare, bare + bare, log.replace("\n", " ") + "\n"):
        records, source = read(write(text))
        assert (len(records), source.problems.count) == (10 if text == bare + bare else 5, 0)
    calls = f"{OPENED}\n{ASKED}\n"
    for between in (" ", "\\n"):
        records, source = read(write(calls.replace("\n", between) + "\n"))
        assert [(line, "second call" in text) for line, text in source.problems.kept] == [(1, True)]
    sniffed = "Control ioctl: request=0xc020462a [nr=0x2a (42), cmd=0x20801348 (545264456)] => ret=0"
    for between in (" ", "\\n", "\\t"):
        records, source = read(write(between.join([sniffed] * 3) + "\n"))
        assert (len(records), source.problems.count) == (3, 0)


@pytest.mark.parametrize(
    "text",
    [
        f'openat(AT_FDCWD, "{CTL}", O_RDWR <unfinished ...>\n',
        f'openat(AT_FDCWD, "{CTL}", O_RDWR) = ?\n',
        f'open("{CTL}", O_RDWR <unfinished ...>\n+++ killed by SIGKILL +++\n',
        f"[   1:   1] smi E openat(AT_FDCWD /, 0x7ef9 {CTL}, O_RDWR|O_CLOEXEC, 0o0)\n",
    ],
)
def test_an_open_that_does_not_return(text: str, write: Write) -> None:
    """Whether the program had the device is not known: the log is not complete."""
    records, source = read(write(text))
    assert records == []
    assert [line for line, said in source.problems.kept if "whose result is not in this log" in said] == [
        text.count("\n")
    ]
    assert read(write(text.replace(CTL, "/dev/null") + ASKED + "\n"))[1].problems.count == 0


def test_one_object_with_many_lines(write: Write) -> None:
    """As an export of a log service has them, in one line of the file."""
    text = json.dumps([{"message": line} for line in [OPENED, *[ASKED] * 6000]])
    records, source = read(write(text))
    assert (len(records), source.problems.count) == (6001, 0)


def test_lines_that_a_pager_counted(write: Write) -> None:
    """The numbers look like strace's process column, and are none: the descriptor is known in each line."""
    calls = [OPENED, *[ASKED] * 4]
    counted = "".join(f"{number:6}  {call}\n" for number, call in enumerate(calls, 1))
    records, source = read(write(counted))
    assert ([r["pid"] for r in records], source.problems.count) == ([0] * 5, 0)
    assert [r["dev"] for r in records[1:]] == [CTL] * 4
    processes = "".join(f"{pid} {call}\n" for pid, call in zip([1, 1, 2, 2, 3], calls, strict=True))
    assert [r["pid"] for r in read(write(processes))[0]] == [1, 1, 2, 2, 3]


def test_what_a_word_processor_made_of_it(write: Write) -> None:
    text = f"{OPENED}\n{ASKED}\n".replace('"', "\u201d").replace(" ", "\u00a0")
    for end in ("", "`", " <br>", " \u2502"):
        records, source = read(write("".join(f"{line}{end}\n" for line in text.splitlines())))
        assert ([r.get("dev", r.get("path")) for r in records], source.problems.count) == ([CTL, CTL], 0)


def test_a_form_that_is_not_known_is_shown(write: Write) -> None:
    with pytest.raises(
        TraceError, match=r"line 2 is about an NVIDIA device, in a form that is not known: 'ok: .host. => openat"
    ):
        read(write(f"a word\nok: [host] => {OPENED}\n"))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_any_encoding(encoding: str, write: Write) -> None:
    """Long enough that characters lie across the borders of what is read at once."""
    records, source = read(write((f"{OPENED}\n{ASKED}\n" * 2_400).encode(encoding)))
    assert (len(records), source.problems.count, source.lines) == (4_800, 0, 4_800)


def test_the_kind_is_what_most_of_the_first_lines_are(write: Write) -> None:
    """A program's own output stands between; a log in a log is not the log; and reading begins with the first line."""
    begun = f'openat(AT_FDCWD, "{CTL}", O_RDWR <unfinished ...>\n<... openat resumed>) = 3\n'
    begun += 'write(2, "nvproxy: hello\\n", 15) = 15\n'
    records, source = read(write("hello\n" * 5000 + begun + ASKED + "\n"))
    assert (source.kind, [r["k"] for r in records]) == ("strace", ["open", "ioctl"])


def test_too_much_waits(write: Write) -> None:
    """Interrupted calls are remembered up to a limit, and the rest is reported."""
    text = "".join(f"[pid {n}] ioctl(3</dev/nvidiactl>, 0xc020462a, 0x1 <unfinished ...>\n" for n in range(1, 3001))
    records, source = read(write(text))
    assert len(records) == 2048
    assert source.problems.count == 3000 - 2048
    text = "[pid 1] ioctl(3</dev/nvidiactl>, 0xc020462a, " + "9" * 20_000 + " <unfinished ...>\n"
    assert read(write(text))[1].problems.kept == [(1, "an interrupted call that is too long to be remembered")]


def test_a_long_line_is_dropped_and_reported(write: Write) -> None:
    text = "ioctl(3</dev/nvidiactl>, 0xc020462a, 0x1) = 0\n" + "9" * (LINE_LIMIT + 1) + "\n"
    records, source = read(write(text))
    assert (len(records), [line for line, _ in source.problems.kept]) == (1, [2])


def test_a_fork_shares_what_it_does_not_change(write: Write) -> None:
    """Ten thousand descriptors and ten thousand children: each child sees them all, and its own changes are its own."""
    many = 3000
    opens = "".join(f'[pid 1] openat(AT_FDCWD, "/dev/nvidia0", O_RDWR) = {fd}\n' for fd in range(3, many))
    forks = "".join(f"[pid 1] fork() = {pid}\n[pid {pid}] close(3) = 0\n" for pid in range(2, many))
    last = f"[pid {many - 1}] ioctl(3, 0x1, 0x1) = 0\n[pid {many - 1}] ioctl(4, 0xc00446c9, 0x1) = 0\n"
    last += "[pid 1] ioctl(3, 0xc00446c9, 1) = 0\n"
    records, source = read(write(opens + forks + last))
    assert not source.problems.count
    assert [(r["pid"], r["fd"], r["dev"]) for r in records if r["k"] == "ioctl"] == [
        (many - 1, 4, "/dev/nvidia0"),
        (1, 3, "/dev/nvidia0"),
    ]


QUOTED = {
    "logfmt": 'time="2026-09-15T10:11:12Z" level=debug msg={}',
    "message": "level=debug message={} container=a",
}


@pytest.mark.parametrize("form", QUOTED)
def test_logfmt(form: str, write: Write) -> None:
    text = "\n".join(QUOTED[form].format(json.dumps(line)) for line in (OPENED, ASKED)) + "\n"
    records, source = read(write(text))
    assert (source.kind, source.problems.count, len(records)) == ("strace", 0, 2)


def test_a_table_from_a_console(write: Write) -> None:
    rows = [
        "timestamp,severity,message",
        *(f'2026-09-15T10:11:12Z,INFO,"{x}"' for x in (OPENED.replace('"', '""'), ASKED)),
    ]
    records, source = read(write("\n".join(rows) + "\n"))
    assert (source.kind, source.problems.count, len(records)) == ("strace", 0, 2)


def test_a_page_s_source(write: Write) -> None:
    records, source = read(write("\n".join((OPENED, ASKED)).replace('"', "&quot;") + "\n"))
    assert (source.kind, source.problems.count, len(records)) == ("strace", 0, 2)


def test_output_of_the_program_before_a_call(write: Write) -> None:
    records, _ = read(write(f"half a line[pid   77] {OPENED}\n[pid 77] {ASKED}\n"))
    assert [(r["pid"], r.get("dev")) for r in records] == [(77, None), (77, CTL)]


@pytest.mark.parametrize(
    ("printed", "device"),
    [
        ("3</dev/nvidia0>", "/dev/nvidia0"),
        ("3</dev/nvidia0<char 195:0>>", "/dev/nvidia0"),
        ("3</dev/nvidia0<char 195:0>>(deleted)", "/dev/nvidia0"),
        ("3</dev/nvidia0 (deleted)>", "/dev/nvidia0"),
        ("3<char 195:7>", "/dev/nvidia7"),
        ("3<char 195:255>", CTL),
        ("3</proc/71/root/dev/nvidia0>", "/dev/nvidia0"),
        ("3</run/c/rootfs/dev/nvidia-caps/nvidia-cap1>", "/dev/nvidia-caps/nvidia-cap1"),
        ("3<anon_inode:[x]>", CTL),
        ("3", CTL),
    ],
)
def test_what_stands_behind_a_descriptor(printed: str, device: str, write: Write) -> None:
    """strace -y and -yy, of a container too; what it cannot name is what the log opened."""
    records, _ = read(write(f"{OPENED}\nioctl({printed}, 0xc00446c9, 0x7ffc) = 0\n"))
    assert records[1]["dev"] == device


def test_another_file_in_its_place(write: Write) -> None:
    records, _ = read(
        write(f"{OPENED}\nioctl(3</tmp/x>, 0xc00446c9, 0x7ffc) = 0\nioctl(3<char 1:3>, 0x5401, 0x7ffc) = 0\n")
    )
    assert [r.get("key") for r in records] == [None, "0x5401"]


@pytest.mark.parametrize(
    ("opened", "path"),
    [
        ('openat(3</dev>, "nvidia0", O_RDWR)', "/dev/nvidia0"),
        ('openat(AT_FDCWD</dev>, "nvidiactl", O_RDWR)', CTL),
        ('openat(AT_FDCWD, "/dev/../dev//nvidia0", O_RDWR)', "/dev/nvidia0"),
        (r'openat(AT_FDCWD, "\x2f\x64\x65\x76\x2f\x6e\x76\x69\x64\x69\x61\x30", O_RDWR)', "/dev/nvidia0"),
        ('openat2(AT_FDCWD, "/dev/nvidia0", {flags=O_RDWR, resolve=0}, 24)', "/dev/nvidia0"),
        ('openat(AT_FDCWD [u:r:t], "/dev/nvidia0" [u:r:d], O_RDWR)', "/dev/nvidia0"),
    ],
)
def test_paths_in_their_forms(opened: str, path: str, write: Write) -> None:
    records, _ = read(write(f"{opened} = 5\nioctl(5, 0xc00446c9, 0x7ffc) = 0\n"))
    assert [r.get("path") or r["dev"] for r in records] == [path, path]


def test_runsc_follows_copies_and_mappings(write: Write) -> None:
    task = "I0915 10:11:12.032901     221 strace.go:605] [   2:   7] my prog X "
    text = "\n".join(
        task + line
        for line in (
            "dup(0x3 /dev/nvidiactl) = 9 (0x9) (1µs)",
            "fcntl(0x3 /dev/nvidiactl, 0x406, 0x0) = 10 (0xa) (1µs)",
            "fcntl(0x3 /dev/nvidiactl, 0x3, 0x0) = 2 (0x2) (1µs)",
            "mmap(0x0, 0x1000, PROT_READ, MAP_SHARED, 0x4 /dev/nvidia0 (deleted), 0x2000) = 140000 (0x222e0) (1.5ms)",
            "mmap(0x0, 0x1000, PROT_READ, MAP_SHARED, 0x4 /dev/nvidia0, 0x0) = -1 errno=12 (cannot allocate memory) (1s)",
            "close(0x3 /dev/nvidiactl) = 0 (0x0) (1µs)",
            "close(0x5 /tmp/x) = 0 (0x0) (1µs)",
            "open(0x7f /dev/nvidia0, O_RDWR, 0o0) = -1 errno=13 (permission denied) (1µs)",
        )
    )
    records, source = read(write(text + "\n"))
    assert not source.problems.count
    assert [(r["k"], r["fd"], r["ret"], r.get("err")) for r in records] == [
        ("dup", 3, 9, None),
        ("dup", 3, 10, None),
        ("mmap", 4, 140000, None),
        ("mmap", 4, -1, 12),
        ("close", 3, 0, None),
        ("open", -1, -1, 13),
    ]
    mapped = records[2]
    assert (mapped["len"], mapped["off"], mapped["va"], mapped["dev"], mapped["d"]) == (
        4096,
        8192,
        140000,
        "/dev/nvidia0",
        1_500_000,
    )
    assert {(r["pid"], r["tid"]) for r in records} == {(2, 7)}
