"""Logs that people already have, as a trace: which kind a text is, and its records."""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

from nvproxy_model.printable import printable
from nvproxy_model.trace.lines import Problems, TraceError, chunks, split
from nvproxy_model.trace.logs import nvproxy, sniffer, strace, syntax
from nvproxy_model.trace.logs.prefixes import LINE_LIMIT, Line, texts, utf8

__all__ = ["KINDS", "Import"]

Records = Callable[[Iterable[Line], Problems], Iterator[dict[str, Any]]]

KINDS: Final[dict[str, tuple[Callable[[Line], bool], Records]]] = {
    "strace": (syntax.is_call, strace.records),
    "nvproxy-log": (nvproxy.is_line, nvproxy.records),
    "ioctl-sniffer": (sniffer.is_line, sniffer.records),
}
"""name -> (whether a line is of that kind, the reader of its lines). A line is of the first kind that takes it."""

_SAMPLE_LINES: Final = 2000
_SAMPLE_TEXT: Final = 4 << 20
"""What is looked at before a file's kind is decided: so many lines, or so many characters."""

_DRIVER: Final = re.compile(r"[Dd]river [Vv]ersion:? {1,3}(\d{3}\.\d{1,3}(?:\.\d{1,3})?)\b(?!\.)")
_OURS: Final = re.compile(r"/dev/nvidia|\bnvproxy\b|_IOC\(|\bioctl\b.{0,80}0xc0[0-9a-fA-F]{2}46")
_PER_THREAD: Final = re.compile(r"\.(\d{1,9})$")
"""strace -ff: one file a thread, named for it."""


class Import:
    """The records of one or several files of one log, as JSON objects of the trace format.

    A file may be gzip, zstd, bzip2 or xz, in UTF-8 or UTF-16; ``-`` is standard input. Several files of strace (``-ff``) are merged
    by time. ``kind`` is one of `KINDS`; None: the lines decide. After the first record ``kind`` is known; ``drivers`` are the
    releases that the log has named so far, each with its line.

    Raises TraceError when a file cannot be read, or when none of its lines is of a kind that we know.
    """

    def __init__(self, *paths: Path | str, kind: str | None = None) -> None:
        self.names = [str(path) for path in paths]
        self.name = ", ".join(self.names)
        self.kind = kind
        self.problems = Problems()
        self.drivers: dict[str, int] = {}
        self.lines = 0
        """The number of the line that was read last."""
        self._unknown: Line | None = None
        """The first line about an NVIDIA device that is of no kind."""

    @property
    def driver(self) -> str | None:
        """The first release that the log names."""
        return next(iter(self.drivers), None)

    @property
    def inside(self) -> bool:
        """Whether the log was written inside a sandbox, so that nvproxy's answers are in it."""
        return self.kind == "nvproxy-log"

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with contextlib.ExitStack() as stack:
            files = [self._file(name, stack) for name in self.names]
            if self.kind is None:
                files = [self._decide(file) for file in files]
            if self.kind is None:
                self._fail()
            read = KINDS[self.kind or ""][1]
            try:
                yield from read(self._watched(self._joined(files)), self.problems)
            except OSError as error:
                raise TraceError(f"{printable(self.name)}: {error.strerror or error}") from None

    def _file(self, name: str, stack: contextlib.ExitStack) -> Iterator[Line]:
        try:
            raw = stack.enter_context(_opened(name))
        except OSError as error:
            raise TraceError(f"{printable(name)}: {error.strerror or error}") from None
        return texts(split(utf8(chunks(raw, self.problems)), self.problems, LINE_LIMIT))

    def _decide(self, file: Iterator[Line]) -> Iterator[Line]:
        """Find out the kind by the first lines; all of them are read again by its reader."""
        sample: list[Line] = []
        votes: Counter[str] = Counter()
        size = 0
        try:
            for line in file:
                sample.append(line)
                size += len(line.text)
                found = next((name for name, (takes, _) in KINDS.items() if takes(line)), None)
                if found is not None:
                    votes[found] += 1
                elif self._unknown is None and _OURS.search(line.text) is not None:
                    self._unknown = line
                elif syntax.is_summary(line):
                    raise TraceError(
                        f"{printable(self.name)}: a summary of strace -c, which counts calls and shows none"
                    )
                if len(sample) >= _SAMPLE_LINES or size >= _SAMPLE_TEXT:
                    if votes:
                        break
                    sample, size = [], 0
        except OSError as error:
            raise TraceError(f"{printable(self.name)}: {error.strerror or error}") from None
        if votes and self.kind is None:
            self.kind = max(votes, key=lambda name: votes[name])
        return _chain(sample, file)

    def _fail(self) -> None:
        why = f" ({self.problems.kept[0][1]})" if self.problems.count else ""
        if self._unknown is not None:
            line = self._unknown
            why += f"; line {line.number} is about an NVIDIA device, in a form that is not known: {printable(line.text[:80])!r}"
        raise TraceError(
            f"{printable(self.name)}: no line of strace, of nvproxy's log or of the ioctl sniffer in it{why}"
        )

    def _joined(self, files: Sequence[Iterator[Line]]) -> Iterator[Line]:
        if len(files) == 1:
            yield from files[0]
            return
        threads = [_PER_THREAD.search(name) for name in self.names]
        if self.kind != "strace":
            for file in files:
                yield from file
            return
        timed = []
        untimed = 0
        for file, thread in zip(files, threads, strict=True):
            first = list(_upto_time(file))
            if first and (first[-1].time is None or first[-1].time.style == "delta"):
                untimed += 1
            timed.append(_of_thread(_chain(first, file), thread[1] if thread else None))
        if untimed:
            self.problems.add(
                0,
                "several files without time stamps, read in the order given: merge them with strace-log-merge, or record with -ttt",
            )
            for file in timed:
                yield from file
            return
        yield from (line for _, line in heapq.merge(*map(_stamped, timed), key=lambda item: item[0]))

    def _watched(self, lines: Iterator[Line]) -> Iterator[Line]:
        for line in lines:
            self.lines = line.number
            if "river " in line.text and len(self.drivers) < 100:
                match = _DRIVER.search(line.text)
                if match is not None and not line.torn(match.end()) and match[1] not in self.drivers:
                    if self.drivers:
                        self.problems.add(line.number, f"driver {match[1]} in a log of {self.driver}")
                    self.drivers[match[1]] = line.number
            yield line


def _opened(name: str) -> BinaryIO:
    return open(0, "rb", closefd=False) if name == "-" else open(name, "rb")


def _chain(first: Iterable[Line], rest: Iterator[Line]) -> Iterator[Line]:
    yield from first
    yield from rest


def _upto_time(file: Iterator[Line]) -> Iterator[Line]:
    """The first lines, to the first with a time stamp."""
    for count, line in enumerate(file):
        yield line
        if line.time is not None or count >= 100:
            return


def _of_thread(lines: Iterator[Line], thread: str | None) -> Iterator[Line]:
    for line in lines:
        yield dataclasses.replace(line, pid=thread) if line.pid is None and thread is not None else line


def _stamped(lines: Iterator[Line]) -> Iterator[tuple[int, Line]]:
    """Each line with its time; one without belongs to the line before it."""
    last = 0
    for line in lines:
        if line.time is not None:
            last = line.time.nanoseconds
        yield last, line
