"""cuinterpose doctor, ticket show and peers: what they say of processes that are known."""

from __future__ import annotations

import importlib
import json
import os
import random
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cuinterpose import cli, coordinator, remote, surface
from cuinterpose import doctor as doctor_module
from cuinterpose.endpoint import Endpoint, Refusal
from cuinterpose.frame import Status
from cuinterpose.output import visible
from cuinterpose.remote_fd import descriptor_of
from cuinterpose.ticket import Kind, Ticket, create, new_identity
from tests.cuinterpose.share_library import Library, memfd, open_descriptors
from tests.cuinterpose.shim_world import Command
from tests.schemas import document

MAPPER = """
import mmap, sys
file = open(sys.argv[1], "rb")
mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
print("ready", flush=True)
sys.stdin.read()
"""
NO_CUDA = "neither libcuda.so.1 nor a runtime (libcudart.so)"
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
reaches_others = pytest.mark.skipif(
    os.geteuid() != 0 and YAMA.exists() and YAMA.read_text() != "0\n",
    reason="kernel.yama.ptrace_scope lets no process but root's look at one that it did not start",
)
TICKET = Ticket(Kind.MULTICAST, b"\1" * 16, b"\2" * 16, "/run/cui/é\n")


@contextmanager
def target(command: Command, *loads: str, shim: bool = True, **more: str) -> Iterator[int]:
    world = command.world
    path = [world.root / "objects", world.root / "runtimes", world.driver("13.1").parent]
    environment = {"LD_LIBRARY_PATH": ":".join(map(str, path)), **more}
    if shim:
        environment["LD_PRELOAD"] = str(world.shim)
    process = subprocess.Popen(
        [world.root / "target", *loads], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    with process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process.pid
        finally:
            process.stdin.close()
            process.wait(20)


def doctor(command: Command, pid: int) -> tuple[int, dict[str, object], set[tuple[str, str, str]]]:
    """(exit status, the document, {(state, object's name, symbol)})"""
    done = command("doctor", "--json", str(pid))
    assert done.stderr == ""
    found = document(done.stdout)
    assert found["schema"] == "cuinterpose.doctor/1"
    references = {(r["state"], Path(r["object"]).name, r["symbol"]) for r in found["references"]}
    return done.returncode, found, references


@reaches_others
def test_covered(command: Command) -> None:
    with target(command, "local:libdirect.so", "local:libuser12.so", "local:libcudart.so.12") as pid:
        status, found, references = doctor(command, pid)
    assert (status, found["verdict"]) == (0, "covered")
    assert found["shim"] == str(command.world.shim)
    assert {("covered", "libdirect.so", "cuMemCreate"), ("covered", "libdirect.so", "dlsym")} <= references
    assert ("covered", "libuser12.so", "cudaGetDriverEntryPoint") in references
    assert {state for state, _, _ in references} <= {"covered", "unbound"}
    stats = found["stats"]
    assert isinstance(stats, dict)
    assert (stats["abi"], stats["by_dlsym"], stats["unrecognised"]) == (1, 1, 0)


@reaches_others
def test_no_shim(command: Command) -> None:
    with target(command, "local:libdirect.so", shim=False) as pid:
        status, found, references = doctor(command, pid)
    assert (status, found["verdict"], found["shim"]) == (1, "bypassed", None)
    assert ("bypass", "libdirect.so", "cuMemCreate") in references
    assert ("bypass", "target", "dlsym") in references


@reaches_others
@pytest.mark.parametrize("how", ["deep", "new"])
def test_bypass(command: Command, how: str) -> None:
    """RTLD_DEEPBIND and dlmopen: the slots hold the driver's own entry and the C library's own dlsym."""
    with target(command, "local:libcudart.so.12", f"{how}:libdirect.so") as pid:
        status, found, references = doctor(command, pid)
        text = command("doctor", str(pid)).stdout
    assert (status, found["verdict"]) == (1, "bypassed")
    bypassed = {(name, symbol) for state, name, symbol in references if state == "bypass"}
    assert {("libdirect.so", "cuMemCreate"), ("libdirect.so", "dlsym")} <= bypassed
    assert ("target", "dlsym") not in bypassed
    assert "bypass    cuMemCreate of " in text


@reaches_others
def test_disabled_shim_covers_nothing(command: Command) -> None:
    with target(command, "local:libdirect.so", CUINTERPOSE_DISABLE="1") as pid:
        status, found, _ = doctor(command, pid)
    assert (status, found["verdict"]) == (1, "bypassed")


@reaches_others
def test_nothing_of_cuda(command: Command) -> None:
    with target(command) as pid:
        status, found, _ = doctor(command, pid)
        text = command("doctor", str(pid)).stdout
    assert (status, found["verdict"]) == (2, "unclear")
    first, advice = text.splitlines()[:2]
    assert first == f"process {pid}: cannot tell: the shim is loaded, but CUDA is not loaded: {NO_CUDA}"
    assert "first CUDA call" in advice
    # bound at once: its dlsym is libc's own, as everywhere without the shim, and that is not an answer
    for binding in ({}, {"LD_BIND_NOW": "1"}):
        with target(command, shim=False, **binding) as pid:
            done = command("doctor", str(pid))
        assert done.returncode == 2
        assert done.stdout.splitlines()[0] == f"process {pid}: cannot tell: CUDA is not loaded: {NO_CUDA}"
        assert ("bypass    dlsym of " in done.stdout) == bool(binding)


def test_out_of_reach(command: Command) -> None:
    for arguments in (["doctor", "999999999"], ["doctor", "1999999999"], ["ticket", "show", "999999999", "1"]):
        done = command(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("cuinterpose: error: process ")
        assert len(done.stderr.splitlines()) == 1


def test_no_permission() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to be two users")
    # In this process, with all that the commands import: nobody may not be able to read the Python that runs them.
    for name in ("doctor", "ticket", "remote_fd"):
        importlib.import_module(f"cuinterpose.{name}")
    child = os.fork()
    if not child:
        status = 99
        try:
            os.setgid(65534)
            os.setuid(65534)
            status = cli.main(["doctor", str(os.getppid())]) * 10 + cli.main(["ticket", "show", str(os.getppid()), "1"])
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 22


def test_memory_that_is_nonsense() -> None:
    with pytest.raises(remote.Unreadable):
        remote.read_memory(os.getpid(), 8, 8)
    with pytest.raises(remote.Unreadable):
        remote.read_memory(os.getpid(), 0x1000, 1 << 40)
    with pytest.raises(ProcessLookupError):
        remote.read_memory(999999999, 0x1000, 8)


def test_hostile_objects(command: Command, tmp_path: Path) -> None:
    """A mapped file that claims to be ELF and lies: an object that is not readable, and never an exception."""
    chance = random.Random(6)
    good = (command.world.root / "objects" / "libdirect.so").read_bytes()
    for _ in range(8):
        data = bytearray(good)
        for _ in range(200):
            data[chance.randrange(16, len(data))] = chance.randrange(256)
        data[16:20] = good[16:20]
        lying = tmp_path / "lying.so"
        lying.write_bytes(data)
        with subprocess.Popen(
            [sys.executable, "-c", MAPPER, lying], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdin is not None
            process.stdout.readline()
            try:
                names = frozenset((*surface.DRIVER, "dlsym"))
                assert any(item.path == str(lying) for item in remote.objects(process.pid, names)[0])
            finally:
                process.stdin.close()
        lying.unlink()


@contextmanager
def mapping(*files: Path, mapper: str = MAPPER) -> Iterator[int]:
    """A process that maps files, all of them, and waits."""
    with subprocess.Popen(
        [sys.executable, "-c", mapper, *map(os.fsencode, files)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            assert process.stdout.readline() == b"ready\n"
            yield process.pid
        finally:
            process.stdin.close()


MAP_ALL = """
import mmap, sys
files = [open(name, "rb") for name in sys.argv[1:]]
mapped = [mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) for file in files]
print("ready", flush=True)
sys.stdin.read()
"""


def aliased(size: int, claim: int) -> bytes:
    """An object whose tables are all the same size bytes: each record of 24 is a symbol and a relocation of it.

    Every symbol is called dlsym, every relocation is a slot. claim: how many bytes the tables say that they have.
    """
    start = 64 + 56 + 8 * 16
    tags = [(5, start), (10, size), (6, start), (7, start), (8, claim), (23, start), (2, claim)]
    dynamic = b"".join(struct.pack("<QQ", *tag) for tag in [*tags, (0, 0)])
    header = b"\x7fELF\2\1\1".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 1, 64, 0, 0
    )
    segment = struct.pack("<IIQQQQQQ", 2, 4, 120, 120, 120, len(dynamic), len(dynamic), 8)
    # st_name is r_offset, 16; the relocation is of symbol 0 (R_X86_64_JUMP_SLOT); the addend spells the name
    record = struct.pack("<QQ", 16, 7) + b"dlsym\0\0\0"
    image = header + segment + dynamic
    return image.ljust(start, b"\0") + record * (size // 24)


def test_a_hostile_process_has_a_total(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bytes, objects and references: each has a limit, what is beyond it is said, and the answer is `cannot tell`."""
    files = []
    for number in range(8):
        files.append(tmp_path / f"aliased{number}.so")
        files[-1].write_bytes(aliased(1 << 16, 1 << 16))
    read: list[int] = []
    plain = remote.read_memory

    def counting(pid: int, address: int, size: int) -> bytearray:
        read.append(size)
        return plain(pid, address, size)

    monkeypatch.setattr(remote, "read_memory", counting)
    names = frozenset((*surface.DRIVER, "dlsym"))
    with mapping(*files, mapper=MAP_ALL) as pid:
        found, left_out = remote.objects(pid, names)
        hostile = [item for item in found if item.path in map(str, files)]
        assert len(hostile) == 8
        # 2,730 relocations twice over: one object has more than there may be in all
        assert all("references" in item.unreadable for item in hostile)
        assert sum(len(item.slots) for item in found) <= 2 * remote.MOST_SLOTS
        assert not left_out

        read.clear()
        monkeypatch.setattr(remote, "MOST_BYTES", 1 << 20)
        found, left_out = remote.objects(pid, names)
        assert sum(read) <= 1 << 20
        assert sum("would exceed the 1 MiB" in item.unreadable for item in found) >= 7
        assert cli.main(["doctor", str(pid)]) == 2
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith(f"process {pid}: cannot tell: ")
        assert "objects could not be read; CUDA and the shim may be among them" in lines[0]
        assert any(line.startswith("  unread    ") for line in lines)

        monkeypatch.setattr(remote, "MOST_BYTES", 256 << 20)
        monkeypatch.setattr(remote, "MOST_OBJECTS", 3)
        found, left_out = remote.objects(pid, names)
        assert len(found) <= 3
        assert left_out
        assert left_out[0].endswith("objects beyond the first 3")
        assert cli.main(["doctor", "--json", str(pid)]) == 2
        assert left_out[0] in json.loads(capsys.readouterr().out)["unreadable"]


TRUNCATE = MAP_ALL.replace('print("ready"', '[os.truncate(name, 0) for name in sys.argv[1:]]\nprint("ready"').replace(
    "import mmap, sys", "import mmap, os, sys"
)


@pytest.mark.parametrize("where", ["disk", "/dev/shm"])
def test_a_mapping_that_cannot_be_read_is_said(tmp_path: Path, where: str) -> None:
    """What was mapped is gone from the file: it may have been anything, the shim included."""
    if where == "/dev/shm" and not os.path.isdir(where):
        pytest.skip("no /dev/shm here")
    file = (tmp_path if where == "disk" else Path(where)) / f"cuinterpose-{os.getpid()}"
    file.write_bytes(b"x" * 8192)
    try:
        with mapping(file, mapper=TRUNCATE) as pid:
            found, _ = remote.objects(pid, frozenset({"dlsym"}))
    finally:
        file.unlink()
    (item,) = [item for item in found if item.path == str(file)]
    assert re.fullmatch(r"4 bytes at 0x[0-9a-f]+", item.unreadable)
    assert diagnose_of(item) == "unclear"


def diagnose_of(item: remote.Object) -> str:
    return doctor_module.Diagnosis(1, None, None, (), (), (), (f"{item.path}: {item.unreadable}",)).verdict


def test_devices_are_not_objects() -> None:
    """A device's memory cannot be read as an object's can, and a mapping of one is no reason for doubt."""
    with mapping(Path("/dev/zero"), mapper=MAP_ALL.replace("file.fileno(), 0, ", "file.fileno(), 4096, ")) as pid:
        found, left_out = remote.objects(pid, frozenset({"dlsym"}))
    assert not [item for item in found if item.path.startswith("/dev/")]
    assert not left_out


def test_no_memory_for_an_answer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def out_of_memory(pid: int, names: frozenset[str]) -> None:
        raise MemoryError

    monkeypatch.setattr(remote, "objects", out_of_memory)
    assert cli.main(["doctor", "1"]) == 2
    assert capsys.readouterr() == ("", "cuinterpose: error: not enough memory for an answer\n")


HOSTILE_TEXT = "\x1b]0;pwned\x07\r\n  shim      /forged\x9b31m\u202egnp.so\u2066\x7f"
HARMLESS = "\\x1b]0;pwned\\x07\\x0d\\x0a  shim      /forged\\u009b31m\\u202egnp.so\\u2066\\x7f"


def check_output(done: subprocess.CompletedProcess[bytes], shown: str) -> None:
    """shown is there, and no byte of it could be anything but text."""
    text = done.stdout.decode()
    assert shown in text
    assert all(line.isprintable() for line in text.splitlines())
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]", text)


@reaches_others
@pytest.mark.parametrize("options", [[], ["--json"], ["--verbose"]])
@pytest.mark.parametrize("locale", ["C.UTF-8", "C", pytest.param("POSIX", marks=pytest.mark.slow)])
def test_paths_reach_a_terminal_as_text(command: Command, tmp_path: Path, options: list[str], locale: str) -> None:
    directory = tmp_path / HOSTILE_TEXT.replace("/", "|")
    directory.mkdir()
    hostile = directory / os.fsdecode(b"\xff.so")
    hostile.write_bytes(aliased(1 << 17, 1 << 17))
    environment = {**command.environment(), "LC_ALL": locale, "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    with mapping(hostile) as pid:
        done = subprocess.run(
            [sys.executable, "-m", "cuinterpose.cli", "doctor", *options, str(pid)],
            env=environment,
            cwd=command.world.root,
            capture_output=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (2, b"")
    if options == ["--json"]:
        done.stdout.decode("ascii")
        assert any(str(hostile).replace("\n", "\\012") in line for line in document(done.stdout)["unreadable"])
        check_output(done, "\\u001b]0;pwned\\u0007")
    else:
        # the kernel itself writes a line break in a path as \\012
        check_output(done, HARMLESS.replace("/", "|").split("\\x0a")[0])
        check_output(done, "\\xff.so")


@reaches_others
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_endpoint_of_a_ticket_reaches_a_terminal_as_text(command: Command, options: list[str]) -> None:
    fd = create(Ticket(Kind.UNICAST, b"\1" * 16, b"\2" * 16, "/" + HOSTILE_TEXT))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "cuinterpose.cli", "ticket", "show", *options, str(os.getpid()), str(fd)],
            env=command.environment(),
            cwd=command.world.root,
            capture_output=True,
            check=False,
        )
    finally:
        os.close(fd)
    assert (done.returncode, done.stderr) == (0, b"")
    if options:
        assert document(done.stdout)["ticket"]["endpoint"] == "/" + HOSTILE_TEXT
        check_output(done, "\\u202egnp.so")
    else:
        check_output(done, HARMLESS)
        assert len(done.stdout.splitlines()) == 6


def test_visible() -> None:
    assert visible("/run/é/日本 x") == "/run/é/日本 x"
    assert visible("a\tb\u00ad\u2028\U000e0001\udc80") == "a\\x09b\\u00ad\\u2028\\U000e0001\\x80"
    assert all(visible(chr(code)).isprintable() for code in range(0x11000))


@pytest.mark.parametrize("arguments", [["--help"], ["doctor"], ["conform", "--help"]])
def test_closed_pipe_is_silent(command: Command, arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    pid = [str(os.getpid())] if arguments == ["doctor"] else []
    done = subprocess.run(
        [sys.executable, "-m", "cuinterpose.cli", *arguments, *pid],
        env=command.environment(),
        cwd=command.world.root,
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writing)
    assert done.stderr == b""
    # argparse drops the error of its own writing, on some releases of Python
    assert done.returncode == 2 or "--help" in arguments


def test_full_disk_is_one_line(command: Command) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "cuinterpose.cli", "doctor", str(os.getpid())],
            env=command.environment(),
            cwd=command.world.root,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (
        2,
        "cuinterpose: error: standard output: No space left on device\n",
    )


@reaches_others
def test_ticket_show(command: Command, library: Library) -> None:
    before = open_descriptors()
    fd = create(TICKET)
    done = command("ticket", "show", str(os.getpid()), str(fd))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"process {os.getpid()} descriptor {fd}: ticket")
    assert "multicast" in done.stdout
    assert TICKET.resource.hex() in done.stdout
    done = command("ticket", "show", "--json", str(os.getpid()), str(fd))
    found = document(done.stdout)
    assert found["ticket"] == {
        "kind": "multicast",
        "participant": TICKET.participant.hex(),
        "resource": TICKET.resource.hex(),
        "endpoint": TICKET.endpoint,
    }
    assert {"SEAL", "SHRINK", "GROW", "WRITE"} <= set(found["seals"])
    os.close(fd)
    assert open_descriptors() == before


@reaches_others
def test_ticket_show_of_others(command: Command) -> None:
    bad = memfd(TICKET.encode(), 0)
    done = command("ticket", "show", "--json", str(os.getpid()), str(bad))
    assert done.returncode == 1
    assert document(done.stdout)["verdict"] == "bad ticket"
    with open(os.devnull, "rb") as null:
        done = command("ticket", "show", str(os.getpid()), str(null.fileno()))
    assert done.returncode == 1
    assert "not a ticket" in done.stdout
    os.close(bad)
    done = command("ticket", "show", str(os.getpid()), str(1 << 20))
    assert (done.returncode, done.stdout) == (2, "")
    assert "Bad file descriptor" in done.stderr


def test_a_duplicate_is_closed_on_exec() -> None:
    with open(os.devnull, "rb") as null:
        fd = descriptor_of(os.getpid(), null.fileno())
    assert not os.get_inheritable(fd)
    os.close(fd)


def test_peers(command: Command, tmp_path_factory: pytest.TempPathFactory) -> None:
    where = tmp_path_factory.mktemp("p")
    where.chmod(0o700)

    def nothing(resource: bytes, kind: int) -> int:
        raise Refusal(Status.UNKNOWN)

    done = command("peers", where)
    assert (done.returncode, done.stdout) == (0, f"{where}: 0 alive of 0\n")
    with Endpoint(nothing, where) as first, Endpoint(nothing, where) as second:
        stale, usurped = new_identity().hex(), new_identity().hex()
        (where / "not-an-endpoint").touch()
        (where / new_identity().hex()).mkdir()
        gone = Endpoint(nothing, where)
        os.link(gone.path, where / stale)
        gone.close()
        os.link(first.path, where / usurped)
        members = {member.participant: member for member in coordinator.discover(where)}
        assert {name: member.state for name, member in members.items()} == {
            first.participant.hex(): "alive",
            second.participant.hex(): "alive",
            stale: "gone",
            usurped: "replaced",
        }
        assert members[first.participant.hex()].pid == os.getpid()
        done = command("peers", "--json", where)
        assert done.returncode == 1
        found = document(done.stdout)
        assert [member["participant"] for member in found["members"]] == sorted(members)
    for wrong in ("0", "-1", "nan", "x"):
        assert command("peers", f"--timeout={wrong}", where).returncode == 2
    where.chmod(0o755)
    done = command("peers", where)
    assert (done.returncode, done.stdout) == (2, "")
    assert "chmod 700" in done.stderr
