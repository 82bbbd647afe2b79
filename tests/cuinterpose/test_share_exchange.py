"""Frames and the EXPORT exchange: C and Python against each other, and both against hostile peers.

Every test compares the process's descriptors before and after.
"""

from __future__ import annotations

import array
import ctypes
import errno
import os
import re
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuinterpose import frame
from cuinterpose.directory import directory
from cuinterpose.endpoint import Endpoint, Refusal, export, identify
from cuinterpose.frame import NOBODY, REPLY, Frame, Op, ProtocolError, Status
from cuinterpose.ticket import Kind, Ticket, new_identity
from tests.cuinterpose.share_library import SOURCES, Library, open_descriptors

PARTICIPANT, RESOURCE, MULTICAST = (bytes([n]) * 16 for n in (1, 2, 3))
BUSY, REFUSED, OUT = (bytes([n]) * 16 for n in (4, 5, 6))
TIMEOUT_MS = 1000  # a server's patience
PATIENT_MS = 20_000  # a client's, where an answer comes
SILENCE_MS = 200  # and where none does
identities = st.binary(min_size=16, max_size=16)
frames = st.builds(
    Frame,
    op=st.integers(0, 0xFFFF),
    serial=st.integers(0, 2**64 - 1),
    kind=st.integers(0, 0xFFFF),
    participant=identities,
    resource=identities,
    status=st.integers(-(2**31), 2**31 - 1),
    cuda=st.integers(-(2**31), 2**31 - 1),
)


@pytest.fixture(autouse=True)
def no_descriptor_gained_or_lost(library: Library) -> Iterator[None]:
    before = open_descriptors()
    yield
    assert open_descriptors() == before


def decode_in_python(message: bytes) -> Frame | Status:
    try:
        return frame.decode(message)
    except ProtocolError as error:
        return error.status


@given(value=frames)
def test_same_bytes(library: Library, value: Frame) -> None:
    data = value.encode()
    assert len(data) == 64
    assert library.encode_frame(value) == data
    assert library.decode_frame(data) == frame.decode(data) == value


def test_the_layout_is_the_documented_one() -> None:
    value = Frame(2, 0x1122334455667788, 1, PARTICIPANT, RESOURCE, -2, 700)
    header = b"CUIF" + bytes.fromhex("0100 0200 feffffff 0100 0000 8877665544332211 00000000 bc020000")
    assert value.encode() == header + PARTICIPANT + RESOURCE


@given(data=st.binary(max_size=80), keep=st.integers(0, 64), value=frames)
def test_same_verdict_on_any_bytes(library: Library, data: bytes, keep: int, value: Frame) -> None:
    message = value.encode()[:keep] + data
    assert library.decode_frame(message) == decode_in_python(message)


def test_every_bit_of_a_frame(library: Library) -> None:
    good = Frame(Op.EXPORT, 9, 1, PARTICIPANT, RESOURCE).encode()
    for bit in range(512):
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        assert library.decode_frame(bytes(data)) == decode_in_python(bytes(data))


@given(value=frames, payload=st.binary(min_size=1, max_size=40))
def test_a_payload_has_the_length_that_the_frame_says(library: Library, value: Frame, payload: bytes) -> None:
    whole = replace(value, length=len(payload))
    assert library.decode_frame(whole.encode() + payload) == frame.decode(whole.encode() + payload) == whole
    for length in (len(payload) - 1, len(payload) + 1):
        message = replace(value, length=length).encode() + payload
        assert library.decode_frame(message) == decode_in_python(message) == Status.MALFORMED


def test_frames_between_the_languages(library: Library) -> None:
    """Descriptor 0 rides as any other, and what fails says so."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        for fd in (-1, 0, ours.fileno()):
            assert library.send(ours.fileno(), REQUEST, fd) is Status.OK
            received, got = frame.receive(theirs)
            assert (received, got is None) == (REQUEST, fd < 0)
            frame.send(ours, REQUEST, None if fd < 0 else fd)
            status, received, again = library.receive(theirs.fileno())
            assert (status, received, again >= 0) == (Status.OK, REQUEST, fd >= 0)
            for copy in (got, again):
                if copy is not None and copy >= 0:
                    assert os.path.sameopenfile(copy, fd)
                    assert not os.get_inheritable(copy)
                    os.close(copy)
        for error in (0, errno.EPIPE):
            with library.fault("sendmsg", 1, error):
                assert library.send(ours.fileno(), REQUEST) is Status.TRANSPORT
        frame.receive(theirs)  # the one that was cut
        with library.fault("recvmsg", 1, errno.ECONNRESET):
            assert library.receive(theirs.fileno())[0] is Status.TRANSPORT
        theirs.close()
        assert library.send(ours.fileno(), REQUEST) is Status.TRANSPORT
        with pytest.raises(ProtocolError, match="TRANSPORT"):
            frame.send(ours, REQUEST)


@pytest.mark.parametrize("milliseconds", [1, 999, 1000, 1001, 61_500])
def test_timeout_of_a_socket(library: Library, milliseconds: int) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        assert library.c.cui_socket_timeout(connection.fileno(), milliseconds) == 0
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            seconds, rest = struct.unpack("qq", connection.getsockopt(socket.SOL_SOCKET, option, 16))
            # the kernel counts in ticks, of at most 10 ms
            assert 0 <= seconds * 1000 + rest / 1000 - milliseconds <= 10
    assert library.c.cui_socket_timeout(-1, 1) == -errno.EBADF


# ---- servers and clients, in C and in Python


def registry(name: bytes, kind: int) -> int:
    """A fresh pipe's reading end, its writing end closed, for what is registered."""
    if name == BUSY:
        raise Refusal(Status.BUSY)
    if name == REFUSED:
        raise Refusal(Status.CUDA, 201)
    if name == OUT:
        raise Refusal(Status.RESOURCES)
    if name not in (RESOURCE, MULTICAST):
        raise Refusal(Status.UNKNOWN)
    if kind != (Kind.UNICAST if name == RESOURCE else Kind.MULTICAST):
        raise Refusal(Status.KIND)
    reading, writing = os.pipe2(os.O_CLOEXEC)
    os.close(writing)
    return reading


def registry_for_c(name: bytes, kind: int) -> tuple[Status, int, int]:
    try:
        return Status.OK, registry(name, kind), 0
    except Refusal as refusal:
        return refusal.status, -1, refusal.cuda


@contextmanager
def python_server(library: Library, where: Path) -> Iterator[str]:
    with Endpoint(registry, where, PARTICIPANT, timeout=TIMEOUT_MS / 1000) as endpoint:
        yield str(endpoint.path)


def c_server(library: Library, where: Path) -> AbstractContextManager[str]:
    return library.serve(registry_for_c, where, PARTICIPANT, TIMEOUT_MS)


SERVERS = {"C": c_server, "Python": python_server}


@pytest.fixture
def where(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short, since a path to a socket has 107 bytes at most."""
    path = tmp_path_factory.mktemp("e")
    path.chmod(0o700)
    return path


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, library: Library, where: Path) -> Iterator[str]:
    with SERVERS[request.param](library, where) as path:
        yield path


class Client(Protocol):
    """(status, descriptor or -1, cuda)"""

    def __call__(self, library: Library, ticket: Ticket, timeout_ms: int = ...) -> tuple[Status, int, int]: ...


def python_client(library: Library, ticket: Ticket, timeout_ms: int = PATIENT_MS) -> tuple[Status, int, int]:
    try:
        return Status.OK, export(ticket, timeout_ms / 1000), 0
    except ProtocolError as error:
        return error.status, -1, error.cuda


def c_client(library: Library, ticket: Ticket, timeout_ms: int = PATIENT_MS) -> tuple[Status, int, int]:
    return library.export(ticket, timeout_ms)


CLIENTS: dict[str, Client] = {"C": c_client, "Python": python_client}


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Client:
    chosen: Client = CLIENTS[request.param]
    return chosen


def test_export_twice(library: Library, server: str, client: Client) -> None:
    ticket = Ticket(Kind.UNICAST, PARTICIPANT, RESOURCE, server)
    fds = []
    for _ in range(2):
        status, fd, cuda = client(library, ticket)
        assert (status, cuda) == (Status.OK, 0)
        assert not os.get_inheritable(fd)
        assert os.read(fd, 1) == b""
        fds.append(fd)
    assert len({os.fstat(fd).st_ino for fd in fds}) == 2
    for fd in fds:
        os.close(fd)


@pytest.mark.parametrize(
    ("changes", "status", "cuda", "result"),
    [
        ({"resource": b"\7" * 16}, Status.UNKNOWN, 0, 400),
        ({"kind": Kind.MULTICAST}, Status.KIND, 0, 400),
        ({"participant": b"\7" * 16}, Status.PARTICIPANT, 0, 400),
        ({"resource": BUSY}, Status.BUSY, 0, 600),
        ({"resource": REFUSED}, Status.CUDA, 201, 201),
        ({"resource": OUT}, Status.RESOURCES, 0, 2),
        ({"endpoint": "/nowhere"}, Status.TRANSPORT, 0, 304),
    ],
    ids=lambda value: value.name if isinstance(value, Status) else "",
)
def test_refusals(
    library: Library,
    server: str,
    client: Client,
    changes: dict[str, object],
    status: Status,
    cuda: int,
    result: int,
) -> None:
    ticket = replace(Ticket(Kind.UNICAST, PARTICIPANT, RESOURCE, server), **changes)
    assert client(library, ticket) == (status, -1, cuda)
    assert frame.cuda_result(status, cuda) == library.c.cui_status_to_cuda(status, cuda) == result


def test_every_status_has_one_result(library: Library) -> None:
    for status in Status:
        result = frame.cuda_result(status, 701)
        assert result == library.c.cui_status_to_cuda(status, 701) == ProtocolError(status, "", 701).cuda_result


def ask(path: str, message: bytes, fds: int = 0) -> tuple[Frame | None, int]:
    """What a server answers to raw bytes with that many descriptors: (the frame or None, descriptors)."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection, open(os.devnull, "rb") as null:
        connection.settimeout(5)
        connection.connect(path)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null.fileno()] * fds))] if fds else []
        connection.sendmsg([message], rights)
        try:
            reply, fd = frame.receive(connection)
        except ProtocolError as error:
            if error.status is not Status.TRANSPORT:
                raise
            return None, 0
        if fd is not None:
            os.close(fd)
        return reply, fd is not None


REQUEST = Frame(Op.EXPORT, 77, Kind.UNICAST, PARTICIPANT, RESOURCE)
IDENTIFY = Frame(Op.IDENTIFY, 78, 0, NOBODY, NOBODY)


def edited(at: int, value: bytes, message: bytes = REQUEST.encode()) -> bytes:
    return message[:at] + value + message[at + len(value) :]


HOSTILE_REQUESTS: dict[str, tuple[bytes, int, Status]] = {
    "short": (REQUEST.encode()[:63], 0, Status.MALFORMED),
    "one byte": (b"C", 0, Status.MALFORMED),
    "300 bytes": (REQUEST.encode() + bytes(236), 0, Status.MALFORMED),
    "magic": (edited(0, b"XUIF"), 0, Status.MALFORMED),
    "version": (edited(4, b"\2\0"), 0, Status.VERSION),
    "flags": (edited(14, b"\1"), 0, Status.MALFORMED),
    "status": (edited(8, b"\1"), 0, Status.MALFORMED),
    "cuda": (edited(28, b"\1"), 0, Status.MALFORMED),
    "payload lie": (edited(24, b"\1"), 0, Status.MALFORMED),
    "huge payload lie": (edited(24, b"\xff\xff\xff\xff"), 0, Status.MALFORMED),
    "real payload": (edited(24, b"\4") + b"data", 0, Status.MALFORMED),
    "a reply": (edited(7, b"\x80"), 0, Status.MALFORMED),
    "op 0": (edited(6, b"\0\0"), 0, Status.OP),
    "coordinator op": (edited(6, b"\x10\0"), 0, Status.OP),
    "kind 0": (edited(12, b"\0\0"), 0, Status.KIND),
    "kind 3": (edited(12, b"\3\0"), 0, Status.KIND),
    "identify a resource": (replace(IDENTIFY, resource=RESOURCE).encode(), 0, Status.MALFORMED),
    "identify a kind": (replace(IDENTIFY, kind=1).encode(), 0, Status.MALFORMED),
    "identify another": (replace(IDENTIFY, participant=RESOURCE).encode(), 0, Status.PARTICIPANT),
    "a descriptor": (REQUEST.encode(), 1, Status.MALFORMED),
    "2 descriptors": (REQUEST.encode(), 2, Status.MALFORMED),
    "16 descriptors": (REQUEST.encode(), 16, Status.MALFORMED),
    "17 descriptors": (REQUEST.encode(), 17, Status.MALFORMED),
    "100 descriptors": (REQUEST.encode(), 100, Status.MALFORMED),
    "identify with a descriptor": (IDENTIFY.encode(), 1, Status.MALFORMED),
    "a short one with descriptors": (b"CUIF", 3, Status.MALFORMED),
    "nothing with a descriptor": (b"", 1, Status.MALFORMED),
}


@pytest.mark.parametrize("name", HOSTILE_REQUESTS)
def test_hostile_requests(server: str, name: str) -> None:
    message, fds, status = HOSTILE_REQUESTS[name]
    reply, got = ask(server, message, fds)
    assert reply is not None
    assert (reply.status, got) == (status, 0)
    assert reply.op & REPLY
    # and it serves on
    assert ask(server, REQUEST.encode()) == (replace(REQUEST, op=Op.EXPORT | REPLY), 1)


def test_echo(server: str) -> None:
    unknown = replace(REQUEST, resource=b"\7" * 16)
    assert ask(server, unknown.encode()) == (replace(unknown, op=Op.EXPORT | REPLY, status=Status.UNKNOWN), 0)


def test_empty_message_is_a_hang_up(server: str) -> None:
    assert ask(server, b"") == (None, 0)


def test_random_requests(server: str) -> None:
    """Whatever 64 bytes come, an answer comes, or the descriptor that was asked for."""

    @given(data=st.binary(max_size=70), keep=st.integers(0, 64))
    def run(data: bytes, keep: int) -> None:
        reply, got = ask(server, (REQUEST.encode()[:keep] + data) or b"x")
        assert reply is not None
        assert got == (reply.status == Status.OK and reply.op == Op.EXPORT | REPLY)

    run()


def test_identify(server: str) -> None:
    assert identify(server) == (PARTICIPANT, os.getpid())
    assert identify(server, PARTICIPANT) == (PARTICIPANT, os.getpid())
    with pytest.raises(ProtocolError, match="PARTICIPANT"):
        identify(server, RESOURCE)


def test_silent_clients(server: str) -> None:
    """More of them than are waited for at once: dropped in time, and others are served meanwhile or after."""
    silent = []
    for _ in range(20):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(10)
        connection.connect(server)
        silent.append(connection)
    assert ask(server, REQUEST.encode())[1] == 1
    for connection in silent:
        assert connection.recv(1) == b""
        connection.close()


def test_clients_that_hang_up(server: str) -> None:
    for _ in range(50):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(server)
            connection.send(REQUEST.encode())
    assert ask(server, REQUEST.encode())[1] == 1


def test_many_at_once(library: Library, server: str, client: Client) -> None:
    ticket = Ticket(Kind.UNICAST, PARTICIPANT, RESOURCE, server)
    failures: list[object] = []

    def work() -> None:
        for _ in range(25):
            status, fd, _ = client(library, ticket)
            if status is Status.OK:
                os.close(fd)
            else:
                failures.append(status)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def bug(name: bytes, kind: int) -> int:
    raise RuntimeError("a bug of the registry")


def leaves(name: bytes, kind: int) -> int:
    raise SystemExit(3)


BUGS: dict[str, tuple[Callable[[bytes, int], object], Status]] = {
    "exception": (bug, Status.CUDA),
    "exit": (leaves, Status.CUDA),
    "None": (lambda name, kind: None, Status.CUDA),
    "a status that is never sent": (lambda name, kind: Refusal(Status.TRANSPORT).status, Status.CUDA),
    "OK as a refusal": (lambda name, kind: Refusal(Status.OK).status, Status.CUDA),
    "CUDA without a result": (lambda name, kind: Refusal(Status.CUDA).status, Status.CUDA),
    "a result beyond 32 bits": (lambda name, kind: Refusal(Status.CUDA, 1 << 31).status, Status.CUDA),
    "no descriptor": (lambda name, kind: -1, Status.RESOURCES),
    "a closed descriptor": (lambda name, kind: 1 << 20, Status.RESOURCES),
    "a number beyond descriptors": (lambda name, kind: 1 << 40, Status.CUDA),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_registrys_bug_answers_one_client(
    library: Library, where: Path, client: Client, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """An error for who asked, a line in the log, and the endpoint lives."""
    broken, status = BUGS[name]

    def sometimes(resource: bytes, kind: int) -> int:
        return registry(resource, kind) if resource == RESOURCE else broken(resource, kind)  # type: ignore[return-value]

    with Endpoint(sometimes, where, PARTICIPANT) as endpoint:
        for _ in range(2):
            answered = client(library, endpoint.ticket(MULTICAST))
            assert answered == (status, -1, 999 if status is Status.CUDA else 0)
            alive, fd, _ = client(library, endpoint.ticket(RESOURCE))
            assert alive is Status.OK
            os.close(fd)
    logged = [record for record in caplog.records if record.name == "cuinterpose.endpoint"]
    assert len(logged) == (2 if status is Status.CUDA else 0)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_forked_child_leaves_the_endpoint_to_its_parent(library: Library, where: Path) -> None:
    """Leaving the block in a child neither stops the parent's thread nor unlinks its socket."""
    with Endpoint(registry, where, PARTICIPANT) as endpoint:
        child = os.fork()
        if not child:
            status = 1
            try:
                before = len(open_descriptors())
                endpoint.close()
                endpoint.close()
                status = 0 if len(open_descriptors()) < before else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert ask(str(endpoint.path), REQUEST.encode())[1] == 1
    assert not list(where.iterdir())
    endpoint.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_forked_child_makes_its_own_endpoint(library: Library, where: Path) -> None:
    ready, tell = os.pipe()
    stop, hold = os.pipe()
    with Endpoint(registry, where, PARTICIPANT) as endpoint:
        child = os.fork()
        if not child:
            try:
                os.close(hold)
                endpoint.close()
                with Endpoint(registry, where) as own:
                    os.write(tell, str(own.path).encode())
                    os.read(stop, 1)
            finally:
                os._exit(0)
        for fd in (tell, stop):
            os.close(fd)
        path = os.read(ready, 200).decode()
        assert identify(path)[1] == child
        assert identify(str(endpoint.path)) == (PARTICIPANT, os.getpid())
        for fd in (ready, hold):
            os.close(fd)
        os.waitpid(child, 0)


# ---- hostile servers


@contextmanager
def hostile_server(where: Path, behave: Callable[[socket.socket, Frame], None]) -> Iterator[str]:
    """Takes one connection, reads a request and does what it wants."""
    path = str(where / "hostile")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        listener.settimeout(10)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                request, _ = frame.receive(connection)
                behave(connection, request)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield path
        finally:
            thread.join()
            os.unlink(path)


def answer(
    fds: int = 1, raw: Callable[[bytes], bytes] = bytes, **changes: object
) -> Callable[[socket.socket, Frame], None]:
    def behave(connection: socket.socket, request: Frame) -> None:
        reply = replace(request, op=request.op | REPLY)
        reply = replace(reply, **{name: new(reply) if callable(new) else new for name, new in changes.items()})
        with open(os.devnull, "rb") as null:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null.fileno()] * fds))] if fds else []
            connection.sendmsg([raw(reply.encode())], rights)

    return behave


def silent(connection: socket.socket, _: Frame) -> None:
    connection.recv(1)  # until the client gives up


def hang_up(connection: socket.socket, _: Frame) -> None:
    connection.shutdown(socket.SHUT_RDWR)


HOSTILE_SERVERS: dict[str, tuple[Callable[[socket.socket, Frame], None], Status]] = {
    "0 descriptors": (answer(0), Status.MALFORMED),
    "2 descriptors": (answer(2), Status.MALFORMED),
    "3 descriptors": (answer(3), Status.MALFORMED),
    "16 descriptors": (answer(16), Status.MALFORMED),
    "17 descriptors": (answer(17), Status.MALFORMED),
    "100 descriptors": (answer(100), Status.MALFORMED),
    "a descriptor with an error": (answer(1, status=5), Status.MALFORMED),
    "short": (answer(raw=lambda data: data[:63]), Status.MALFORMED),
    "empty with a descriptor": (answer(raw=lambda data: b""), Status.MALFORMED),
    "300 bytes": (answer(raw=lambda data: data + bytes(236)), Status.MALFORMED),
    "magic": (answer(raw=lambda data: edited(0, b"XUIF", data)), Status.MALFORMED),
    "version": (answer(raw=lambda data: edited(4, b"\2\0", data)), Status.VERSION),
    "flags": (answer(raw=lambda data: edited(14, b"\1", data)), Status.MALFORMED),
    "payload lie": (answer(length=4), Status.MALFORMED),
    "payload": (answer(raw=lambda data: edited(24, b"\4", data) + b"data"), Status.MALFORMED),
    "op": (answer(op=Op.IDENTIFY | REPLY), Status.MALFORMED),
    "not a reply": (answer(op=Op.EXPORT), Status.MALFORMED),
    "serial": (answer(serial=lambda reply: reply.serial + 1), Status.MALFORMED),
    "kind": (answer(kind=2), Status.MALFORMED),
    "participant": (answer(participant=RESOURCE), Status.MALFORMED),
    "resource": (answer(resource=PARTICIPANT), Status.MALFORMED),
    "status -1": (answer(0, status=-1), Status.MALFORMED),
    "status 99": (answer(0, status=99), Status.MALFORMED),
    "status PEER": (answer(0, status=Status.PEER), Status.MALFORMED),
    "status TRANSPORT": (answer(0, status=Status.TRANSPORT), Status.MALFORMED),
    "CUDA without a result": (answer(0, status=Status.CUDA), Status.MALFORMED),
    "a result without CUDA": (answer(1, cuda=1), Status.MALFORMED),
    "silence": (silent, Status.TRANSPORT),
    "hang-up": (hang_up, Status.TRANSPORT),
}


@pytest.mark.parametrize("name", HOSTILE_SERVERS)
def test_hostile_servers(library: Library, where: Path, client: Client, name: str) -> None:
    behave, status = HOSTILE_SERVERS[name]
    with hostile_server(where, behave) as path:
        ticket = Ticket(Kind.UNICAST, PARTICIPANT, RESOURCE, path)
        assert client(library, ticket, SILENCE_MS if name == "silence" else PATIENT_MS) == (status, -1, 0)


def test_good_server_is_not_hostile(library: Library, where: Path, client: Client) -> None:
    """The harness itself: the same server, behaving."""
    with hostile_server(where, answer()) as path:
        status, fd, _ = client(library, Ticket(Kind.UNICAST, PARTICIPANT, RESOURCE, path))
        assert status is Status.OK
        os.close(fd)


def test_no_descriptor_left_to_receive(library: Library, where: Path, client: Client) -> None:
    """The kernel says MSG_CTRUNC and installs none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def behave(connection: socket.socket, request: Frame) -> None:
        with open(os.devnull, "rb") as null:
            free = os.dup(null.fileno())
            os.close(free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
            frame.send(connection, replace(request, op=request.op | REPLY), null.fileno())
            connection.recv(1)  # until the client has taken it

    try:
        with hostile_server(where, behave) as path:
            assert client(library, Ticket(Kind.UNICAST, PARTICIPANT, RESOURCE, path)) == (Status.MALFORMED, -1, 0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_one_descriptor_left_to_receive(library: Library, where: Path, client: Client) -> None:
    """Two come and one finds room: the kernel installs it and says MSG_CTRUNC, and it is not taken for the answer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def behave(connection: socket.socket, request: Frame) -> None:
        with open(os.devnull, "rb") as null:
            rights = array.array("i", [null.fileno()] * 2)
            free = os.dup(null.fileno())
            os.close(free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, hard))
            reply = replace(request, op=request.op | REPLY)
            connection.sendmsg([reply.encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            connection.recv(1)  # until the client has taken it

    try:
        with hostile_server(where, behave) as path:
            assert client(library, Ticket(Kind.UNICAST, PARTICIPANT, RESOURCE, path)) == (Status.MALFORMED, -1, 0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("call", ["recvmsg", "sendmsg"])
def test_interrupted_exchange(library: Library, where: Path, call: str) -> None:
    """EINTR on either side of the C client: asked again."""
    with python_server(library, where) as path, library.fault(call, 3, errno.EINTR):
        status, fd, _ = library.export(Ticket(Kind.UNICAST, PARTICIPANT, RESOURCE, path))
        assert status is Status.OK
        os.close(fd)
    with python_server(library, where) as path, library.fault(call, 1, errno.EPIPE):
        assert library.export(Ticket(Kind.UNICAST, PARTICIPANT, RESOURCE, path)) == (Status.TRANSPORT, -1, 0)


def test_a_frame_sent_in_part(library: Library, where: Path) -> None:
    """SEQPACKET never does so; if it did, it would be no exchange."""
    with python_server(library, where) as path, library.fault("sendmsg"):
        assert library.export(Ticket(Kind.UNICAST, PARTICIPANT, RESOURCE, path)) == (Status.TRANSPORT, -1, 0)


def test_server_without_descriptors_recovers(library: Library, server: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        free = os.dup(connection.fileno())
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        try:
            connection.connect(server)
            before = time.process_time()
            time.sleep(0.5)
            # the listener stays readable all the while: waiting for it in a loop would take this long
            assert time.process_time() - before < 0.05
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        connection.settimeout(5)
        connection.send(REQUEST.encode())
        reply, fd = frame.receive(connection)
        assert reply.status == Status.OK
        assert fd is not None
        os.close(fd)


# ---- the directory and the socket


def open_with(who: str, library: Library, directory: str) -> None:
    if who == "C":
        endpoint = library.open_endpoint(directory, PARTICIPANT)
        library.c.cui_endpoint_close(ctypes.byref(endpoint))
    else:
        Endpoint(registry, Path(directory), PARTICIPANT).close()


@pytest.mark.parametrize("who", SERVERS)
@pytest.mark.parametrize("mode", [0o710, 0o701, 0o750, 0o777, 0o740])
def test_directory_open_to_others(library: Library, where: Path, who: str, mode: int) -> None:
    where.chmod(mode)
    with pytest.raises(OSError, match=r"closed to others|not permitted|not owned"):
        open_with(who, library, str(where))
    where.chmod(0o700)
    open_with(who, library, str(where))
    assert not list(where.iterdir())


@pytest.mark.parametrize("who", SERVERS)
def test_directory_of_somebody_else(library: Library, where: Path, who: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to give a directory away")
    os.chown(where, 65534, -1)
    with pytest.raises(OSError, match=r"closed to others|not permitted|not owned"):
        open_with(who, library, str(where))


@pytest.mark.parametrize("who", SERVERS)
def test_directory_that_is_none(library: Library, where: Path, who: str) -> None:
    (where / "link").symlink_to(where)
    (where / "file").touch()
    for name in ("link", "file", "missing"):
        with pytest.raises(OSError, match=r"Not a directory|No such file|Too many levels"):
            open_with(who, library, str(where / name))
    with pytest.raises(OSError, match=r"Invalid argument|not absolute"):
        open_with(who, library, "relative")


@pytest.mark.parametrize("who", SERVERS)
def test_path_that_no_ticket_holds(library: Library, where: Path, who: str) -> None:
    long = where / ("d" * 100)
    long.mkdir(mode=0o700)
    with pytest.raises((OSError, ValueError), match=r"too long|more than 107"):
        open_with(who, library, str(long))
    assert not list(long.iterdir())


@pytest.mark.parametrize("who", SERVERS)
def test_existing_name(library: Library, where: Path, who: str) -> None:
    """Whatever is there is left alone: a file, a live peer, a dangling link."""
    name = where / PARTICIPANT.hex()
    name.symlink_to(where / "nowhere")
    with pytest.raises(OSError, match="in use"):
        open_with(who, library, str(where))
    assert name.is_symlink()
    name.unlink()
    with python_server(library, where) as live:
        with pytest.raises(OSError, match="in use"):
            open_with(who, library, str(where))
        assert ask(live, REQUEST.encode())[1] == 1


@pytest.mark.parametrize("who", SERVERS)
def test_socket_is_its_owners_alone(library: Library, where: Path, who: str) -> None:
    old = os.umask(0)
    try:
        with SERVERS[who](library, where) as path:
            assert os.stat(path).st_mode & 0o777 == 0o600
            assert Path(path).name == PARTICIPANT.hex()
    finally:
        os.umask(old)
    assert not list(where.iterdir())


def test_forked_child_unlinks_nothing(library: Library, where: Path) -> None:
    endpoint = library.open_endpoint(str(where), PARTICIPANT)
    child = os.fork()
    if not child:
        library.c.cui_endpoint_close(ctypes.byref(endpoint))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (where / PARTICIPANT.hex()).is_socket()
    library.c.cui_endpoint_close(ctypes.byref(endpoint))
    assert not list(where.iterdir())


@contextmanager
def stranger(where: Path) -> Iterator[str]:
    """An endpoint of uid 65534, in a forked child."""
    ready, tell = os.pipe()
    stop, hold = os.pipe()
    child = os.fork()
    if not child:
        os.close(hold)
        try:
            os.setgid(65534)
            os.setuid(65534)
            with Endpoint(registry, where, PARTICIPANT):
                os.write(tell, b"x")
                os.read(stop, 1)
        finally:
            os._exit(0)
    os.close(tell)
    os.close(stop)
    try:
        assert os.read(ready, 1) == b"x"
        yield str(where / PARTICIPANT.hex())
    finally:
        os.close(ready)
        os.close(hold)
        os.waitpid(child, 0)


def test_strangers(library: Library, client: Client) -> None:
    """An endpoint of another uid: no client takes its answer, and it gives none."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to be two users")
    where = Path(f"/tmp/cui-{os.getpid()}")
    where.mkdir(mode=0o700)
    os.chown(where, 65534, 65534)
    with stranger(where) as path:
        assert client(library, Ticket(Kind.UNICAST, PARTICIPANT, RESOURCE, path)) == (Status.PEER, -1, 0)
        assert ask(path, REQUEST.encode()) == (None, 0)
    where.rmdir()


@pytest.mark.parametrize("who", ["C", "Python"])
def test_environment_names_the_directory(
    library: Library, where: Path, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    def ask_it() -> str:
        if who == "Python":
            return str(directory())
        # os.environ reaches C's environ by putenv
        path = ctypes.create_string_buffer(200)
        error = library.c.cui_endpoint_directory(path, ctypes.c_size_t(len(path)))
        if error:
            raise OSError(-error, os.strerror(-error))
        return path.value.decode()

    monkeypatch.delenv("CUINTERPOSE_DIR", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    with pytest.raises(OSError, match=r"No such file|neither"):
        ask_it()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(where))
    for _ in range(2):
        assert ask_it() == str(where / "cuinterpose")
    assert (where / "cuinterpose").stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("CUINTERPOSE_DIR", "/elsewhere")
    assert ask_it() == "/elsewhere"


def test_no_goto() -> None:
    """Ownership by cleanup attributes and direct returns, in everything that a peer's bytes reach."""
    for source in SOURCES:
        text = source.read_text()
        assert not re.search(r"\bgoto\b", text)
        # a descriptor that is made is owned at once
        for line in re.findall(r"^.*\b(?:socket|open|accept4|syscall\(SYS_memfd_create)\(.*$", text, re.M):
            assert re.search(r"CUI_OWNED|^\s*(fd|memfd|parent) = ", line), line


def test_new_identity_is_random() -> None:
    assert len({new_identity() for _ in range(100)}) == 100
