"""The targets: each takes any bytes, and any exception but the ones that its reader documents is a finding."""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from cuinterpose import elf
from cuinterpose import frame as share_frame
from cuinterpose import ticket as share_ticket
from nvproxy_model import ioctl
from nvproxy_model.drivers.compare import pins
from nvproxy_model.drivers.gvisor.gosource import GoPackage
from nvproxy_model.drivers.parsing import scan
from nvproxy_model.drivers.sources.archives import ArchiveSource
from nvproxy_model.errors import NvproxyError
from nvproxy_model.policy.policy import Policy
from nvproxy_model.testing import conform
from nvproxy_model.tools import trace as trace_command
from nvproxy_model.trace import format as fmt
from nvproxy_model.trace.decode.catalog import Catalog
from nvproxy_model.trace.decode.decoder import Decoder
from nvproxy_model.trace.lines import Problems, lines, split
from nvproxy_model.trace.logs.kinds import KINDS
from nvproxy_model.trace.logs.prefixes import LINE_LIMIT, texts, utf8
from nvproxy_model.trace.reader import parse
from nvproxy_model.trace.record import spool
from tests import TRACES

__all__ = ["CORPUS", "TARGETS", "Target", "seeds"]

CORPUS: Final = Path(__file__).with_name("corpus")
DRIVER: Final = "580.126.20"


class Target(NamedTuple):
    """A reader under test."""

    run: Callable[[bytes], None]
    modules: tuple[str, ...]
    """What is instrumented where there is coverage."""


@contextlib.contextmanager
def _file(data: bytes, suffix: str = "") -> Iterator[Path]:
    """The bytes as a file without a place on any disk."""
    fd = os.memfd_create("fuzz")
    try:
        os.write(fd, data)
        path = f"/proc/self/fd/{fd}"
        if not suffix:
            yield Path(path)
            return
        link = Path(f"/tmp/nvproxy-fuzz-{os.getpid()}{suffix}")
        link.unlink(missing_ok=True)
        link.symlink_to(f"/proc/{os.getpid()}/fd/{fd}")
        try:
            yield link
        finally:
            link.unlink()
    finally:
        os.close(fd)


@functools.cache
def _catalog() -> Catalog:
    return Catalog(DRIVER)


@functools.cache
def _policy() -> Policy:
    return Policy.for_driver(DRIVER, "all,profiling")


def trace(data: bytes) -> None:
    """Lines of a trace, packed or not, read and decoded."""
    decoder = Decoder(_catalog())
    for number, line, _ in lines(io.BytesIO(data), Problems(), 1 << 20):
        try:
            record = fmt.record(parse(line), number)
        except ValueError:
            continue
        orjson.dumps(decoder.record(record))


_COMMANDS: Final = (
    ("check", "--caps", "compute,utility"),
    ("check", "--json"),
    ("replay",),
    ("stats",),
    ("census",),
    ("decode", "--json"),
    ("compare", str(TRACES / "nvml-events.jsonl.gz")),
    ("scrub", "-o", os.devnull),
)


def trace_commands(data: bytes) -> None:
    """A whole subcommand of nvproxy-trace on a trace: the first byte chooses which."""
    name, *more = _COMMANDS[data[0] % len(_COMMANDS)] if data else _COMMANDS[0]
    with _file(data[1:]) as path, _silence():
        driver = () if name == "census" else ("--driver", DRIVER)
        # 2 is what a mistake ends with, too.
        with contextlib.suppress(SystemExit):
            assert trace_command.main([name, str(path), *more, *driver]) in (0, 1, 2)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        yield


def _log(kind: str, data: bytes) -> None:
    """A log of one kind, from its bytes to its records."""
    problems = Problems()
    found = texts(split(utf8([data]), problems, LINE_LIMIT))
    for obj in KINDS[kind][1](found, problems):
        fmt.record(orjson.loads(orjson.dumps(obj)), 1)


def strace_log(data: bytes) -> None:
    """strace's text."""
    _log("strace", data)


def nvproxy_log(data: bytes) -> None:
    """nvproxy's debug log."""
    _log("nvproxy-log", data)


def sniffer_log(data: bytes) -> None:
    """The ioctl sniffer's output."""
    _log("ioctl-sniffer", data)


def spool_frames(data: bytes) -> None:
    """The recorder's spool."""
    for obj in spool.records(io.BytesIO(data), Problems(), spool.Seen()):
        fmt.record(orjson.loads(orjson.dumps(obj)), 1)


def pin_file(data: bytes) -> None:
    """A YAML file of pins."""
    with contextlib.suppress(pins.PinError):
        pins.load(data)


def archive(data: bytes) -> None:
    """A tar archive of driver trees."""
    with _file(data) as path, contextlib.suppress(NvproxyError):
        source = ArchiveSource(path)
        for version in source.versions:
            for name in source.files(version):
                source.content(version, name)


def go_source(data: bytes) -> None:
    """A Go file of nvproxy's."""
    GoPackage("fuzz", {"fuzz.go": data}).read_all()


def header_text(data: bytes) -> None:
    """A driver's header, as far as this process looks into it."""
    scan.scan_includes(data)
    with contextlib.suppress(NvproxyError):
        scan.prepare("src/common/sdk/nvidia/inc/ctrl/ctrl0000/ctrl0000gpu.h", data)


def vectors(data: bytes) -> None:
    """Recorded vectors of nvproxy's handlers."""
    with _file(data) as path, contextlib.suppress(NvproxyError):
        conform.load(path)


def elf_file(data: bytes) -> None:
    """An ELF image: its headers, dynamic section and exported names."""
    with _file(data) as path:
        for reader in (elf.read, elf.exports):
            with contextlib.suppress(elf.ElfError):
                reader(path)


def ticket(data: bytes) -> None:
    """A ticket of the sharing protocol."""
    with contextlib.suppress(share_ticket.TicketError):
        again = share_ticket.decode(data)
        assert share_ticket.decode(again.encode()) == again


def frame(data: bytes) -> None:
    """A frame of the sharing protocol."""
    with contextlib.suppress(share_frame.ProtocolError):
        share_frame.decode(data)


def request_number(data: bytes) -> None:
    """A request as people write it."""
    value = ioctl.parse_request(data.decode("utf-8", "replace"))
    assert value is None or value >= 0


def policy(data: bytes) -> None:
    """A decision on a guest's bytes: the first four choose the number."""
    number, table = int.from_bytes(data[:3], "little"), data[3] if len(data) > 3 else 0
    body, rules = data[4:], _policy()
    named = (rules.frontend, rules.uvm, rules.control, rules.alloc)[table & 3]
    if table & 4:
        number = list(named)[number % len(named)]
    if table & 3 == 0:
        rules.decide_frontend(number, body, {})
    elif table & 3 == 1:
        rules.decide_uvm(number, body, {})
    elif table & 3 == 2:
        rules.decide_control(number, body, {})
    else:
        rules.decide_alloc(number, body, {})


def session(data: bytes) -> None:
    """Calls of a guest on a session over the fake driver; the bytes are the seed."""
    from tests.session.test_session_hostile import CAPS, VERSIONS, _random_calls, _world

    rng = random.Random(data)
    world = _world(rng.choice(VERSIONS), rng.choice(CAPS), rng.choice(["gvisor", "hardened"]))
    _random_calls(world, rng, 20)


_TRACE: Final = ("nvproxy_model.trace",)
_SHARE: Final = ("cuinterpose",)
_DRIVERS: Final = ("nvproxy_model.drivers",)

TARGETS: Final[dict[str, Target]] = {
    target.__name__: Target(target, modules)
    for target, modules in (
        (trace, _TRACE),
        (trace_commands, (*_TRACE, "nvproxy_model.session", "nvproxy_model.policy")),
        (strace_log, _TRACE),
        (nvproxy_log, _TRACE),
        (sniffer_log, _TRACE),
        (spool_frames, _TRACE),
        (pin_file, _DRIVERS),
        (archive, _DRIVERS),
        (go_source, _DRIVERS),
        (header_text, _DRIVERS),
        (vectors, ("nvproxy_model.testing",)),
        (elf_file, _SHARE),
        (ticket, _SHARE),
        (frame, _SHARE),
        (request_number, ("nvproxy_model.ioctl",)),
        (policy, ("nvproxy_model.policy",)),
        (session, ("nvproxy_model.session", "nvproxy_model.policy")),
    )
}


def seeds(name: str) -> list[bytes]:
    """What mutation begins with: the corpus, and pieces of the real traces where those are read."""
    found = [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]
    if name in ("trace", "trace_commands"):
        text = gzip.decompress((TRACES / "nvml-events.jsonl.gz").read_bytes())[:8000]
        found += [text] if name == "trace" else [bytes([i]) + text for i in range(len(_COMMANDS))]
    return found or [b""]
