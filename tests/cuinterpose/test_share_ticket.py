"""Tickets: the C and the Python give the same bytes, and the same verdict on everything."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import random
import resource
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuinterpose.ticket import (
    ENDPOINT_MAX,
    F_GET_SEALS,
    MFD_ALLOW_SEALING,
    MFD_CLOEXEC,
    MFD_NOEXEC_SEAL,
    SEALS,
    SIZE,
    Classified,
    Kind,
    Ticket,
    TicketError,
    Verdict,
    classify,
    create,
    decode,
    new_identity,
)
from tests.cuinterpose.share_library import Library, memfd, open_descriptors

TICKET = Ticket(Kind.UNICAST, bytes(range(1, 17)), bytes(range(101, 117)), "/run/user/0/cui/a")
identities = st.binary(min_size=16, max_size=16).filter(any)
paths = st.binary(max_size=ENDPOINT_MAX - 1).filter(lambda path: b"\0" not in path)
tickets = st.builds(
    lambda kind, participant, resource, path: Ticket(
        kind, participant, resource, (b"/" + path).decode("utf-8", "surrogateescape")
    ),
    st.sampled_from(Kind),
    identities,
    identities,
    paths,
)


def decoded(data: bytes) -> Ticket | None:
    try:
        return decode(data)
    except TicketError:
        return None


def verdict(library: Library, fd: int) -> Classified:
    """Both verdicts, which must be the same and leave the descriptor as it was."""
    found = classify(fd)
    assert library.classify(fd) == (found.verdict, found.ticket)
    return found


def verdict_on(library: Library, fd: int) -> Verdict:
    try:
        return verdict(library, fd).verdict
    finally:
        os.close(fd)


@given(ticket=tickets)
def test_same_bytes(library: Library, ticket: Ticket) -> None:
    data = ticket.encode()
    assert len(data) == SIZE
    assert library.encode(ticket) == data
    assert library.decode(data) == decode(data) == ticket


def test_the_layout_is_the_documented_one() -> None:
    data = TICKET.encode()
    path = TICKET.endpoint.encode()
    assert data == (
        b"CUTICKET"
        + bytes.fromhex("0100 0001 0100 0000")
        + TICKET.participant
        + TICKET.resource
        + bytes([len(path), 0, 1, 0])
        + path
        + bytes(204 - len(path))
    )


def test_every_bit_flipped(library: Library) -> None:
    good = TICKET.encode()
    free = set(range(16 * 8, 48 * 8)) | set(range(53 * 8, (52 + len(TICKET.endpoint)) * 8))
    accepted = set()
    for bit in range(SIZE * 8):
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        fd = memfd(bytes(data))
        found = verdict_on(library, fd)
        assert found is (Verdict.NOT_A_TICKET if bit < 64 else Verdict.TICKET if bit in free else Verdict.BAD), bit
        if found is Verdict.TICKET:
            accepted.add(bit)
    assert accepted == free
    assert len(accepted) == 384


def test_random_edits(library: Library) -> None:
    """20,000 edits of one to eight bytes, many of them bytes that mean something; fewer where each costs more."""
    chance = random.Random(6)
    good = TICKET.encode()
    accepted = 0
    count = 4_000 if "CUINTERPOSE_TEST_LIBRARY" in os.environ else 20_000
    for _ in range(count):
        data = bytearray(good)
        for _ in range(chance.randint(1, 8)):
            data[chance.randrange(SIZE)] = chance.choice((0, 1, 2, 47, 107, 108, 255, chance.randrange(256)))
        ours = decoded(bytes(data))
        assert library.decode(bytes(data)) == ours, data.hex()
        accepted += ours is not None
    assert 0 < accepted < count / 2


@given(data=st.binary(max_size=SIZE + 8), seals=st.integers(0, 15), magic=st.booleans())
def test_any_content(library: Library, data: bytes, seals: int, magic: bool) -> None:
    verdict_on(library, memfd(b"CUTICKET"[: magic * 8] + data, seals))


@pytest.mark.parametrize("seals", range(16))
def test_seals_are_needed_all(library: Library, seals: int) -> None:
    expected = Verdict.TICKET if seals == SEALS else Verdict.BAD
    assert verdict_on(library, memfd(TICKET.encode(), seals)) is expected


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 255, 257, 4096])
def test_size(library: Library, size: int) -> None:
    data = (TICKET.encode() + bytes(4096))[:size]
    assert verdict_on(library, memfd(data)) is (Verdict.NOT_A_TICKET if size < 8 else Verdict.BAD)


def test_reasons() -> None:
    """What is wrong with a bad ticket is said by the rule that it breaks."""
    for data, seals, why in (
        (TICKET.encode() + b"\0", SEALS, "size: more than 256 bytes"),
        (TICKET.encode()[:-1], SEALS, "size: 255 bytes, not 256"),
        (TICKET.encode(), 0b1011, "not sealed: GROW missing"),
        (TICKET.encode(), 0, "not sealed: SEAL|SHRINK|GROW|WRITE missing"),
        (TICKET.encode()[:12] + b"\3" + TICKET.encode()[13:], SEALS, "kind 3: neither unicast (1) nor multicast (2)"),
        (TICKET.encode()[:255] + b"\1", SEALS, "a byte after the endpoint is not zero"),
        (TICKET.encode(), SEALS, "sealed and well-formed"),
        (b"CUTICKE", SEALS, "no magic"),
    ):
        fd = memfd(data, seals)
        found = classify(fd)
        assert (found.why, found.seals & 15) == (why, seals)
        os.close(fd)
    with open(os.devnull, "rb") as null:
        found = classify(null.fileno())
        assert found.seals == -1
        assert found.why.startswith("F_GET_SEALS: ")


def test_interrupted_reading(library: Library) -> None:
    """EINTR, which tmpfs rarely gives: asked again, and the answer is the same."""
    fd = memfd(TICKET.encode())
    # it is classified twice
    with library.fault("pread", 3, errno.EINTR):
        assert library.classify(fd) == (Verdict.TICKET, TICKET)
    with library.fault("pread", 2, errno.EIO):
        assert library.classify(fd) == (Verdict.NOT_A_TICKET, None)
    with library.fault("pread", 2):
        assert library.classify(fd) == (Verdict.BAD, None)
    os.close(fd)


def test_a_kernel_without_noexec_seal(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Linux 6.3 memfd_create refuses the flag: the ticket is made without it, and needs no more than the four."""
    before = open_descriptors()
    made = os.memfd_create

    def older(name: str, flags: int) -> int:
        if flags & MFD_NOEXEC_SEAL:
            raise OSError(errno.EINVAL, "Invalid argument")
        return made(name, flags)

    with library.fault("memfd_create", 1, errno.EINVAL):
        fds = [library.create(TICKET)]
    monkeypatch.setattr(os, "memfd_create", older)
    fds.append(create(TICKET))
    for fd in fds:
        assert fcntl.fcntl(fd, F_GET_SEALS) == SEALS
        assert not os.get_inheritable(fd)
        assert verdict_on(library, fd) is Verdict.TICKET
    for error in (errno.EMFILE, errno.EPERM):
        with library.fault("memfd_create", 1, error), pytest.raises(OSError, match=os.strerror(error)):
            library.create(TICKET)
    with library.fault("memfd_create", 2, errno.EINVAL), pytest.raises(OSError, match="Invalid argument"):
        library.create(TICKET)
    assert open_descriptors() == before


def test_a_ticket_that_cannot_be_finished(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing or sealing fails: an error, and no descriptor is left."""
    before = open_descriptors()
    for call, error, expected in (
        ("pwrite", errno.ENOSPC, errno.ENOSPC),
        ("pwrite", 0, errno.EIO),
        ("fcntl", errno.EPERM, errno.EPERM),
    ):
        with library.fault(call, 1, error), pytest.raises(OSError, match=os.strerror(expected)):
            library.create(TICKET)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda fd, data, at: 255)
        with pytest.raises(OSError, match="short write"):
            create(TICKET)
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "fcntl", lambda *_: (_ for _ in ()).throw(OSError(errno.EPERM, "no")))
        with pytest.raises(OSError, match="no"):
            create(TICKET)
    assert open_descriptors() == before


def test_descriptor_zero(library: Library) -> None:
    """A number like any other, in a program that has closed its standard input."""
    kept = os.dup(0)
    os.close(0)
    try:
        for make in (library.create, create):
            fd = make(TICKET)
            assert fd == 0
            assert verdict(library, fd).ticket == TICKET
            os.close(fd)
    finally:
        os.dup2(kept, 0)
        os.close(kept)


def test_randomness(library: Library) -> None:
    """Interrupted or short: asked again. None to be had: no identity."""
    identity = (ctypes.c_uint8 * 16)()
    for error in (errno.EINTR, 0):
        with library.fault("getrandom", 2, error):
            assert library.c.cui_identity_random(identity) == 0
        assert any(identity)
    with library.fault("getrandom", 1, errno.ENOSYS):
        assert library.c.cui_identity_random(identity) == -errno.ENOSYS


def test_exec_sealed(library: Library) -> None:
    """The kernel's F_SEAL_EXEC beside our four: a ticket all the same."""
    try:
        fd = memfd(TICKET.encode(), SEALS, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL)
    except OSError:
        pytest.skip(f"MFD_NOEXEC_SEAL needs Linux 6.3, this is {os.uname().release}")
    assert verdict(library, fd).seals == SEALS | 0x20
    assert verdict_on(library, fd) is Verdict.TICKET


@dataclass(frozen=True)
class LookAlike:
    make: Callable[[Path], int]
    verdict: Verdict


def _file(path: Path, flags: int = os.O_RDWR) -> int:
    path.write_bytes(TICKET.encode())
    fd = os.open(path, flags)
    path.unlink()
    return fd


def _unnamed(_: Path) -> int:
    fd = os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR, 0o600)
    os.write(fd, TICKET.encode())
    return fd


def _opened_again(flags: int) -> Callable[[Path], int]:
    def make(_: Path) -> int:
        fd = memfd(TICKET.encode())
        again = os.open(f"/proc/self/fd/{fd}", flags)
        os.close(fd)
        return again

    return make


LOOK_ALIKES = {
    "disk file": LookAlike(lambda path: _file(path / "file"), Verdict.NOT_A_TICKET),
    "tmpfs file": LookAlike(lambda _: _file(Path(f"/dev/shm/cuinterpose-{os.getpid()}")), Verdict.BAD),
    "O_TMPFILE": LookAlike(_unnamed, Verdict.BAD),
    "directory": LookAlike(lambda path: os.open(path, os.O_RDONLY), Verdict.NOT_A_TICKET),
    "tmpfs directory": LookAlike(lambda _: os.open("/dev/shm", os.O_RDONLY), Verdict.NOT_A_TICKET),
    "character device": LookAlike(lambda _: os.open("/dev/null", os.O_RDWR), Verdict.NOT_A_TICKET),
    "O_PATH": LookAlike(_opened_again(os.O_PATH), Verdict.NOT_A_TICKET),
    "read only": LookAlike(_opened_again(os.O_RDONLY), Verdict.TICKET),
    "socket": LookAlike(lambda _: socket.socket(socket.AF_UNIX).detach(), Verdict.NOT_A_TICKET),
    "event": LookAlike(lambda _: os.eventfd(0), Verdict.NOT_A_TICKET),
    "negative": LookAlike(lambda _: -1, Verdict.NOT_A_TICKET),
    "closed": LookAlike(lambda _: 1 << 20, Verdict.NOT_A_TICKET),
}


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_look_alikes(library: Library, tmp_path: Path, name: str) -> None:
    if ("tmpfs" in name or name == "O_TMPFILE") and not os.path.isdir("/dev/shm"):
        pytest.skip("no /dev/shm here")
    fd = LOOK_ALIKES[name].make(tmp_path)
    try:
        assert verdict(library, fd).verdict is LOOK_ALIKES[name].verdict
    finally:
        if 0 <= fd < 1 << 20:
            os.close(fd)


def test_pipe(library: Library) -> None:
    for fd in os.pipe():
        assert verdict_on(library, fd) is Verdict.NOT_A_TICKET


def test_write_only(library: Library) -> None:
    unsealed = memfd(TICKET.encode(), 0)
    fd = os.open(f"/proc/self/fd/{unsealed}", os.O_WRONLY)
    os.close(unsealed)
    assert verdict_on(library, fd) is Verdict.NOT_A_TICKET


@pytest.mark.parametrize("who", ["C", "Python"])
def test_created(library: Library, who: str) -> None:
    before = open_descriptors()
    fd = library.create(TICKET) if who == "C" else create(TICKET)
    assert not os.get_inheritable(fd)
    assert fcntl.fcntl(fd, F_GET_SEALS) & SEALS == SEALS
    assert os.lseek(fd, 0, os.SEEK_CUR) == 0
    assert verdict(library, fd).ticket == TICKET
    assert os.lseek(fd, 0, os.SEEK_CUR) == 0
    with pytest.raises(OSError, match="Operation not permitted"):
        os.pwrite(fd, b"x", 0)
    with pytest.raises(OSError, match="Operation not permitted"):
        os.ftruncate(fd, 0)
    os.close(fd)
    assert open_descriptors() == before


def _raw(**changes: object) -> Ticket:
    """A ticket that the constructor would refuse."""
    ticket = object.__new__(Ticket)
    for name, value in {**TICKET.__dict__, **changes}.items():
        object.__setattr__(ticket, name, value)
    return ticket


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": 0},
        {"kind": 3},
        {"participant": bytes(16)},
        {"resource": bytes(16)},
        {"endpoint": ""},
        {"endpoint": "relative"},
        {"endpoint": "/" + "x" * ENDPOINT_MAX},
    ],
    ids=lambda changes: f"{changes}"[:40],
)
def test_impossible_fields(library: Library, changes: dict[str, object]) -> None:
    before = open_descriptors()
    with pytest.raises(TicketError):
        Ticket(**{**TICKET.__dict__, **changes})
    assert library.encode(_raw(**changes)) is None
    with pytest.raises(OSError, match="Invalid argument"):
        library.create(_raw(**changes))
    assert open_descriptors() == before


def test_longest_endpoint(library: Library) -> None:
    longest = Ticket(Kind.MULTICAST, new_identity(), new_identity(), "/" + "x" * (ENDPOINT_MAX - 1))
    assert library.encode(longest) == longest.encode()
    assert library.decode(longest.encode()) == longest


def test_identities_are_random(library: Library) -> None:
    seen = {new_identity() for _ in range(100)}
    for _ in range(100):
        identity = (ctypes.c_uint8 * 16)()
        assert library.c.cui_identity_random(identity) == 0
        seen.add(bytes(identity))
    assert len(seen) == 200


def test_without_memory_for_a_descriptor(library: Library) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = open_descriptors()
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            library.create(TICKET)
        with pytest.raises(OSError, match="Too many open files"):
            create(TICKET)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert open_descriptors() == before
