"""Reads a trace as a stream: flat memory whatever the file's size, every fault reported by line, the rest still used."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final

import orjson

from nvproxy_model import ioctl
from nvproxy_model.abi.escapes import NV_ESC_CHECK_VERSION_STR
from nvproxy_model.printable import printable
from nvproxy_model.trace import format as fmt
from nvproxy_model.trace.format import Header, Record
from nvproxy_model.trace.lines import Problems, TraceError, chunks, lines
from nvproxy_model.trace.room import Room

__all__ = ["Problems", "Reader", "TraceError", "chunks", "lines"]

_DRIVERS: Final = 100
_REASON: Final = 1000
_KNOWN: Final = 64 << 20
"""Bytes that remembered records take."""
_RECORD: Final = 1 << 9
"""About as many bytes as a record and its object take beside their text and those of any entry."""
_LONG: Final = 1 << 16
"""Bytes of a line beyond which it is not remembered: a few such lines would take all of the room."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {printable(key[:40])!r} stands twice")
        result[key] = value
    return result


def parse(line: bytes) -> dict[str, Any]:
    """The one JSON object of a line, keys unique. ValueError in one line of text.

    orjson takes the last of two equal keys without a word. Every key has a colon, so a line with as many colons as keys has no
    key twice; any other line goes through the slower parser that shows each pair.
    """
    try:
        obj = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        what = str(error).split(":")[0]
        raise ValueError(f"not one JSON object: {printable(what)}") from None
    if type(obj) is not dict:
        raise ValueError("not a JSON object")
    if line.count(b":") != len(obj):
        try:
            json.loads(line, object_pairs_hook=_unique)
        except RecursionError:
            raise ValueError("nested too deep") from None
    return obj


def _said(line: bytes) -> tuple[bytes, int, int | None] | None:
    """A line without its times, then these: ``t``, and ``d`` if it stands behind ``t``. None where they are not plain integers.

    Programs make the same calls over and over, and lines that differ in their times alone are the same record at another time.
    That is so if no key is nested and no string has a colon: then what is found here can be nothing but the keys.
    """
    at = line.find(b'"t":')
    if at < 1 or line[at - 1] not in b"{,":
        return None
    at += 4
    end = line.find(b",", at)
    if end < 0:
        end = len(line) - 1
    t = line[at:end]
    if not _plain(t):
        return None
    at_d = line.find(b',"d":', end)
    if at_d < 0:
        return line[:at] + line[end:], int(t), None
    at_d += 5
    end_d = line.find(b",", at_d)
    if end_d < 0:
        end_d = len(line) - 1
    d = line[at_d:end_d]
    return (line[:at] + line[end:at_d] + line[end_d:], int(t), int(d)) if _plain(d) else None


def _plain(number: bytes) -> bool:
    """Whether this is how JSON writes an integer from 0 that fits 63 bits."""
    return number.isdigit() and len(number) < 19 and (number[0] != 0x30 or len(number) == 1)


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
        record, room = fmt.record, Room(_KNOWN)
        known: dict[bytes, Record | None] = {}
        number = first = 0
        for number, line, ended in lines(raw, problems):
            if not line:
                continue
            said = _said(line) if len(line) <= _LONG else None
            before = known.get(said[0]) if said is not None else None
            if said is not None and before is not None:
                rec = before.again(number, said[1], said[2])
            else:
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
                if said is not None and line.count(b":") == len(obj):
                    # The first time it is only marked: most lines of a short trace stand there once.
                    again = said[0] in known
                    if again:
                        rec.said = said[0]
                    if room.take(_RECORD + 3 * len(line) // 2 if again else len(line)):
                        known[said[0]] = rec.again(number, said[1], said[2]) if again else None
                    else:
                        known.clear()
            self.records += 1
            if not self._headers and "pid" not in rec.raw:
                # Format 0: one process a file, whose first thread is the one that began it.
                rec.pid = first = first or rec.tid
            if rec.k == "ioctl":
                if rec.kind == "fe" and ioctl.number(rec.req) == NV_ESC_CHECK_VERSION_STR and rec.top is not None:
                    self._version(rec, number)
            elif rec.k in ("end", "lost"):
                self._end(rec.raw, number)
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

    def _end(self, obj: Mapping[str, Any], number: int) -> None:
        self.records -= 1
        self._ended = True
        for why in obj.get("why", ()) if obj["k"] == "lost" else ():
            self.problems.add(number, printable(why[:_REASON]))
        said = obj.get("records")
        if self._headers and said != self.records - self._counted:
            self.problems.add(
                number, f"{self.records - self._counted} records, but the {obj['k']} record says {said!r:.40}"
            )

    def _version(self, rec: Record, number: int) -> None:
        # nv_ioctl_rm_api_version_t (nv-ioctl.h): cmd u32, reply u32, versionString[64]. The driver writes its own version there.
        text = (rec.top or b"")[8:72].split(b"\0")[0].decode("ascii", "replace")
        if text and all(c.isdigit() or c == "." for c in text):
            self._driver(text, number)

    def _driver(self, name: str, number: int) -> None:
        if name in self.drivers or len(self.drivers) > _DRIVERS:
            return
        if self.drivers:
            self.problems.add(number, f"driver {printable(name)} in a trace of {printable(next(iter(self.drivers)))}")
        self.drivers[name] = number
