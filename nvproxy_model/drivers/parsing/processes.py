"""Parse releases of a source in processes of their own: as many as there are processors, and limited.

A parsing process has no file but its pipe, bounded memory and bounded processor time for each release (confine.py), so
that a header can at worst end its parser, which is then an error with a name.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from importlib.metadata import version as installed
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol

from nvproxy_model.drivers.parsing.cache import Cache
from nvproxy_model.drivers.parsing.confine import confine, drop_descriptors, limit_processor
from nvproxy_model.drivers.parsing.headers import EXTRACTION, SDK, Wanted, extract, prepare
from nvproxy_model.drivers.release import LayoutTable, Release, pack_release, unpack_release
from nvproxy_model.errors import SourceError

__all__ = ["CPU_SECONDS", "MEMORY", "parse_releases"]

CPU_SECONDS = 60
"""Processor seconds for one release; a full reading takes two."""
MEMORY = 3 << 30
"""Bytes of address space for one parser."""
MAX_WORKERS = 4


class Readable(Protocol):
    """What a parser asks of a source of releases; `nvproxy_model.drivers.sources.Source` is one."""

    path: Path
    table: LayoutTable

    def files(self, version: str) -> Mapping[str, str]: ...
    def identity(self, version: str) -> tuple[str, ...]: ...
    def read(self, blobs: Iterable[str]) -> dict[str, bytes]: ...
    def closure(self, files: Mapping[str, str], modeset: bool) -> dict[str, str]: ...


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def parse_releases(source: Readable, versions: list[str], wanted: Wanted | None, use_cache: bool) -> Iterator[Release]:
    """The releases in order. Releases with the same headers are parsed once, and not at all when the cache has them."""
    cache = Cache() if use_cache else None
    names = None if wanted is None else (sorted(wanted.structs), sorted(wanted.constants))
    tool = (EXTRACTION, installed("libclang"), names)
    modeset = wanted is None or wanted.modeset
    keys: list[str] = []
    jobs: dict[str, tuple[str, Mapping[str, str]]] = {}
    answers: dict[str, bytes] = {}
    known: dict[tuple[str, ...], str] = {}
    for version in versions:
        identity = source.identity(version)
        key = known.get(identity)
        if key is None:
            content, closed = _content(source, version, identity, modeset, cache)
            key = known[identity] = _digest("release", tool, content)
            if key not in jobs and key not in answers:
                stored = cache.get(key) if cache else None
                if stored is None:
                    jobs[key] = (version, closed or _closure(source, version, modeset))
                else:
                    answers[key] = stored
        keys.append(key)
    uses = Counter(keys)
    unpacked: dict[str, Release] = {}
    try:
        with closing(_parse(source, jobs, wanted)) as parsed:
            for version, key in zip(versions, keys, strict=True):
                while key not in answers and key not in unpacked:
                    done, answers[done] = next(parsed)
                    if cache:
                        cache.put(done, answers[done])
                if key in answers:
                    packed = json.loads(answers.pop(key))
                    unpacked[key] = unpack_release(version, packed, str(source.path), source.table)
                uses[key] -= 1
                yield replace(unpacked[key] if uses[key] else unpacked.pop(key), version=version)
    finally:
        if cache:
            cache.trim()


def _content(
    source: Readable, version: str, identity: tuple[str, ...], modeset: bool, cache: Cache | None
) -> tuple[str, Mapping[str, str] | None]:
    """A digest of the headers that a release's ABI is made of, and those headers unless the cache knew the digest.

    What they are takes reading them (``source.closure``), so the digest is remembered by the release's identity.
    """
    key = _digest("content", EXTRACTION, modeset, identity)
    stored = cache.get(key) if cache else None
    if stored is not None:
        return stored.decode(), None
    closed = _closure(source, version, modeset)
    content = _digest(sorted(closed.items()))
    if cache:
        cache.put(key, content.encode())
    return content, closed


def _closure(source: Readable, version: str, modeset: bool) -> Mapping[str, str]:
    try:
        return source.closure(source.files(version), modeset)
    except SourceError as error:
        raise error.at(_place(source, version)) from None


def _place(source: Readable, version: str) -> str:
    return f"{source.path}: {version}"


class _Parser:
    """One parsing process and what it holds: the blobs of its last release, so that only new ones are sent."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self.connection), daemon=True)
        self._process.start()
        theirs.close()
        self.blobs: set[str] = set()

    def ask(self, source: Readable, files: Mapping[str, str], wanted: Wanted | None) -> None:
        blobs = set(files.values())
        self.connection.send((files, source.read(sorted(blobs - self.blobs)), wanted))
        self.blobs = blobs

    def close(self) -> None:
        self.connection.close()
        self._process.kill()
        self._process.join()


def _parse(
    source: Readable, jobs: Mapping[str, tuple[str, Mapping[str, str]]], wanted: Wanted | None
) -> Generator[tuple[str, bytes], None, None]:
    """(key, packed release as JSON) as they are done."""
    queue = list(jobs)
    queue.reverse()
    count = min(len(jobs), len(os.sched_getaffinity(0)), MAX_WORKERS)
    parsers = [_Parser() for _ in range(count)]
    busy: dict[Connection, tuple[_Parser, str]] = {}
    try:
        idle = list(parsers)
        while queue or busy:
            while queue and idle:
                parser, key = idle.pop(), queue.pop()
                version, files = jobs[key]
                try:
                    parser.ask(source, files, wanted)
                except SourceError as error:
                    raise error.at(_place(source, version)) from None
                except OSError:
                    raise SourceError("its parser could not be started", _place(source, version)) from None
                busy[parser.connection] = (parser, key)
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                parser, key = busy.pop(ready)
                version = jobs[key][0]
                try:
                    verdict, _, answer = ready.recv_bytes().partition(b"\n")
                except (EOFError, OSError):
                    limits = f"{CPU_SECONDS} s of processor time, {MEMORY >> 30} GiB"
                    what = f"the parser gave up on its headers (limits: {limits})"
                    raise SourceError(what, _place(source, version)) from None
                if verdict != b"release":
                    raise SourceError(answer.decode("utf-8", "replace"), _place(source, version))
                idle.append(parser)
                yield key, answer
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
                files, fresh, wanted = connection.recv()
            except EOFError:
                return
            limit_processor(CPU_SECONDS)
            try:
                blobs = {
                    blob: prepare(path, fresh[blob]) if blob in fresh else blobs[blob] for path, blob in files.items()
                }
                packed = pack_release(extract({path: blobs[blob] for path, blob in files.items()}, wanted))
                connection.send_bytes(b"release\n" + json.dumps(packed, separators=(",", ":")).encode())
            except SourceError as error:
                connection.send_bytes(b"error\n" + str(error).encode("utf-8", "replace"))
