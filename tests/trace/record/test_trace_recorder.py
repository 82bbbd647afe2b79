"""The preloaded recorder on programs over a fake driver: threads, fork, exec, vfork, sudden death; nothing
changes for the program.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from nvproxy_model.trace import format as fmt
from nvproxy_model.trace.decode.catalog import Catalog
from nvproxy_model.trace.format import UNFINISHED
from nvproxy_model.trace.reader import Problems, Reader
from nvproxy_model.trace.record import CANNOT_SEE, spool, table
from nvproxy_model.trace.record import preload as launcher
from nvproxy_model.trace.record.mapped import Keeper, keeping
from nvproxy_model.trace.record.preload import Outcome, RecordError, hides

pytestmark = pytest.mark.usefixtures("programs")

Run = tuple[Outcome, list[fmt.Record], str, int]


class Recorder:
    """Runs a program under the recorder, and counts what the fake driver counted."""

    def __init__(self, programs: Any, folder: Path) -> None:
        self.programs = programs
        self.folder = folder
        self.out = folder / "run.jsonl"
        self.log = folder / "log"

    def env(self, *preload: Path) -> dict[str, str]:
        return {**os.environ, "LD_PRELOAD": ":".join(map(str, preload)), "FAKE_DRIVER_LOG": str(self.log)}

    def plain(self, *args: str) -> subprocess.CompletedProcess[str]:
        self.log.write_bytes(bytes(8))
        command = [str(self.programs.program), *args]
        return subprocess.run(command, env=self.env(self.programs.fake), capture_output=True, text=True, check=False)

    def run(self, *args: str, recorder: Path | None = None, values: bool = True, first: tuple[Path, ...] = ()) -> Run:
        self.log.write_bytes(bytes(8))
        stdout = self.folder / "stdout"
        saved = os.dup(1)
        with stdout.open("wb") as file:
            os.dup2(file.fileno(), 1)
            try:
                outcome = launcher.record(
                    [str(self.programs.program), *args],
                    self.out,
                    values=values,
                    driver="580.126.20",
                    recorder=recorder or self.programs.recorder,
                    environment=self.env(*first, self.programs.fake),
                )
            finally:
                os.dup2(saved, 1)
                os.close(saved)
        assert outcome.problems.count == 0, outcome.problems.kept
        reader = Reader(self.out)
        records = list(reader)
        assert reader.complete, reader.problems.kept
        assert not (self.folder / "run.jsonl.spool").exists()
        return outcome, records, stdout.read_text(), int.from_bytes(self.log.read_bytes(), sys.byteorder)


@pytest.fixture
def recorder(programs: Any, tmp_path: Path) -> Recorder:
    return Recorder(programs, tmp_path)


def ioctls(records: list[fmt.Record]) -> list[fmt.Record]:
    return [rec for rec in records if rec.k == "ioctl"]


SCENARIOS = [
    ("each",),
    ("calls", "50"),
    ("threads", "20"),
    ("fork", "5"),
    ("kill", "20"),
    ("dup", "3"),
    ("map",),
    ("raw", "2"),
    ("nothing",),
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s[0])
def test_output_and_exit_status_are_the_program_s_own(scenario: tuple[str, ...], recorder: Recorder) -> None:
    plain = recorder.plain(*scenario)
    outcome, _, stdout, _ = recorder.run(*scenario)
    assert stdout == plain.stdout
    assert outcome.status == (128 - plain.returncode if plain.returncode < 0 else plain.returncode)


@pytest.mark.parametrize(
    ("scenario", "count"),
    [(("calls", "500"), 500), (("threads", "200"), 1600), (("fork", "40"), 200), (("kill", "20"), 20)],
    ids=str,
)
def test_no_call_is_missed(scenario: tuple[str, ...], count: int, recorder: Recorder) -> None:
    outcome, records, _, counted = recorder.run(*scenario)
    assert counted == count
    assert outcome.seen.ioctls == len(ioctls(records)) == count


def test_each_kind_of_call(recorder: Recorder) -> None:
    _, records, _, _ = recorder.run("each")
    calls = ioctls(records)
    first, build, alloc, unknown, fault, null, uvm, last = calls
    assert (first.kind, first.key, first.status, first.par0, first.par1) == (
        "control",
        0x20800FFE,
        0x56,
        bytes(8),
        b"\xff" + bytes(7),
    )
    assert (build.key, build.bufs[0][0], build.bufs[0][1]) == (0x101, 8, bytes(64))
    assert (build.bufs[0][2] or b"").startswith(b"580.159.04\0")
    assert (alloc.kind, alloc.key, len(alloc.par0 or b""), alloc.fl) == ("alloc", 0x80, 56, fmt.SIZE_BY_TABLE)
    assert struct.unpack_from("<I", alloc.top1 or b"", 8) == (0xC1D00001,)
    assert (unknown.kind, unknown.key, unknown.err, len(unknown.top0 or b"")) == ("fe", 0x63, 22, 16)
    assert (fault.kind, fault.key, fault.err, fault.top0, fault.raw["fault"]) == ("fe", 0x2A, 14, None, True)
    assert (null.key, null.par0, null.status) == (0x20800102, None, 0)
    assert (uvm.kind, uvm.key, uvm.status, len(uvm.top0 or b"")) == ("uvm", 0x30000001, 0, 16)
    assert last.status == 0
    modeset = next(rec for rec in records if rec.k == "open" and rec.dev == "/dev/nvidia-modeset")
    assert (modeset.fd, modeset.err) == (-1, 2)


def test_without_values_numbers_sizes_and_statuses_stay(recorder: Recorder) -> None:
    _, with_values, _, _ = recorder.run("each")
    recorder.out.unlink()
    _, without, _, _ = recorder.run("each", values=False)
    assert [(r.kind, r.key, r.status, r.err) for r in ioctls(with_values)] == [
        (r.kind, r.key, r.status, r.err) for r in ioctls(without)
    ]
    for kept, left in zip(ioctls(with_values), ioctls(without), strict=True):
        assert left.top0 is left.top1 is left.par0 is left.par1 is None
        assert not left.bufs
        assert left.psize == (len(kept.par0) if kept.par0 else None)


def test_threads_have_their_own_calls(recorder: Recorder) -> None:
    _, records, _, _ = recorder.run("threads", "100")
    assert set(Counter(rec.tid for rec in ioctls(records)).values()) == {100}
    assert len({rec.pid for rec in ioctls(records)}) == 1


def test_forked_processes_are_told_apart(recorder: Recorder) -> None:
    _, records, _, _ = recorder.run("fork", "10")
    assert Counter(Counter(rec.pid for rec in ioctls(records)).values()) == {10: 5}
    began = [rec for rec in records if rec.k == "process"]
    assert [rec.raw["how"] for rec in began].count("fork") == 4
    assert {rec.raw["ppid"] for rec in began if rec.raw["how"] == "fork"} == {
        next(rec.pid for rec in began if rec.raw["how"] == "exec")
    }


def test_a_call_that_a_process_died_in_is_on_file(recorder: Recorder) -> None:
    outcome, records, _, _ = recorder.run("hang")
    assert outcome.status == 128 + 14
    assert outcome.seen.unfinished == 1
    last = ioctls(records)[-1]
    assert (last.key, last.ret, last.fl) == (0xDEAD, None, UNFINISHED)


def test_a_program_that_closes_everything_gets_its_numbers(recorder: Recorder) -> None:
    plain = recorder.plain("closefrom", "3")
    outcome, records, stdout, _ = recorder.run("closefrom", "3")
    assert stdout == plain.stdout
    assert outcome.seen.ioctls == len(ioctls(records)) == 6


def test_what_a_program_puts_at_the_spool_s_number_stays_its_own(recorder: Recorder) -> None:
    outcome, records, stdout, _ = recorder.run("squat", "5")
    assert stdout.splitlines()[-1] == "mine 0 bytes"
    assert outcome.seen.ioctls == len(ioctls(records)) == 10


def test_a_lost_spool_shows_in_no_errno(programs: Any, tmp_path: Path) -> None:
    path = tmp_path / "spool"
    env = {**os.environ, "LD_PRELOAD": f"{programs.recorder}:{programs.fake}", "NVPROXY_TRACE_SPOOL": str(path)}
    with keeping(Keeper(path, b"")):
        done = subprocess.run([programs.program, "lost", path], env=env, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[1:] == ["ok 0 errno 77", "unknown -1 errno 22", "closed errno 78"]
    assert not path.exists()


def test_a_dup_over_a_device_closes_it(recorder: Recorder) -> None:
    _, records, _, _ = recorder.run("over", "1")
    assert [(rec.k, rec.fd, rec.dev) for rec in records[-3:]] == [
        ("close", 3, "/dev/nvidiactl"),
        ("dup", records[2].ret, "/dev/nvidia0"),
        ("ioctl", 3, "/dev/nvidia0"),
    ]


def test_dup_close_and_mmap(recorder: Recorder) -> None:
    _, records, _, _ = recorder.run("dup", "2")
    assert [(rec.k, rec.fd, rec.ret) for rec in records if rec.k in ("dup", "close")] == [
        ("dup", 3, records[2].ret),
        ("dup", records[2].ret, 40),
        ("dup", 40, 50),
        ("close", 3, 0),
    ]
    assert {rec.fd for rec in ioctls(records)} == {50}
    recorder.out.unlink()
    _, records, _, _ = recorder.run("map")
    (mapped,) = (rec for rec in records if rec.k == "mmap")
    assert mapped.dev == "/dev/nvidia0"
    assert {name: mapped.raw[name] for name in ("len", "prot", "flags", "off")} == {
        "len": 8192,
        "prot": 1,
        "flags": 2,
        "off": 0,
    }
    assert mapped.raw["va"] > 0


def test_a_program_that_loads_no_recorder_is_named(recorder: Recorder, programs: Any) -> None:
    static = programs.static()
    if static is None:
        pytest.skip("no static libc")
    outcome, _, _, _ = recorder.run("spawn", str(static))
    assert [path for _, path in outcome.seen.unseen] == [str(static)]
    assert hides(str(static)) == "static"
    assert hides(str(programs.program)) is None
    dynamic, _, _, _ = recorder.run("spawn", "/bin/true")
    assert dynamic.seen.unseen == []


def test_raw_calls_are_not_seen(recorder: Recorder) -> None:
    """What the message at the end says cannot be seen, is not."""
    outcome, _, _, counted = recorder.run("raw", "4")
    assert (outcome.seen.ioctls, counted) == (0, 0)
    assert "raw system calls" in CANNOT_SEE


def _sanitizer(programs: Any, name: str) -> Path | None:
    out = subprocess.run(
        [programs.cc, f"-print-file-name=lib{name}.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return Path(out).resolve() if os.path.isabs(out) else None


@pytest.mark.parametrize(
    "scenario",
    [("each",), ("calls", "20"), ("threads", "40"), ("fork", "5"), ("kill", "5"), ("dup", "2"), ("map",)],
    ids=str,
)
def test_under_asan_and_ubsan(
    scenario: tuple[str, ...], recorder: Recorder, programs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asan = _sanitizer(programs, "asan")
    if asan is None:
        pytest.skip("no libasan")
    built = programs.folder / "librecorder-asan.so"
    if not built.exists():
        programs.shared(built.name, "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    # libasan must come first of all, and the launcher puts the recorder there.
    monkeypatch.setattr(launcher, "_preload", lambda own, present: f"{asan}:{own}:{present}")
    monkeypatch.setenv("ASAN_OPTIONS", "detect_leaks=0:abort_on_error=1:verify_asan_link_order=0")
    outcome, records, _, counted = recorder.run(*scenario, recorder=built)
    assert outcome.status == {"kill": 137}.get(scenario[0], 0)
    assert len(ioctls(records)) == counted > (-1 if scenario[0] == "map" else 0)


DRIVE = """
import os, sys
from pathlib import Path
from nvproxy_model.trace.record import preload as record
env = {**os.environ, "LD_PRELOAD": sys.argv[2]}
outcome = record.record(sys.argv[4:], Path(sys.argv[3]), driver="580.126.20", recorder=Path(sys.argv[1]), environment=env)
print(outcome.status, outcome.seen.ioctls, outcome.seen.unseen)
"""


@pytest.mark.parametrize(("scenario", "count"), [("exec", 3), ("vfork", 4)])
def test_devices_that_an_exec_inherits(
    scenario: str, count: int, programs: Any, tmp_path: Path, with_nodes: Any
) -> None:
    out = tmp_path / "run.jsonl"
    done = with_nodes(
        sys.executable,
        "-c",
        DRIVE,
        str(programs.recorder),
        str(programs.fake),
        str(out),
        str(programs.program),
        scenario,
    )
    assert done.stdout.splitlines()[-1] == f"0 {count} []", done.stderr
    records = list(Reader(out))
    (fd,) = (rec for rec in records if rec.k == "fd")
    assert (fd.fd, fd.dev) == (3, "/dev/nvidiactl")
    assert len(ioctls(records)) == count
    assert len({rec.pid for rec in ioctls(records)}) == (1 if scenario == "exec" else 2)


def test_a_spool_of_another_run_is_in_the_way(recorder: Recorder, programs: Any) -> None:
    (recorder.folder / "run.jsonl.spool").write_bytes(b"x")
    with pytest.raises(RecordError, match=r"left from another run"):
        launcher.record(["true"], recorder.out, recorder=programs.recorder)


def test_a_recorder_that_was_not_built_and_a_program_that_is_not_there(recorder: Recorder, programs: Any) -> None:
    with pytest.raises(RecordError, match="was not built"):
        launcher.record(["true"], recorder.out, recorder=recorder.folder / "absent.so")
    with pytest.raises(RecordError, match="No such file"):
        launcher.record(["/nonexistent/program"], recorder.out, recorder=programs.recorder)
    assert not list(recorder.folder.glob("*.spool"))


def test_other_preloads_are_kept() -> None:
    own = Path("/x/librecorder.so")
    assert launcher._preload(own, None) == "/x/librecorder.so"
    assert launcher._preload(own, "/a.so /b.so:/x/librecorder.so") == "/x/librecorder.so:/a.so:/b.so"


def test_the_table_says_what_the_structs_say(catalog: Catalog) -> None:
    """Offsets against construct's own: each struct is built with its fields at their path's value."""
    found = {(e.space, e.number, e.size): e for e in table.entries(catalog)}
    control = next(e for (space, number, _), e in found.items() if (space, number) == (table.FRONTEND, 0x2A))
    assert (control.size, control.key_offset, control.params_offset, control.size_offset, control.status_offset) == (
        32,
        8,
        16,
        24,
        28,
    )
    allocs = {e.size: e for (space, number, _), e in found.items() if (space, number) == (table.FRONTEND, 0x2B)}
    assert {size: (e.key_offset, e.params_offset, e.size_offset, e.status_offset) for size, e in allocs.items()} == {
        32: (12, 16, 24, 28),
        48: (12, 16, 32, 40),
    }
    build = next(e for (space, number, _), e in found.items() if (space, number) == (table.CONTROL, 0x101))
    assert [(p.offset, p.count_offset, p.element) for p in build.pointers] == [(8, 0, 1), (16, 0, 1), (24, 0, 1)]
    peers = next(e for (space, number, _), e in found.items() if (space, number) == (table.CONTROL, 0x127))
    assert all(p.square == 1 and p.count_offset == 128 for p in peers.pointers)
    packed = table.pack(list(found.values()))
    assert len(packed) == 8 + len(found) * 104
    keys = [(e.space, e.number, e.size if e.space == table.FRONTEND else 0) for e in table.entries(catalog)]
    assert keys == sorted(keys)


def spooled(programs: Any, tmp_path: Path, *args: str) -> bytes:
    """A real spool."""
    path = tmp_path / "spool"
    env = {**os.environ, "LD_PRELOAD": f"{programs.recorder}:{programs.fake}", "NVPROXY_TRACE_SPOOL": str(path)}
    with keeping(Keeper(path, b"")):
        subprocess.run([programs.program, *(args or ("calls", "30"))], env=env, check=True, capture_output=True)
    return path.read_bytes()


def read_spool(data: bytes) -> tuple[list[dict[str, Any]], Problems]:
    import io

    problems = Problems()
    return list(spool.records(io.BytesIO(data), problems, spool.Seen())), problems


def test_a_torn_frame_costs_that_frame(programs: Any, tmp_path: Path) -> None:
    data = spooled(programs, tmp_path)
    whole, problems = read_spool(data)
    assert problems.count == 0
    starts = [i for i in range(len(data)) if data.startswith(spool.MAGIC, i)]
    middle, end = starts[20], starts[21]
    torn, problems = read_spool(data[: middle + 40] + data[end:])
    assert len(whole) - len(torn) == 1
    assert problems.kept[0] == (0, f"a torn frame at byte {middle} of the spool")
    cut, problems = read_spool(data[: starts[-1] + 50])
    assert [text.split(" ")[:2] for _, text in problems.kept] == [["a", "torn"], ["the", "spool"]]
    assert cut[-1]["fl"] & UNFINISHED
