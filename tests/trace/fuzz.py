"""Fuzz targets, one a parser: any bytes, no exception. fuzz_atheris.py runs them, and Hypothesis in the tests."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable

from nvproxy_model.trace import format as fmt
from nvproxy_model.trace.decode.catalog import Catalog
from nvproxy_model.trace.decode.decoder import Decoder
from nvproxy_model.trace.logs import nvproxy as sandbox_logs
from nvproxy_model.trace.logs import strace
from nvproxy_model.trace.reader import Problems, lines, parse
from nvproxy_model.trace.record import spool

_catalog: list[Catalog] = []


def trace(data: bytes) -> None:
    """Lines of a trace, packed or not, read and decoded."""
    if not _catalog:
        _catalog.append(Catalog("580.126.20"))
    decoder = Decoder(_catalog[0])
    for number, line, _ in lines(io.BytesIO(data), Problems(), 1 << 20):
        try:
            obj = parse(line)
            record = fmt.record(obj, number)
        except ValueError:
            continue
        decoder.record(record)


def _text(data: bytes) -> itertools.count[int]:
    return zip(itertools.count(1), data.decode("utf-8", "replace").split("\n"), strict=False)  # type: ignore[return-value]


def _log(parser: Callable[..., object], data: bytes) -> None:
    for obj in parser(_text(data), Problems()):  # type: ignore[attr-defined]
        fmt.record(obj, 1)


def strace_log(data: bytes) -> None:
    """strace's text."""
    _log(strace.parse, data)


def nvproxy_log(data: bytes) -> None:
    """nvproxy's debug log."""
    _log(sandbox_logs.nvproxy, data)


def sniffer_log(data: bytes) -> None:
    """The ioctl sniffer's output."""
    _log(sandbox_logs.sniffer, data)


def spool_frames(data: bytes) -> None:
    """The recorder's frames."""
    for obj in spool.records(io.BytesIO(data), Problems(), spool.Seen()):
        fmt.record(obj, 1)


TARGETS = {target.__name__: target for target in (trace, strace_log, nvproxy_log, sniffer_log, spool_frames)}
