"""Units of a source's releases are parsed in processes of their own: as many as there are processors, and limited.

A parsing process has no file but its pipe, bounded memory and bounded processor time for each release (confine.py), so
that a header can at worst end its parser, which is then an error with a name.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Generator, Iterable, Iterator, Mapping
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Protocol

from nvproxy_model.drivers.parsing.confine import confine, drop_descriptors, limit_processor
from nvproxy_model.drivers.parsing.headers import extract
from nvproxy_model.drivers.parsing.scan import SDK, Headers, Said, prepare
from nvproxy_model.drivers.parsing.units import Unit
from nvproxy_model.drivers.release import LayoutTable, Wanted, pack_release
from nvproxy_model.errors import SourceError

__all__ = ["CPU_SECONDS", "MEMORY", "Readable", "parse", "place"]

CPU_SECONDS = 60
"""Processor seconds for one release; a full reading takes two."""
MEMORY = 3 << 30
"""Bytes of address space for one parser."""
MAX_WORKERS = 4
HELD = 64 << 20
"""Bytes of headers that a parser is sent before it lets go of those that its next unit does not need."""


class Readable(Protocol):
    """What a parser asks of a source of releases; `nvproxy_model.drivers.sources.Source` is one."""

    path: Path
    table: LayoutTable

    def files(self, version: str) -> Mapping[str, str]: ...
    def identities(self, versions: Iterable[str]) -> dict[str, tuple[str, ...]]: ...
    def read(self, blobs: Iterable[str]) -> dict[str, bytes]: ...
    def closure(self, files: Mapping[str, str], modeset: bool) -> Headers: ...
    def said(self, files: Mapping[str, str]) -> dict[str, Said]: ...


def place(source: Readable, version: str) -> str:
    """How an error names a release of a source."""
    return f"{source.path}: {version}"


class _Parser:
    """One parsing process and what it holds: the blobs of earlier units, so that only new ones are sent."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self.connection), daemon=True)
        self._process.start()
        theirs.close()
        self._held: set[str] = set()
        self._size = 0

    def ask(self, source: Readable, unit: Unit) -> None:
        blobs = set(unit.files.values())
        if self._size > HELD:
            self._held &= blobs
            self._size = 0
        fresh = source.read(sorted(blobs - self._held))
        self._held |= blobs
        self._size += sum(map(len, fresh.values()))
        self.connection.send((unit.files, fresh, self._held, unit.wanted, unit.starts))

    def close(self) -> None:
        self.connection.close()
        self._process.kill()
        self._process.join()


def parse(source: Readable, units: Iterator[Unit]) -> Generator[tuple[Unit, bytes], None, None]:
    """(unit, its packed release as JSON) as they are done. The next unit is fetched while others are parsed."""
    most = min(len(os.sched_getaffinity(0)), MAX_WORKERS)
    parsers: list[_Parser] = []
    idle: list[_Parser] = []
    busy: dict[Connection, tuple[_Parser, Unit, Unit]] = {}

    def ask(parser: _Parser, unit: Unit, asked: Unit) -> None:
        try:
            parser.ask(source, asked)
        except SourceError as error:
            raise error.at(place(source, unit.version)) from None
        except OSError:
            raise SourceError("its parser could not be started", place(source, unit.version)) from None
        busy[parser.connection] = (parser, unit, asked)

    try:
        following = next(units, None)
        while following is not None or busy:
            while following is not None and (idle or len(parsers) < most):
                if not idle:
                    parsers.append(_Parser())
                    idle.append(parsers[-1])
                ask(idle.pop(), following, following)
                following = next(units, None)
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                parser, unit, asked = busy.pop(ready)
                try:
                    verdict, _, answer = ready.recv_bytes().partition(b"\n")
                except (EOFError, OSError):
                    limits = f"{CPU_SECONDS} s of processor time, {MEMORY >> 30} GiB"
                    what = f"the parser gave up on its headers (limits: {limits})"
                    raise SourceError(what, place(source, unit.version)) from None
                if verdict == b"release":
                    idle.append(parser)
                    yield unit, answer
                elif asked.starts is not None:
                    ask(parser, unit, asked.whole())
                else:
                    raise SourceError(answer.decode("utf-8", "replace"), place(source, unit.version))
    finally:
        for parser in parsers:
            parser.close()


def _serve(connection: Connection, other: Connection) -> None:
    """The parsing process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    other.close()
    drop_descriptors(connection.fileno())
    # Load all that parsing needs while files can still be opened.
    extract({f"{SDK}/nvos.h": b"struct s { int f; };"}, Wanted(frozenset({"s"}), frozenset({"C"})))
    confine(MEMORY)
    blobs: dict[str, bytes] = {}
    with connection:
        while True:
            try:
                files, fresh, held, wanted, starts = connection.recv()
            except EOFError:
                return
            limit_processor(CPU_SECONDS)
            try:
                blobs = {blob: text for blob, text in blobs.items() if blob in held}
                blobs |= {blob: prepare(path, fresh[blob]) for path, blob in files.items() if blob in fresh}
                release = extract({path: blobs[blob] for path, blob in files.items()}, wanted, starts)
                if starts is not None and not release.structs.keys() >= set(release.params.values()) - {""}:
                    raise SourceError("the struct of a control is declared elsewhere")
                packed = pack_release(release)
                connection.send_bytes(b"release\n" + json.dumps(packed, separators=(",", ":")).encode())
            except SourceError as error:
                connection.send_bytes(b"error\n" + str(error).encode("utf-8", "replace"))
