"""Logs that people have: strace in its forms, nvproxy's debug lines, the ioctl sniffer's output; the era that their sizes tell."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvproxy_model.drivers import facts
from nvproxy_model.trace import format as fmt
from nvproxy_model.trace.lines import Problems, TraceError, split
from nvproxy_model.trace.logs.kinds import KINDS, Import
from nvproxy_model.trace.logs.prefixes import LINE_LIMIT, Line, texts
from nvproxy_model.trace.study.era import infer, sizes

Write = Callable[..., Path]


def read(path: Path, kind: str | None = None) -> tuple[list[dict[str, Any]], Import]:
    source = Import(path, kind=kind)
    return list(source), source


def calls(records: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(r["kind"], r["key"], r["req"], r.get("dev"), r.get("ret")) for r in records if r["k"] == "ioctl"]


CTL = "/dev/nvidiactl"
NEWEST = max(facts.load().versions, key=lambda name: tuple(map(int, name.split("."))))


@pytest.mark.parametrize(
    "request_text",
    [
        "0xc020462a",
        "3223340586",
        "_IOC(_IOC_READ|_IOC_WRITE, 0x46, 0x2a, 0x20)",
        "_IOC(_IOC_WRITE|_IOC_READ, 70, 42, 32)",
        "0xc020462a /* X */",
    ],
)
def test_a_request_in_its_forms(request_text: str, write: Write) -> None:
    text = f'openat(AT_FDCWD, "{CTL}", O_RDWR) = 13\nioctl(13, {request_text}, 0x7ffc) = 0\n'
    records, source = read(write(text))
    assert source.kind == "strace"
    assert calls(records) == [("fe", "0x2a", "0xc020462a", CTL, 0)]


# Lines as they stand in trackers: the names that they must get, and the request that stays another driver's.
TRACKER = f"""\
openat(AT_FDCWD, "{CTL}", O_RDWR) = 13
openat(AT_FDCWD, "/dev/dri/card0", O_RDWR) = 14
ioctl(13, _IOC(_IOC_READ|_IOC_WRITE, 0x46, 0xc9, 0x4), 0x7ff01) = 0
ioctl(13, _IOC(_IOC_READ|_IOC_WRITE, 0x46, 0x2a, 0x20), 0x7ff01) = 0
ioctl(13, _IOC(_IOC_READ|_IOC_WRITE, 0x46, 0x2b, 0x30), 0x7ff01) = 0
ioctl(13, _IOC(_IOC_READ|_IOC_WRITE, 0x46, 0x2b, 0x28), 0x7ff01) = -1 EINVAL (Invalid argument)
ioctl(13, _IOC(_IOC_READ|_IOC_WRITE, 0x46, 0xd2, 0x48), 0x7ff01) = 0
ioctl(20, 0x80084e19, 0x7ff01) = 0
ioctl(14, _IOC(_IOC_READ|_IOC_WRITE, 0x46, 0x2a, 0x20), 0x7ff01) = 0
ioctl(20, FBIOGET_VSCREENINFO, 0x7ff01) = 0
ioctl(20, 0x4600, 0x7ff01) = 0
ioctl(1, TCGETS, {{B38400 opost isig icanon echo ...}}) = 0
"""


def test_lines_from_trackers(write: Write) -> None:
    records, source = read(write(TRACKER))
    assert [(r["key"], r.get("err")) for r in records if r["k"] == "ioctl" and r["kind"] != "other"] == [
        ("0xc9", None),
        ("0x2a", None),
        ("0x2b", None),
        ("0x2b", 22),
        ("0xd2", None),
    ]
    assert not source.problems.count


def test_a_descriptor_that_the_log_never_opened(write: Write) -> None:
    """Only what can be no other driver's is taken: read and write, NVIDIA's letter, one of its escapes."""
    text = "ioctl(77, 0xc030462b, 0x7f) = 0\nioctl(78, 0xc0204501, 0x7f) = 0\nioctl(79, 0x1d, 0x7f) = 0\n"
    text += "ioctl(80, 0x4046462a, 0x7f) = 0\n"
    records, _ = read(write(text))
    assert calls(records) == [("fe", "0x2b", "0xc030462b", None, 0)]


FOLLOWED = f"""\
execve("./a", ["./a"], 0x7ffc /* 20 vars */) = 0
openat(AT_FDCWD, "{CTL}", O_RDWR|O_CLOEXEC) = 3
clone(child_stack=0x7f, flags=CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_SIGHAND|CLONE_THREAD, parent_tid=[101]) = 101
[pid   100] ioctl(3, _IOC(_IOC_READ|_IOC_WRITE, 0x46, 0x2a, 0x20) <unfinished ...>
[pid   101] openat(AT_FDCWD, "/dev/nvidia-uvm", O_RDWR) = 4
[pid   101] ioctl(4, 0x30000001 <unfinished ...>
[pid   100] <... ioctl resumed>, 0x7ffc) = 0 <0.000042>
[pid   101] <... ioctl resumed>, 0x7ffd) = 0
[pid   100] ioctl(4, _IOC(_IOC_NONE, 0, 0x25, 0), 0x7ffe) = 0
[pid   100] vfork( <unfinished ...>
[pid   102] ioctl(3, 0xc0104629, 0x7ffc) = 0
[pid   102] close(3) = 0
[pid   100] <... vfork resumed>) = 102
[pid   100] ioctl(3, 0xc0104629, 0x7ffc) = 0
[pid   101] ioctl(4, 0x30000002 <unfinished ...>
+++ killed by SIGKILL +++
"""


def test_following_interrupting_and_resuming(write: Write) -> None:
    records, source = read(write(FOLLOWED))
    assert not source.problems.count
    got = [(r["pid"], r["tid"], r["kind"], r["key"], r["dev"], r.get("ret")) for r in records if r["k"] == "ioctl"]
    assert got == [
        (100, 100, "fe", "0x2a", CTL, 0),
        (100, 101, "uvm", "0x30000001", "/dev/nvidia-uvm", 0),
        (100, 100, "uvm", "0x25", "/dev/nvidia-uvm", 0),
        (102, 102, "fe", "0x29", CTL, 0),
        (100, 100, "fe", "0x29", CTL, 0),
        (100, 101, "uvm", "0x30000002", "/dev/nvidia-uvm", None),
    ]
    assert records[-1]["fl"] == fmt.UNFINISHED
    assert next(r for r in records if r.get("d"))["d"] == 42000


@pytest.mark.parametrize(
    ("line", "nanoseconds"), [("12:00:01.500000 ", 1_500_000_000), ("1700000001.500000 ", 1_500_000_000)]
)
def test_time_stamps(line: str, nanoseconds: int, write: Write) -> None:
    first = line.replace("01.5", "00.0")
    records, _ = read(write(f'7 {first}openat(AT_FDCWD, "{CTL}", O_RDWR) = 3\n7 {line}ioctl(3, 0xc020462a, 0x1) = 0\n'))
    assert [(r["pid"], r["t"]) for r in records] == [(7, 0), (7, nanoseconds)]


def test_paths_that_strace_prints_with_descriptors(write: Write) -> None:
    records, _ = read(
        write("ioctl(5</dev/nvidia0<char 195:0>>, 0xc00446c9, 0x7) = 0\nioctl(6</dev/fb0>, 0xc020462a, 0x7) = 0\n")
    )
    assert calls(records) == [("fe", "0xc9", "0xc00446c9", "/dev/nvidia0", 0)]


def test_dup_and_close_move_the_device(write: Write) -> None:
    text = f'openat(AT_FDCWD, "{CTL}", O_RDWR) = 3\ndup2(3, 9) = 9\nfcntl(9, F_DUPFD_CLOEXEC, 20) = 20\n'
    text += "close(3) = 0\nioctl(3, 0x30000001, 1) = 0\nioctl(20, 0xc020462a, 1) = 0\n"
    records, _ = read(write(text))
    assert [r["k"] for r in records] == ["open", "dup", "dup", "close", "ioctl"]


def test_a_path_with_escapes(write: Write) -> None:
    records, _ = read(write('open("/dev/nvidia\\33[2J0", O_RDWR) = 3\n'))
    assert records[0]["path"] == "/dev/nvidia\x1b[2J0"


def test_a_resumed_call_without_its_begin_is_reported(write: Write) -> None:
    text = f'openat(AT_FDCWD, "{CTL}", O_RDWR) = 3\n[pid 5] <... ioctl resumed>, 0x7) = 0\n'
    _, source = read(write(text))
    assert source.problems.kept == [(2, "an ioctl is resumed that was not begun in this log")]


@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace")
def test_strace_itself(tmp_path: Path) -> None:
    """The tool's own text, with its interrupted calls: every call that the program says it made is in the log."""
    program = (
        "import fcntl, os, threading\n"
        "f = open('/dev/null')\n"
        "def go():\n"
        "    for i in range(20):\n"
        "        try: fcntl.ioctl(f, 0xc020462a, bytes(32))\n"
        "        except OSError: pass\n"
        "threads = [threading.Thread(target=go) for _ in range(3)]\n"
        "[t.start() for t in threads]; go(); [t.join() for t in threads]\n"
        "if os.fork() == 0: go(); os._exit(0)\n"
        "os.wait()\n"
    )
    log = tmp_path / "log"
    command = [
        "strace",
        "-f",
        "-o",
        log,
        "-e",
        "trace=ioctl,openat,close,clone,clone3,fork,vfork",
        sys.executable,
        "-c",
        program,
    ]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("strace may not trace here")
    # The device is /dev/null under another name.
    text = log.read_text().replace('"/dev/null"', f'"{CTL}"')
    (tmp_path / "renamed").write_text(text)
    records, source = read(tmp_path / "renamed")
    assert source.problems.count == 0
    mine = [r for r in records if r["k"] == "ioctl" and r["req"] == "0xc020462a"]
    assert len(mine) == 100
    assert all(r["dev"] == CTL and r["err"] == 25 for r in mine)
    assert len({r["pid"] for r in mine}) == 2
    assert len({r["tid"] for r in mine}) == 5


SANDBOX = """\
D0702 03:51:57.1 1 strace.go:567] [   1:   7] python3 E ioctl(0x4 /dev/nvidiactl, 0xc028462b, 0x7ed0)
D0702 03:51:57.1 1 frontend.go:224] [   1:   7] nvproxy: frontend ioctl: nr = 43 = 0x2b, argSize = 40
D0702 03:51:57.1 1 frontend.go:1224] [   1:   7] nvproxy: allocation class 0x000000f8
W0702 03:51:57.1 1 frontend.go:1240] [   1:   7] nvproxy: handler is undefined for allocation class 0x000000f8
D0702 03:51:57.1 1 frontend.go:224] [   1:   8] nvproxy: frontend ioctl: nr = 42 = 0x2a, argSize = 32
D0702 03:51:57.1 1 frontend.go:887] [   1:   8] nvproxy: control command 0x20800102, object 0xcaf
D0702 03:51:57.1 1 frontend.go:224] [   1:   9] nvproxy: frontend ioctl: nr = 41 = 0x29, argSize = 16
D0702 03:51:57.1 1 frontend.go:224] [   1:   8] nvproxy: frontend ioctl: nr = 42 = 0x2a, argSize = 32
D0702 03:51:57.1 1 frontend.go:887] [   1:   8] nvproxy: control command 0x2080206f, object 0xcaf
D0702 03:51:57.1 1 unsafe.go:32] [   1:   8] nvproxy: frontend ioctl failed: status=0x56
D0702 03:51:57.1 1 frontend.go:224] [   1:   8] nvproxy: frontend ioctl: nr = 42 = 0x2a, argSize = 32
D0702 03:51:57.1 1 frontend.go:887] [   1:   8] nvproxy: control command 0x20801230, object 0xcaf
W0702 03:51:57.1 1 frontend.go:927] [   1:   8] nvproxy: missing capability for control command 0x20801230 (paramsSize=20)
D0702 03:51:57.1 1 uvm.go:133] [   1:   8] nvproxy: uvm ioctl 29 = 0x1d
W0702 03:51:57.1 1 uvm.go:146] [   1:   8] nvproxy: handler is undefined for uvm ioctl 29 = 0x1d
W0702 03:51:57.1 1 frontend.go:251] [   1:   8] nvproxy: handler is undefined for frontend ioctl 82 == 0x52
(argSize=16, cmd=0xc0104652)
"""


def test_nvproxy_s_debug_log(write: Write) -> None:
    records, source = read(write(SANDBOX))
    assert source.kind == "nvproxy-log"
    got = {(r["kind"], r["key"]): (r.get("refused"), r.get("status"), r.get("err")) for r in records}
    assert got == {
        ("alloc", "0xf8"): ("handler is undefined", None, None),
        ("control", "0x20800102"): (None, None, None),
        ("control", "0x2080206f"): (None, "0x56", None),
        ("control", "0x20801230"): ("missing capability", None, None),
        ("uvm", "0x1d"): ("handler is undefined", None, None),
        ("fe", "0x29"): (None, None, None),
        ("fe", "0x52"): ("handler is undefined", None, None),
    }
    alloc = next(r for r in records if r["kind"] == "alloc")
    assert (alloc["fd"], alloc["dev"], alloc["req"]) == (4, CTL, "0xc028462b")
    assert len(records) == len(got)


def test_the_pair_of_lines_of_a_tracker(write: Write) -> None:
    """A 40-byte allocation: a driver of branch 530 or before."""
    records, _ = read(write("ioctl(0x4 /dev/nvidiactl, 0xc028462b, 0x7ed0)\nnvproxy: allocation class 0x000000f8\n"))
    assert calls(records) == [("alloc", "0xf8", "0xc028462b", CTL, None)]
    assert (records[0]["pid"], records[0]["tid"]) == (0, 0)
    era = infer([(0x2B, 0x28)])
    assert era.branches[1].startswith("530.")


SNIFFER = """\
============== Unsupported ioctls ==============
Frontend: None
Control:
\tControl ioctl: request=0xc020462a [nr=NV_ESC_RM_CONTROL, cmd=0x20810110] => ret=0
\tAlloc ioctl: request=0xc030462b [nr=NV_ESC_RM_ALLOC, hClass=0xc640] => ret=0 status=0x22
\tUVM ioctl: request=0x1d [nr=0x1d] => ret=0
\tFrontend ioctl: request=0xc00846d6 [nr=0xd6, size=8] => ret=0
\tUnknown ioctl: path=/dev/nvidia-modeset request=0xc0106d00 [nr=0x0] => ret=-1
\tControl ioctl: request=0xc02046
"""


def test_the_sniffer_s_output(write: Write) -> None:
    records, source = read(write(SNIFFER))
    assert source.kind == "ioctl-sniffer"
    assert [(r["kind"], r["key"], r.get("status")) for r in records] == [
        ("control", "0x20810110", None),
        ("alloc", "0xc640", "0x22"),
        ("uvm", "0x1d", None),
        ("fe", "0xd6", None),
        ("other", "0xc0106d00", None),
    ]
    assert records[-1] == {
        "k": "ioctl", "t": 0, "pid": 0, "tid": 0, "ret": -1, "req": "0xc0106d00", "kind": "other", "key": "0xc0106d00",
        "dev": "/dev/nvidia-modeset",
    }  # fmt: skip
    assert ["dev" in record for record in records[:-1]] == [False] * 4
    assert source.problems.kept == [(9, "a sniffer line that is not whole")]
    nameless = "Control ioctl: request=0xc020462a [nr=NV_ESC_RM_CONTROL, size=32] => ret=0\n"
    records, source = read(write(nameless))
    assert (records, source.problems.kept) == ([], [(1, "a sniffer line that is not whole")])


def test_a_text_of_another_kind(write: Write) -> None:
    with pytest.raises(TraceError, match="no line of strace"):
        read(write("hello\nworld\n"))


@pytest.mark.parametrize(
    ("requests", "first", "last"),
    [
        ([(0x2B, 0x28)], "515.43.04", "530.41.03"),
        ([(0x2B, 0x30)], "535.43.02", NEWEST),
        ([(0x57, 0x38)], "515.43.04", "575.64.05"),
        ([(0x57, 0x40)], "580.65.06", NEWEST),
        ([(0x58, 0x28)], "515.43.04", "545.29.06"),
        ([(0x58, 0x30)], "550.40.07", NEWEST),
        ([(0xD9, 2600), (0x2B, 0x30)], "535.43.02", "565.77"),
        ([(0xD9, 2608)], "570.86.15", NEWEST),
    ],
)
def test_the_era_from_sizes(requests: list[tuple[int, int]], first: str, last: str) -> None:
    era = infer(requests)
    assert era.branches == (first, last)
    assert f"{first} to {last}" in str(era)


def test_the_era_is_ambiguous_or_unknown_where_it_is() -> None:
    assert "ambiguous" in str(infer([(0x2A, 0x20)]))
    assert "unknown" in str(infer([]))
    assert "unknown" in str(infer([(0x2B, 0x31)]))
    assert infer([(0x2B, 0x31)]).versions == ()


def test_the_era_agrees_with_each_release_s_own_sizes() -> None:
    recorded = facts.load()
    table = sizes()
    for name in recorded.versions[::12]:
        release = recorded.release(name)
        requests = [
            (0x2B, release.structs["NVOS64_PARAMETERS"].size),
            (0x57, release.structs["NVOS46_PARAMETERS"].size),
        ]
        assert name in infer(requests).versions
        assert all(name in table[number][size] for number, size in requests)


def lines_of(text: list[str]) -> Iterator[Line]:
    return texts(split(["\n".join(text).encode("utf-8", "replace")], Problems(), LINE_LIMIT))


_PIECES = st.sampled_from(
    [
        *TRACKER.splitlines(),
        *FOLLOWED.splitlines(),
        *SANDBOX.splitlines(),
        *SNIFFER.splitlines(),
        "ioctl(",
        "= 0",
        "<unfinished ...>",
        "[pid 99999999999]",
    ]
)


@st.composite
def _lines(draw: st.DrawFn) -> str:
    """Real lines cut, joined and with characters put in."""
    text = draw(_PIECES) + draw(st.sampled_from(["", " "])) + draw(_PIECES | st.text(max_size=12))
    cut = draw(st.integers(0, len(text)))
    return text[:cut] + draw(st.text(max_size=3)) + text[cut + draw(st.integers(0, 5)) :]


@pytest.mark.parametrize("name", KINDS)
@given(lines=st.lists(_PIECES | _lines() | st.text(max_size=60), max_size=12))
def test_any_lines_give_records_or_problems(name: str, lines: list[str]) -> None:
    """Every record is one of the format, and can be written."""
    takes, records = KINDS[name]
    for line in lines_of(lines):
        takes(line)
    for obj in records(lines_of(lines), Problems()):
        rec = fmt.record(orjson.loads(orjson.dumps(obj)), 1)
        assert rec.k in fmt.KINDS
