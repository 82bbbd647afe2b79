"""cuinterpose doctor, ticket show and peers: what they say of processes that are known."""

from __future__ import annotations

import importlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cuinterpose import cli, coordinator, remote, surface
from cuinterpose.endpoint import Endpoint, Refusal
from cuinterpose.frame import Status
from cuinterpose.remote_fd import descriptor_of
from cuinterpose.ticket import Kind, Ticket, create, new_identity
from tests.cuinterpose.share_library import Library, memfd, open_descriptors
from tests.cuinterpose.shim_world import Command

MAPPER = """
import mmap, sys
file = open(sys.argv[1], "rb")
mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
print("ready", flush=True)
sys.stdin.read()
"""
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
    found = json.loads(done.stdout)
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
    assert (status, found["verdict"]) == (2, "unclear")


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
                assert any(item.path == str(lying) for item in remote.objects(process.pid, names))
            finally:
                process.stdin.close()
        lying.unlink()


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
    found = json.loads(done.stdout)
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
    assert json.loads(done.stdout)["verdict"] == "bad ticket"
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
        found = json.loads(done.stdout)
        assert [member["participant"] for member in found["members"]] == sorted(members)
    for wrong in ("0", "-1", "nan", "x"):
        assert command("peers", f"--timeout={wrong}", where).returncode == 2
    where.chmod(0o755)
    done = command("peers", where)
    assert (done.returncode, done.stdout) == (2, "")
    assert "0700" in done.stderr
