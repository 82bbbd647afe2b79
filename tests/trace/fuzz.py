"""Fuzz targets, one a parser: any bytes, no exception. fuzz_atheris.py runs them, and Hypothesis in the tests."""

from __future__ import annotations

import io

import orjson

from nvproxy_model.trace import format as fmt
from nvproxy_model.trace.decode.catalog import Catalog
from nvproxy_model.trace.decode.decoder import Decoder
from nvproxy_model.trace.lines import Problems, lines, split
from nvproxy_model.trace.logs.kinds import KINDS
from nvproxy_model.trace.logs.prefixes import LINE_LIMIT, texts, utf8
from nvproxy_model.trace.reader import parse
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
    """The recorder's frames."""
    for obj in spool.records(io.BytesIO(data), Problems(), spool.Seen()):
        fmt.record(obj, 1)


TARGETS = {target.__name__: target for target in (trace, strace_log, nvproxy_log, sniffer_log, spool_frames)}
