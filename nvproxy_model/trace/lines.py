"""The lines of a file that may be gzip, zstd, bzip2 or xz, in bounded memory, and what was wrong with them."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Final, Protocol

from nvproxy_model.errors import NvproxyError
from nvproxy_model.printable import printable

__all__ = ["MAX_LINE", "Problems", "TraceError", "chunks", "lines", "split"]

MAX_LINE: Final = 16 << 20
"""Bytes. A record with two copies of 1 MiB of parameters (the driver's own bound, RMAPI_PARAM_COPY_MAX_PARAMS_SIZE) in hex
takes a quarter of it."""

_CHUNK: Final = 1 << 18
_KEPT: Final = 100
_WINDOW: Final = 128 << 20
"""Bytes of memory that a decoder may ask for."""


class TraceError(NvproxyError):
    """The file is neither a trace nor a log, or cannot be read at all."""


class Problems:
    """What was wrong with a file: all of it counted, the first hundred kept as (line, text)."""

    def __init__(self) -> None:
        self.count = 0
        self.kept: list[tuple[int, str]] = []

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
    import zstandard

    # A few hundred compressed bytes at a time: a block of 4 bytes may stand for 128 KiB, and this interface has no
    # bound of its own.
    step = 256
    context = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
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


class _Decoder(Protocol):
    """bz2.BZ2Decompressor and lzma.LZMADecompressor."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int = -1, /) -> bytes: ...


def _bzip2(raw: IO[bytes], first: bytes, problems: Problems) -> Iterator[bytes]:
    import bz2

    return _decoded("bzip2", bz2.BZ2Decompressor, (OSError, ValueError), raw, first, problems)


def _xz(raw: IO[bytes], first: bytes, problems: Problems) -> Iterator[bytes]:
    import lzma

    return _decoded("xz", lambda: lzma.LZMADecompressor(memlimit=_WINDOW), (lzma.LZMAError,), raw, first, problems)


def _decoded(
    name: str,
    new: Callable[[], _Decoder],
    damaged: tuple[type[Exception], ...],
    raw: IO[bytes],
    first: bytes,
    problems: Problems,
) -> Iterator[bytes]:
    decoder, data = new(), first
    while True:
        try:
            plain = decoder.decompress(data, _CHUNK)
        except damaged as error:
            problems.add(0, f"damaged {name} data, the rest was not read: {printable(str(error))[:80]}")
            return
        if plain:
            yield plain
        data = b""
        if decoder.eof:
            data = decoder.unused_data.lstrip(b"\0") or raw.read(_CHUNK).lstrip(b"\0")
            if not data:
                return
            decoder = new()
        elif decoder.needs_input:
            data = raw.read(_CHUNK)
            if not data:
                problems.add(0, f"the {name} data ends early")
                return


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
    """The plain bytes of a file. Its first bytes show whether it is compressed; members or frames are read one after another."""
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
    elif first.startswith(b"BZh"):
        yield from _bzip2(raw, first, problems)
    elif first.startswith(b"\xfd7zXZ\0"):
        yield from _xz(raw, first, problems)
    else:
        while first:
            yield first
            first = raw.read(_CHUNK)


def lines(raw: IO[bytes], problems: Problems, limit: int = MAX_LINE) -> Iterator[tuple[int, bytes, bool]]:
    """The lines of a file that may be compressed: see `split`."""
    return split(chunks(raw, problems), problems, limit)


def split(chunks: Iterable[bytes], problems: Problems, limit: int = MAX_LINE) -> Iterator[tuple[int, bytes, bool]]:
    """(number from 1, line without its end, whether a newline ended it).

    A line of more than ``limit`` bytes is reported and dropped; no more than ``limit`` and one chunk are held.
    """
    number = 1
    tail: list[bytes] = []
    held = 0
    for chunk in chunks:
        parts = chunk.split(b"\n")
        for part in parts[:-1]:
            held += len(part)
            if held > limit:
                problems.add(number, f"a line of more than {limit} bytes was dropped")
            else:
                yield number, b"".join((*tail, part)) if tail else part, True
            tail, held = [], 0
            number += 1
        held += len(parts[-1])
        if held > limit:
            tail = []
        elif parts[-1]:
            tail.append(parts[-1])
    if held > limit:
        problems.add(number, f"a line of more than {limit} bytes was dropped")
    elif tail:
        yield number, b"".join(tail), False
