"""Reads a trace as a stream: flat memory whatever the file's size, every fault reported by line, the rest still used."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

import orjson
import zstandard

from nvproxy_model.errors import NvproxyError
from nvproxy_model.trace import format as fmt
from nvproxy_model.trace.format import Header, Record, ioc_nr, printable

__all__ = ["Problems", "Reader", "TraceError", "chunks", "lines"]

_CHUNK: Final = 1 << 18
_KEPT: Final = 100


class TraceError(NvproxyError):
    """The file is no trace, or cannot be read at all."""


class Problems:
    """What was wrong with a file: all of it counted, the first hundred kept as (line, text)."""

    def __init__(self) -> None:
        self.count = 0
        self.kept: list[tuple[int, str]] = []
        self._repeats: Counter[str] = Counter()

    def add(self, line: int, text: str) -> None:
        self.count += 1
        if len(self.kept) < _KEPT:
            self.kept.append((line, text))

    def texts(self, name: str) -> list[str]:
        """One line each: ``FILE:LINE: what``."""
        shown = printable(name)
        out = [f"{shown}:{line}: {text}" if line else f"{shown}: {text}" for line, text in self.kept]
        if self.count > len(self.kept):
            out.append(f"{shown}: {self.count - len(self.kept)} more problems")
        return out


def _zstd(raw: IO[bytes], first: bytes, problems: Problems) -> Iterator[bytes]:
    # A few hundred compressed bytes at a time: a block of 4 bytes may stand for 128 KiB, and this interface has no
    # bound of its own.
    step = 256
    context = zstandard.ZstdDecompressor(max_window_size=128 << 20)
    decoder = context.decompressobj()
    data = first
    started = False
    while data:
        for at in range(0, len(data), step):
            piece = data[at : at + step]
            while piece:
                if decoder.eof:
                    decoder, started = context.decompressobj(), False
                try:
                    plain = decoder.decompress(piece)
                except zstandard.ZstdError as error:
                    problems.add(0, f"damaged zstd data, the rest was not read: {printable(str(error))[:80]}")
                    return
                started = True
                if plain:
                    yield plain
                piece = decoder.unused_data if decoder.eof else b""
        data = raw.read(_CHUNK)
    if started and not decoder.eof:
        problems.add(0, "the zstd data ends early")


class _Joined(io.RawIOBase):
    """A file whose first bytes were read already."""

    def __init__(self, first: bytes, raw: IO[bytes]) -> None:
        self._first = first
        self._raw = raw

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        if self._first and size >= 0:
            first, self._first = self._first[:size], self._first[size:]
            return first
        return self._raw.read(size)


def chunks(raw: IO[bytes], problems: Problems) -> Iterator[bytes]:
    """The plain bytes of a file that may be gzip or zstd, told by its first bytes; several members or frames are one file."""
    first = raw.read(_CHUNK)
    if first.startswith(b"\x1f\x8b"):
        stream = gzip.GzipFile(fileobj=_Joined(first, raw), mode="rb")
        while True:
            try:
                plain = stream.read1(_CHUNK)
            except EOFError:
                problems.add(0, "the gzip data ends early")
                return
            except (zlib.error, gzip.BadGzipFile) as error:
                problems.add(0, f"damaged gzip data, the rest was not read: {printable(str(error))[:80]}")
                return
            if not plain:
                return
            yield plain
    elif first.startswith(b"\x28\xb5\x2f\xfd"):
        yield from _zstd(raw, first, problems)
    else:
        while first:
            yield first
            first = raw.read(_CHUNK)


def lines(raw: IO[bytes], problems: Problems, limit: int = fmt.MAX_LINE) -> Iterator[tuple[int, bytes, bool]]:
    """(number from 1, line without its end, whether it had one). A line over ``limit`` bytes is reported and dropped unread."""
    number = 1
    tail: list[bytes] = []
    held = 0
    dropping = False
    for chunk in chunks(raw, problems):
        if b"\n" not in chunk:
            if not dropping:
                tail.append(chunk)
                held += len(chunk)
                if held > limit:
                    problems.add(number, f"a line of more than {limit} bytes was dropped")
                    dropping, tail, held = True, [], 0
            continue
        parts = chunk.split(b"\n")
        first = parts[0]
        if dropping:
            dropping = False
        elif held + len(first) > limit:
            problems.add(number, f"a line of more than {limit} bytes was dropped")
        else:
            yield number, b"".join((*tail, first)) if tail else first, True
        number += 1
        for line in parts[1:-1]:
            yield number, line, True
            number += 1
        tail = [parts[-1]] if parts[-1] else []
        held = len(parts[-1])
    if tail:
        yield number, b"".join(tail), False


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {printable(key[:40])!r} stands twice")
        result[key] = value
    return result


_SPACE: Final = b" \t\r"


def parse(line: bytes) -> dict[str, Any]:
    """The one JSON object of a line, keys unique. ValueError in one line of text.

    orjson takes the last of two equal keys without a word, so the keys of a line as our writers make it (no white space, no
    nested object) are counted; any other line goes through the slower parser that shows each pair.
    """
    try:
        obj = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        what = str(error).split(":")[0]
        raise ValueError(f"not one JSON object: {printable(what)}") from None
    if type(obj) is not dict:
        raise ValueError("not a JSON object")
    if line.count(b'":') != len(obj) or any(c in line for c in _SPACE):
        try:
            json.loads(line, object_pairs_hook=_unique)
        except RecursionError:
            raise ValueError("nested too deep") from None
    return obj


class Reader:
    """Iterates the records of one trace. After it: ``problems``, ``header``, ``drivers``, ``complete``.

    ``path`` is a file, or ``-`` for standard input. TraceError when it cannot be opened or holds no record at all.
    """

    def __init__(self, path: Path | str) -> None:
        self.name = str(path)
        self.problems = Problems()
        self.header = Header(schema="nvproxy-trace/0")
        self.drivers: dict[str, int] = {}
        """Every release that the trace names, with the line that first did."""
        self.records = 0
        self._ended = False
        self._headers = 0

    @property
    def complete(self) -> bool:
        """Whether everything that the recorder wrote was read."""
        return self.problems.count == 0

    @property
    def driver(self) -> str | None:
        """The first release that the trace names: by its header, else by the program's version check."""
        return next(iter(self.drivers), None)

    def __iter__(self) -> Iterator[Record]:
        try:
            with open(0, "rb", closefd=False) if self.name == "-" else open(self.name, "rb") as raw:
                yield from self._read(raw)
        except OSError as error:
            raise TraceError(f"{printable(self.name)}: {error.strerror or error}") from None
        if not self.records and not self._headers:
            raise TraceError(f"{printable(self.name)}: no record of a trace in it")

    def _read(self, raw: IO[bytes]) -> Iterator[Record]:
        problems = self.problems
        record = fmt.record
        number = first = 0
        for number, line, ended in lines(raw, problems):
            if not line:
                continue
            try:
                obj = parse(line)
                if "schema" in obj:
                    self._begin(fmt.header(obj), number)
                    continue
                rec = record(obj, number)
            except ValueError as error:
                what = "a torn last line" if not ended else str(error)
                problems.add(number, what)
                continue
            self.records += 1
            if not self._headers and "pid" not in obj:
                # Format 0: one process a file, whose first thread is the one that began it.
                rec.pid = first = first or rec.tid
            if rec.k == "ioctl":
                if rec.kind == "fe" and ioc_nr(rec.req) == NV_ESC_CHECK_VERSION_STR and rec.top is not None:
                    self._version(rec, number)
            elif rec.k == "end":
                self._end(obj, number)
                continue
            yield rec
        if self._headers and not self._ended:
            problems.add(number, "no end record: the recorder was stopped, or the file is cut")

    def _begin(self, head: Header, number: int) -> None:
        if self._headers and not self._ended:
            self.problems.add(number, "a second header before the first trace's end record")
        self._headers += 1
        self._ended = False
        self._counted = self.records
        self.header = head
        if head.driver:
            self._driver(head.driver, number)

    def _end(self, obj: dict[str, Any], number: int) -> None:
        self.records -= 1
        self._ended = True
        said = obj.get("records")
        if self._headers and said != self.records - self._counted:
            self.problems.add(number, f"{self.records - self._counted} records, but the end record says {said!r:.40}")

    def _version(self, rec: Record, number: int) -> None:
        # nv_ioctl_rm_api_version_t (nv-ioctl.h): cmd u32, reply u32, versionString[64]. The driver writes its own version there.
        text = (rec.top or b"")[8:72].split(b"\0")[0].decode("ascii", "replace")
        if text and all(c.isdigit() or c == "." for c in text):
            self._driver(text, number)

    def _driver(self, name: str, number: int) -> None:
        if name in self.drivers or len(self.drivers) > _KEPT:
            return
        if self.drivers:
            self.problems.add(number, f"driver {printable(name)} in a trace of {printable(next(iter(self.drivers)))}")
        self.drivers[name] = number


NV_ESC_CHECK_VERSION_STR: Final = 0xD2
"""nv-ioctl-numbers.h: NV_IOCTL_BASE + 10."""
