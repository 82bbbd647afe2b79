"""A trace or a log, read alike: whoever asks a question does not care which of them a file is."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol

from nvproxy_model.printable import printable
from nvproxy_model.trace import format as fmt
from nvproxy_model.trace.format import Header, Record
from nvproxy_model.trace.lines import Problems, TraceError, chunks, split
from nvproxy_model.trace.logs.kinds import Import
from nvproxy_model.trace.reader import Reader

__all__ = ["Log", "Source", "open_source"]

SPOOLS: Final = (b"NVTR", b"NVTS")
"""How a recorder's spool begins."""
_SAMPLE: Final = 1 << 16
_LINES: Final = 20


class Source(Protocol):
    """What a reader of records offers. All but ``name`` and ``problems`` are known as far as it was read."""

    name: str
    problems: Problems
    records: int
    drivers: dict[str, int]
    """Every release that it names, with the line that first did."""

    @property
    def header(self) -> Header:
        """What was said of the records before them; for a log, what its kind implies."""
        ...

    @property
    def driver(self) -> str | None:
        """The first release that it names."""
        ...

    @property
    def complete(self) -> bool:
        """Whether everything was read and understood."""
        ...

    def __iter__(self) -> Iterator[Record]: ...


class Log:
    """The records of a log (`Import`), whose lines they carry.

    Raises TraceError, while it is iterated, for files that cannot be read or are not of a kind that we know.
    """

    def __init__(self, *paths: Path | str, kind: str | None = None) -> None:
        self._log = Import(*paths, kind=kind)
        self.name = self._log.name
        self.problems = self._log.problems
        self.drivers = self._log.drivers
        self.records = 0

    @property
    def header(self) -> Header:
        """A header as `nvproxy-trace import` would write it."""
        return Header(driver=self._log.driver, recorder=self._log.kind, inside=self._log.inside)

    @property
    def driver(self) -> str | None:
        """The first release that the log names."""
        return self._log.driver

    @property
    def complete(self) -> bool:
        """Whether every line about an NVIDIA device was understood."""
        return self.problems.count == 0

    def __iter__(self) -> Iterator[Record]:
        for obj in self._log:
            self.records += 1
            yield fmt.record(obj, self._log.lines)


def _is_trace(path: Path) -> bool:
    """Whether one of the first lines is a header or a record."""
    with open(path, "rb") as raw:
        start = raw.read(4)
        if start in SPOOLS:
            raise TraceError(
                f"{printable(str(path))}: a recorder's spool: make a trace of it with nvproxy-trace import"
            )
        raw.seek(0)
        problems = Problems()
        for _, line, _ in itertools.islice(
            split(itertools.islice(chunks(raw, problems), 4), problems, _SAMPLE), _LINES
        ):
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, Mapping) and ("schema" in value or value.get("k") in fmt.KINDS):
                return True
    return False


def open_source(*paths: Path | str, kind: str | None = None) -> Source:
    """A reader of a trace, or of one or several files of a log; the first lines decide, ``kind`` names a kind of log.

    ``-`` is a trace on standard input. Raises TraceError for a file that cannot be read.
    """
    if kind is None and len(paths) == 1:
        path = paths[0]
        try:
            if str(path) == "-" or _is_trace(Path(path)):
                return Reader(path)
        except OSError as error:
            raise TraceError(f"{printable(str(path))}: {error.strerror or error}") from None
    if kind is None and len(paths) > 1:
        for path in paths:
            with contextlib.suppress(OSError):
                if _is_trace(Path(path)):
                    raise TraceError(f"{printable(str(path))}: a trace: several files can only be logs of one run")
    return Log(*paths, kind=kind)
