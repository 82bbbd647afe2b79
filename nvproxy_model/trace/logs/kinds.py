"""Logs that people already have, as a trace: which kind a text is, and its records."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from nvproxy_model.trace.format import printable
from nvproxy_model.trace.logs import nvproxy as sandbox_logs
from nvproxy_model.trace.logs import strace
from nvproxy_model.trace.reader import Problems, TraceError, lines

__all__ = ["KINDS", "Import"]

_LINE: Final = 1 << 20

KINDS: Final[dict[str, tuple[Any, Callable[..., Iterator[dict[str, Any]]]]]] = {
    "ioctl-sniffer": (sandbox_logs.SNIFFER, sandbox_logs.sniffer),
    "nvproxy-log": (sandbox_logs.NVPROXY, sandbox_logs.nvproxy),
    "strace": (strace.SIGNATURE, strace.parse),
}
"""name -> (what a line of it looks like, its parser)."""


class Import:
    """The records of a log, as JSON objects of the trace format. ``kind`` is known before the first record.

    ``path`` may be gzip or zstd, or ``-``. TraceError when it cannot be read or no line of it is of a kind that we know.
    """

    def __init__(self, path: Path | str, kind: str | None = None) -> None:
        self.name = str(path)
        self.kind = kind
        self.problems = Problems()
        self.lines = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            with open(0, "rb", closefd=False) if self.name == "-" else open(self.name, "rb") as raw:
                yield from self._read(self._text(raw))
        except OSError as error:
            raise TraceError(f"{printable(self.name)}: {error.strerror or error}") from None

    def _text(self, raw: Any) -> Iterator[tuple[int, str]]:
        for number, line, _ in lines(raw, self.problems, _LINE):
            self.lines = number
            yield number, line.decode("utf-8", "replace").rstrip("\r")

    def _read(self, text: Iterator[tuple[int, str]]) -> Iterator[dict[str, Any]]:
        if self.kind is None:
            for number, line in text:
                self.kind = next((name for name, (signature, _) in KINDS.items() if signature.search(line)), None)
                if self.kind is not None:
                    text = itertools.chain([(number, line)], text)
                    break
            else:
                raise TraceError(
                    f"{printable(self.name)}: no line of strace, of nvproxy's log or of the ioctl sniffer in it"
                )
        yield from KINDS[self.kind][1](text, self.problems)
