"""Programs that make recording hard. Each must behave as it does alone, and a trace that lacks a call must say so."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvproxy_model.tools.trace import main
from nvproxy_model.trace.reader import Reader
from nvproxy_model.trace.record import preload
from nvproxy_model.trace.record.preload import Outcome, RecordError
from tests import TRACES
from tests.effort import sampled

DRIVER = "580.126.20"


class Attack:
    """Runs the program alone and recorded, and counts what the fake driver counted."""

    def __init__(self, programs: Any, folder: Path) -> None:
        self.programs = programs
        self.recorder = programs.recorder
        self.fake = programs.fake
        self.program = programs.attack()
        self.out = folder / "run.jsonl"
        self.log = folder / "log"
        self.folder = folder
        self.before: tuple[str, ...] = ()

    def calls(self) -> int:
        return int.from_bytes(self.log.read_bytes(), sys.byteorder)

    def command(self, args: tuple[str, ...]) -> list[str]:
        return [*self.before, str(self.program), *args]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "LD_PRELOAD": str(self.fake), "FAKE_DRIVER_LOG": str(self.log)}

    def alone(self, *args: str) -> tuple[int, str]:
        self.log.write_bytes(bytes(8))
        self.log.chmod(0o666)
        done = subprocess.run(
            self.command(args), env=self.environment(), capture_output=True, text=True, check=False, timeout=60
        )
        return preload.shell_status(done.returncode), done.stdout + done.stderr

    def recorded(self, *args: str) -> tuple[Outcome, str]:
        self.log.write_bytes(bytes(8))
        self.out.unlink(missing_ok=True)
        saved = os.dup(1), os.dup(2)
        with (self.folder / "stdout").open("w+b") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            try:
                outcome = preload.record(
                    self.command(args),
                    self.out,
                    driver=DRIVER,
                    recorder=self.recorder,
                    environment=self.environment(),
                )
            finally:
                for number, fd in zip((1, 2), saved, strict=True):
                    os.dup2(fd, number)
                    os.close(fd)
        return outcome, (self.folder / "stdout").read_text()

    def same(self, *args: str) -> Outcome:
        """Alone and recorded it prints the same and ends the same."""
        plain = self.alone(*args)
        outcome, text = self.recorded(*args)
        assert (outcome.status, text) == plain
        return outcome

    def whole(self, *args: str) -> Outcome:
        """Besides, every call is in the trace."""
        outcome = self.same(*args)
        reader = Reader(self.out)
        assert sum(rec.k == "ioctl" for rec in reader) == outcome.seen.ioctls == self.calls()
        assert reader.complete, reader.problems.kept
        return outcome


@pytest.fixture
def attack(programs: Any, tmp_path: Path) -> Attack:
    return Attack(programs, tmp_path)


def not_root() -> bool:
    return os.geteuid() != 0


@pytest.mark.parametrize(
    "args",
    [
        ("fsize", "100"),
        ("fsize_ign", "100"),
        ("as", "200"),
        ("as", "3000"),
        ("nofile", "20"),
        ("drop", "20"),
        ("unmap",),
        ("unmap_argument",),
        ("unmap_race", "20000"),
        ("threads", "50"),
        ("terminals", "300"),
        ("forks", "40"),
        ("large", "3"),
        ("bad_pointers",),
        ("bytes", "2"),
    ],
    ids=" ".join,
)
def test_nothing_changes_and_nothing_is_lost(args: tuple[str, ...], attack: Attack) -> None:
    if args[0] == "drop" and not_root():
        pytest.skip("only root can drop its rights")
    attack.whole(*args)


@pytest.mark.parametrize(
    "args",
    [
        *(
            pytest.param(args, marks=pytest.mark.slow)
            for args in (("plain", "300"), ("drop", "20"), ("unmap",), ("unmap_argument",), ("forks", "6"), ("large", "2"))
        ),
        ("threads", "20"),
    ],
    ids=" ".join,
)
def test_under_asan_and_ubsan(args: tuple[str, ...], attack: Attack, monkeypatch: pytest.MonkeyPatch) -> None:
    found = subprocess.run(
        [attack.programs.cc, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not os.path.isabs(found):
        pytest.skip("no libasan")
    if args[0] == "drop" and not_root():
        pytest.skip("only root can drop its rights")
    sanitizers = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    attack.recorder = attack.programs.shared("librecorder-asan.so", *sanitizers)
    # libasan must come first of all, and the launcher puts the recorder there.
    asan = Path(found).resolve()
    monkeypatch.setattr(preload, "_preload", lambda own, present: f"{asan}:{own}:{present}")
    monkeypatch.setenv("ASAN_OPTIONS", "detect_leaks=0:abort_on_error=1:verify_asan_link_order=0")
    attack.whole(*args)


@pytest.mark.parametrize(("milliseconds", "lost"), [("50", 0), ("0", 3)], ids=["goes on", "does not"])
def test_threads_that_stop_in_the_middle_of_a_frame(
    milliseconds: str, lost: int, attack: Attack, capfd: pytest.CaptureFixture[str]
) -> None:
    """They hold every window of the spool. A call waits for one, but not for ever, and what it loses is counted."""
    outcome, text = attack.recorded("stalled", "3", milliseconds)
    if text.endswith("alive 1\n"):
        pytest.skip("no user notification from seccomp here")
    assert (outcome.status, text) == (0, "fd 3\nalive 0\n")
    reader = Reader(attack.out)
    calls = [rec for rec in reader if rec.k == "ioctl"]
    assert len(calls) == outcome.seen.ioctls == attack.calls() - lost == 7 - lost
    assert all(call.ret == 0 for call in calls)  # those that stopped are whole
    assert reader.complete == (not lost)
    assert [text for _, text in reader.problems.kept] == [
        f"{lost} calls could not be written (no room left, or none could be mapped)"
    ] * bool(lost)
    assert main(["check", str(attack.out)]) == (2 if lost else 0)
    assert ("3 calls could not be written" in capfd.readouterr().err) == bool(lost)


def test_a_program_elsewhere_is_recorded_on(attack: Attack, tmp_path: Path) -> None:
    if not_root():
        pytest.skip("only root can chroot")
    attack.whole("chroot", str(tmp_path))


def test_the_program_s_files_get_nothing(attack: Attack, tmp_path: Path) -> None:
    """Another thread closes and takes every high number while the call is in the driver."""
    mine = tmp_path / "mine"
    attack.whole("steal", str(mine))
    assert mine.read_bytes() == b""
    assert attack.recorded("steal", str(mine))[1].endswith("bytes 0\n")


def test_memory_that_goes_away_is_said(attack: Attack) -> None:
    for scenario in ("unmap", "unmap_argument"):
        attack.whole(scenario)
        (call,) = (rec for rec in Reader(attack.out) if rec.k == "ioctl")
        assert call.raw["fault"] is True
        assert call.ret == 0
    assert call.status is None


STARTS = [
    "execv",
    "execve",
    "execvp",
    "execvpe",
    "execl",
    "execlp",
    "execle",
    "fexecve",
    "execveat",
    "thread",
    "posix_spawn",
    "posix_spawnp",
    "vfork",
]


@pytest.mark.parametrize("how", [*STARTS, "system", "popen", "system_bare", "execle_bare"])
def test_a_program_that_does_not_speak_is_named(how: str, attack: Attack) -> None:
    static = attack.programs.static()
    if static is None:
        pytest.skip("no static libc")
    outcome = attack.same("start", how, str(static))
    (path,) = (path for _, path in outcome.seen.unseen)
    assert path == {"fexecve": "(by descriptor)", "system_bare": f"exec {static}"}.get(how, str(static))
    assert outcome.problems.count == 0


@pytest.mark.parametrize("how", sampled([*STARTS, "system", "popen"], every=3))
def test_a_program_that_speaks_is_not(how: str, attack: Attack) -> None:
    outcome = attack.whole("start", how, "/bin/true")
    assert outcome.seen.unseen == []
    assert sum(rec.k == "process" and rec.raw["how"] == "exec" for rec in Reader(attack.out)) == (
        3 if how in ("system", "popen") else 2
    )


def test_a_program_without_the_right_to_the_spool_is_a_loss(attack: Attack) -> None:
    if not_root():
        pytest.skip("only root can drop its rights")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # anybody may load the libraries: only the spool is ours
        attack.recorder = Path(shutil.copy(attack.recorder, folder))
        attack.fake = Path(shutil.copy(attack.fake, folder))
        outcome = attack.same("drop_exec", "/bin/true")
    assert [path for _, path in outcome.seen.unseen] == ["/bin/true"]
    assert "without the right to write the spool" in outcome.problems.kept[0][1]
    assert not list_complete(attack.out)


def list_complete(path: Path) -> bool:
    reader = Reader(path)
    list(reader)
    return reader.complete


def test_a_program_that_loads_no_recorder_leaves_no_whole_trace(attack: Attack) -> None:
    static = attack.programs.static()
    if static is None:
        pytest.skip("no static libc")
    attack.program = static
    outcome = attack.same("raw", "3")
    assert outcome.problems.kept == [
        (0, "the program itself did not load the recorder: its calls are not in the trace")
    ]
    assert not list_complete(attack.out)


@pytest.fixture
def small_disk(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command where its first argument is a folder of that many KiB."""
    root = tmp_path / "disk"
    root.mkdir()
    script = f'mount -t tmpfs -o size="$1"k none {root} && shift && exec "$@"'
    base = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh"]
    with contextlib.suppress(OSError):
        if not subprocess.run([*base, "64", "true"], capture_output=True, check=False).returncode:
            env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
            return lambda size, *command: subprocess.run(
                [*base, str(size), *command], capture_output=True, text=True, check=False, env=env, timeout=120
            )
    pytest.skip("no mount namespace here")


FULL = """
import os, sys
from pathlib import Path
from nvproxy_model.trace.record import preload
recorder, fake, log, out, *command = sys.argv[1:]
env = {**os.environ, "LD_PRELOAD": fake, "FAKE_DRIVER_LOG": log}
try:
    outcome = preload.record(command, Path(out), driver="580.126.20", recorder=Path(recorder), environment=env)
except preload.RecordError as error:
    print(error)
    os.system(f"cp {out}.spool {log}.spool")
"""


def test_a_full_disk_is_counted_and_every_reader_says_so(
    attack: Attack, small_disk: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    attack.log.write_bytes(bytes(8))
    arguments = (attack.recorder, attack.fake, attack.log, tmp_path / "disk" / "o.jsonl", attack.program)
    done = small_disk(900, sys.executable, "-c", FULL, *map(str, arguments), "plain", "9000")
    lines = done.stdout.splitlines()
    assert lines[:2] == ["fd 3", "alive 0"], done.stderr
    assert "No space left on device; what was recorded is in" in lines[2]
    assert attack.calls() == 9000
    out = str(attack.out)
    assert main(["import", f"{attack.log}.spool", "-o", out, "--driver", DRIVER]) == 2
    reader = Reader(out)
    found = sum(rec.k == "ioctl" for rec in reader)
    assert 0 < found < 9000
    capfd.readouterr()
    other = str(TRACES / "nvml-events.jsonl.gz")
    for command in (
        ["check"],
        ["decode"],
        ["stats"],
        ["replay"],
        ["census"],
        ["compare", other],
        ["scrub", "-o", f"{out}.s"],
    ):
        assert main([command[0], out, *command[1:]]) == 2, command
        assert f"{9000 - found} calls could not be written" in capfd.readouterr().err, command
    assert not list_complete(Path(f"{out}.s"))


def test_a_disk_without_room_for_a_spool(attack: Attack, small_disk: Any, tmp_path: Path) -> None:
    done = small_disk(64, sys.executable, "-c", FULL, "/r", "/f", "/l", f"{tmp_path}/disk/o.jsonl", "true")
    assert "was not built" in done.stdout
    arguments = (attack.programs.recorder, attack.programs.fake, attack.log, f"{tmp_path}/disk/o.jsonl", "true")
    done = small_disk(64, sys.executable, "-c", FULL, *map(str, arguments))
    assert "no spool can be kept there: No space left on device" in done.stdout


def test_the_launcher_killed_and_the_spool_imported(attack: Attack, tmp_path: Path) -> None:
    """What the program did after it is in the spool as far as room was allocated, and the rest is counted."""
    attack.log.write_bytes(bytes(8))
    script = FULL.split("try:", maxsplit=1)[0] + (
        "import signal\n"
        "preload.passed_on = lambda send: os.kill(os.getpid(), signal.SIGKILL)\n"
        'preload.record(command, Path(out), driver="580.126.20", recorder=Path(recorder), environment=env)\n'
    )
    arguments = (
        attack.programs.recorder,
        attack.programs.fake,
        attack.log,
        attack.out,
        attack.program,
        "plain",
        "20000",
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.splitlines() == ["fd 3", "alive 0"], done.stderr
    spool = attack.out.with_name(attack.out.name + ".spool")
    assert main(["import", str(spool), "-o", str(attack.out)]) == 2
    reader = Reader(attack.out)
    found = sum(rec.k == "ioctl" for rec in reader)
    assert 0 < found < 20000 == attack.calls()
    assert f"{20000 - found} calls could not be written" in str(reader.problems.kept)


def test_bytes_that_are_not_text(attack: Attack, tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff\x1b")
    attack.before = ("sh", "-c", "exit 5", name)
    outcome = attack.same()
    assert outcome.status == 5
    reader = Reader(attack.out)
    list(reader)
    assert reader.complete
    assert reader.header.command[3] == "\\xff\x1b"
    attack.before = ()
    attack.whole("bytes", "1")
    assert [rec.dev for rec in Reader(attack.out) if rec.k == "open"][1] == "/dev/nvidia\\xff\x1b[31m"


def test_a_spool_in_the_way_and_a_folder_that_is_not_there(attack: Attack, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="No such file"):
        preload.record(["true"], tmp_path / "absent" / "o", recorder=attack.programs.recorder)


def test_a_fifo_gets_the_trace(attack: Attack, tmp_path: Path) -> None:
    attack.out = tmp_path / "fifo"
    os.mkfifo(attack.out)
    attack.log.write_bytes(bytes(8))
    with subprocess.Popen(["cat", attack.out], stdout=subprocess.PIPE, text=True) as reader:
        preload.record(
            attack.command(("plain", "3")), attack.out, recorder=attack.recorder, environment=attack.environment()
        )
        assert reader.stdout is not None
        assert reader.stdout.read().count('"k":"ioctl"') == 3
    assert not list(tmp_path.glob("*.spool"))


@given(st.binary(max_size=200), st.booleans())
def test_any_file_may_be_asked_to_run(data: bytes, elf: bool) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"\x7fELF" * elf + data)
        file.flush()
        os.chmod(file.name, 0o700)
        assert preload.hides(file.name) in (None, "static")
