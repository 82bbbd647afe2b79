"""The recorder by seccomp notification: what a preload cannot see, it sees; the program is not changed."""

from __future__ import annotations

import errno
import os
import platform
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvproxy_model.kernel import SYSCALLS
from nvproxy_model.trace import format as fmt
from nvproxy_model.trace.reader import Reader
from nvproxy_model.trace.record import notify
from nvproxy_model.trace.record.notify import NotifyError
from tests.effort import sampled

Nodes = Callable[..., subprocess.CompletedProcess[str]]

DRIVE = """
import sys
from pathlib import Path
from nvproxy_model.trace.record.seccomp import record
outcome = record(sys.argv[3:], Path(sys.argv[1]), driver="580.126.20", values=sys.argv[2] == "values")
print(f"\\n{outcome.status} {outcome.seen.ioctls}")
"""


@pytest.fixture(scope="module", autouse=True)
def _available() -> None:
    """Some sandboxes and kernels allow no user notification."""
    try:
        _, listener, wait = notify.spawn(["true"], ["close"])
    except NotifyError as error:
        pytest.skip(str(error))
    with listener:
        for request in listener:
            listener.proceed(request)
    assert wait() == 0


@pytest.fixture
def watch(programs: Any, with_nodes: Nodes, tmp_path: Path) -> Callable[..., tuple[int, list[fmt.Record]]]:
    def run(*args: str, program: Path | None = None, values: str = "values") -> tuple[int, list[fmt.Record]]:
        out = tmp_path / "run.jsonl"
        done = with_nodes(sys.executable, "-c", DRIVE, str(out), values, str(program or programs.program), *args)
        assert done.returncode == 0, done.stderr
        status, ioctls = done.stdout.split()[-2:]
        reader = Reader(out)
        records = list(reader)
        assert reader.complete
        assert sum(rec.k == "ioctl" for rec in records) == int(ioctls)
        return int(status), records

    return run


@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
def test_raw_and_static_calls_are_seen(static: bool, watch: Any, programs: Any) -> None:
    program = programs.static() if static else programs.program
    if program is None:
        pytest.skip("no static libc")
    status, records = watch("raw", "7", program=program)
    assert status == 3
    calls = [rec for rec in records if rec.k == "ioctl"]
    assert len(calls) == 7
    assert {(rec.kind, rec.key, rec.ret, rec.dev) for rec in calls} == {("control", 0x20800102, None, "/dev/nvidiactl")}
    assert all(rec.top0 and rec.top1 is None for rec in calls)
    assert [rec.dev for rec in records if rec.k == "open"] == ["/dev/nvidiactl"]


def test_the_arguments_before_each_call(watch: Any) -> None:
    _, records = watch("each")
    calls = [rec for rec in records if rec.k == "ioctl"]
    assert [(rec.kind, rec.key) for rec in calls] == [
        ("control", 0x20800FFE),
        ("control", 0x101),
        ("alloc", 0x80),
        ("fe", 0x63),
        ("fe", 0x2A),
        ("control", 0x20800102),
        ("uvm", 0x30000001),
        ("control", 0x20800102),
    ]
    assert [len(rec.par0 or b"") for rec in calls] == [8, 40, 56, 0, 0, 0, 0, 8]
    assert [offset for offset, _, _ in calls[1].bufs] == [8, 16, 24]
    assert calls[4].raw["fault"] is True
    _, records = watch("each", values="none")
    assert all(rec.top0 is rec.par0 is None for rec in records if rec.k == "ioctl")


def test_threads_forks_and_execs_are_told_apart(watch: Any) -> None:
    _, records = watch("threads", "25")
    assert set(Counter(rec.tid for rec in records if rec.k == "ioctl").values()) == {25}
    assert len({rec.pid for rec in records}) == 1
    _, records = watch("fork", "5")
    assert Counter(Counter(rec.pid for rec in records if rec.k == "ioctl").values()) == {5: 5}
    _, records = watch("exec")
    assert sum(rec.k == "ioctl" for rec in records) == 3
    assert sum(rec.k == "exec" for rec in records) == 2


def test_a_program_that_is_killed_ends_the_watch(watch: Any) -> None:
    status, records = watch("kill", "9")
    assert status == 137
    assert sum(rec.k == "ioctl" for rec in records) == 9


def test_both_recorders_agree(watch: Any, programs: Any, with_nodes: Nodes, tmp_path: Path) -> None:
    """The same calls, in number and kind, from both sides."""
    from tests.trace.record.test_trace_recorder import DRIVE as PRELOADED

    _, watched = watch("fork", "12")
    out = tmp_path / "preloaded.jsonl"
    done = with_nodes(
        sys.executable,
        "-c",
        PRELOADED,
        str(programs.recorder),
        str(programs.fake),
        str(out),
        str(programs.program),
        "fork",
        "12",
    )
    assert done.returncode == 0, done.stderr

    def counted(records: list[fmt.Record]) -> Counter[tuple[str, int, bytes | None]]:
        return Counter((rec.kind, rec.key, rec.par0) for rec in records if rec.k == "ioctl")

    assert counted(watched) == counted(list(Reader(out)))


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    pid, listener, wait = notify.spawn([str(tmp_path / "absent")], ["execve"])
    with listener:
        for request in listener:
            assert request.pid == pid
            listener.proceed(request)
    with pytest.raises(OSError, match="No such file") as caught:
        wait()
    assert caught.value.errno == errno.ENOENT


def test_exit_statuses_are_the_program_s() -> None:
    for text, code in (("exit 7", 7), ("kill -9 $$", -9)):
        _, listener, wait = notify.spawn(["sh", "-c", text], ["close"])
        with listener:
            for request in listener:
                listener.proceed(request)
        assert wait() == code


@pytest.mark.parametrize("machine", SYSCALLS)
def test_system_call_numbers_are_the_compiler_s(machine: str, programs: Any, tmp_path: Path) -> None:
    if machine != platform.machine():
        pytest.skip("another machine's numbers")
    names = sorted(SYSCALLS[machine])
    source = tmp_path / "n.c"
    source.write_text("#include <sys/syscall.h>\n" + "".join(f"X_{name} = SYS_{name}\n" for name in names))
    text = subprocess.run([programs.cc, "-E", "-P", source], capture_output=True, text=True, check=True).stdout
    values = dict(re.findall(r"X_(\w+)\s*=\s*(\d+)", text))
    assert {name: int(values[name]) for name in names} == dict(SYSCALLS[machine])


DISK = """
import os, resource, sys
from pathlib import Path
from nvproxy_model.trace.record import seccomp
how, out, *command = sys.argv[1:]
if how == "fsize":
    resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))
if how == "broken":
    count = 0
    def look(self, request, real=seccomp._Recorder.look):
        global count
        count += 1
        if count % 3 == 0:
            raise ValueError("an accident \\x1b")
        real(self, request)
    seccomp._Recorder.look = look
outcome = seccomp.record(command, Path(out), driver="580.126.20")
print("\\n", outcome.status, outcome.seen.ioctls, outcome.problems.kept)
"""


@pytest.mark.parametrize("how", ["fsize", "full", "broken"])
def test_it_goes_on_answering(how: str, with_nodes: Nodes, programs: Any, tmp_path: Path) -> None:
    """A full disk, a limit on file sizes, an exception: the program notices nothing, and the trace says what it lacks."""
    out = tmp_path / "run.jsonl"
    command = [sys.executable, "-c", DISK, how, str(out), str(programs.attack()), "plain", "400"]
    if how == "full":
        (tmp_path / "disk").mkdir()
        out = tmp_path / "disk" / "run.jsonl"
        kept = tmp_path / "run.jsonl"
        command[4] = str(out)
        quoted = " ".join(f"'{word}'" for word in command[3:])
        script = tmp_path / "disk.py"
        script.write_text(DISK)
        shell = (
            f"mount -t tmpfs -o size=64k none {tmp_path}/disk && {sys.executable} {script} {quoted}; cp {out} {kept}"
        )
        done = with_nodes("sh", "-c", shell)
        out = kept
    else:
        done = with_nodes(*command)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["fd 3", "alive -22"], done.stderr  # EINVAL: the nodes are other devices
    status, ioctls, problems = lines[3].split(" ", 3)[1:]
    assert status == "0"
    reader = Reader(out)
    found = sum(rec.k == "ioctl" for rec in reader)
    assert not reader.complete
    assert 0 < found <= int(ioctls) < 400
    if how == "broken":
        assert found == int(ioctls)
        assert "could not be recorded: ValueError: an accident \\\\x1b" in problems
        assert reader.problems.count == 11  # ten of them, and their number
    else:
        assert {"fsize": "File too large", "full": "No space left on device"}[how] in problems
        assert (
            f"{400 - int(ioctls)} calls could not be recorded" in problems or "calls could not be recorded" in problems
        )


def test_after_an_exec_by_another_thread_the_arguments_are_the_new_program_s(
    with_nodes: Nodes, programs: Any, tmp_path: Path
) -> None:
    out = tmp_path / "run.jsonl"
    runner = tmp_path / "runner"
    runner.write_text(f"#!/bin/sh\nexec {programs.program} calls 5\n")
    runner.chmod(0o755)
    command = (str(programs.attack()), "start", "thread", str(runner))
    done = with_nodes(sys.executable, "-c", DRIVE, str(out), "values", *command)
    assert done.returncode == 0, done.stderr
    calls = [rec for rec in Reader(out) if rec.k == "ioctl"]
    assert [(rec.kind, rec.key, len(rec.par0 or b"")) for rec in calls] == [("control", 0x20800102, 64)] * 5
    assert [rec.dev for rec in Reader(out) if rec.k == "open"] == ["/dev/nvidiactl"] * 2


def test_bytes_that_are_not_text(with_nodes: Nodes, programs: Any, tmp_path: Path) -> None:
    out = tmp_path / "run.jsonl"
    name = os.fsdecode(b"\xff")
    command = (str(programs.attack()), "bytes", "3", name)
    done = with_nodes(sys.executable, "-c", DRIVE, str(out), "values", *command)
    assert done.returncode == 0, done.stderr
    reader = Reader(out)
    records = list(reader)
    assert reader.complete
    assert reader.header.command[-1] == "\\xff"
    assert next(rec.raw["command"][-1] for rec in records if rec.k == "process") == "\\xff"
    assert [rec.dev for rec in records if rec.k == "open"][1] == "/dev/nvidia\\xff\x1b[31m"
    assert sum(rec.k == "ioctl" for rec in records) == 3


@pytest.mark.parametrize("ending", sampled(["jsonl.gz", "jsonl", "jsonl.zst"], every=3))
def test_a_killed_supervisor_leaves_what_it_had(ending: str, with_nodes: Nodes, programs: Any, tmp_path: Path) -> None:
    out = tmp_path / f"run.{ending}"
    slow = f"for i in 1 2 3 4 5 6 7 8 9; do {programs.program} calls 20; sleep 0.1; done; kill -9 $PPID"
    with_nodes(sys.executable, "-c", DRIVE, str(out), "values", "sh", "-c", slow)
    reader = Reader(out)
    assert sum(rec.k == "ioctl" for rec in reader) >= 40
    assert not reader.complete
