"""Log lines in JSON, CSV and logfmt: what container runtimes, journald and log services put a program's line into."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

__all__ = ["FIELD", "Envelope", "Joiner", "opened"]

_KEYS: Final = (
    "msg",
    "message",
    "MESSAGE",
    "log",
    "textPayload",
    "text",
    "body",
    "stringValue",
    "line",
    "@message",
    "_raw",
)
"""Where JSON logs keep the line: runsc, Kubernetes, journald, Docker, Cloud Logging, OpenTelemetry, CloudWatch, Splunk."""
FIELD: Final = re.compile(r'\s*"(?:' + "|".join(map(re.escape, _KEYS)) + r')"\s*:\s*("(?:[^"\\]|\\.)*")\s*,?\s*')
"""One of those in an object that is printed over several lines."""
_LOG: Final = re.compile(r"nvproxy: |NVIDIA driver version|ioctl[(:]|open(?:at2?)?\(|<\.\.\. \w+ resumed>|/dev/nvidia")
_DEPTH: Final = 12
"""Values in values: the lines of a query's answer stand in lists of lists of streams of results of data."""
_PIECE: Final = 1 << 14
"""Bytes. Docker's json-file driver cuts a longer line in pieces of this size, of which only the last ends in a newline."""


class Envelope(NamedTuple):
    """The lines in an envelope, and whether the last one is whole; None where only the next envelope can tell."""

    lines: list[str]
    whole: bool | None


def _strings(value: Any, depth: int = 0) -> Iterator[str]:
    """The log lines in a parsed JSON value."""
    if isinstance(value, str):
        yield value
    elif depth > _DEPTH:
        return
    elif isinstance(value, list):
        if value and all(type(item) is int and 0 <= item < 256 for item in value):
            yield bytes(value).decode("utf-8", "replace")  # journald's form of a message with control characters
            return
        for item in value:
            yield from _strings(item, depth + 1)
    elif isinstance(value, dict):
        named = [
            list(_strings(value[key], depth + 1)) for key in _KEYS if isinstance(value.get(key), (str, list, dict))
        ]
        for texts in named:
            if any(_LOG.search(text) for text in texts):
                yield from texts
                return
        for key, item in value.items():
            if key not in _KEYS:
                yield from (text for text in _strings(item, depth + 1) if _LOG.search(text))
        if named:
            yield from named[0]


_MESSAGE: Final = re.compile(r'(?:^|\s)(?:msg|message)=("(?:[^"\\]|\\.)*")')
"""logfmt, as containerd and dockerd write it."""
_CSV: Final = re.compile(r'(?:[^"(]{0,512},)?"')
_INSIDE: Final = re.compile(r'[^"(]{1,512}?(?=\{")')
"""What stands before an object that a line does not begin with: Fluent Bit's tag and time."""


def _cells(text: str) -> list[str]:
    """The cells of a line of CSV that hold a log line."""
    try:
        return [cell for cell in next(csv.reader([text]), []) if _LOG.search(cell)]
    except csv.Error:
        return []


def opened(text: str) -> Envelope | None:
    """The lines in an envelope; None for a text that is not one."""
    field = FIELD.fullmatch(text) or _MESSAGE.search(text)
    if field is not None:
        value = _value(field[1])
    else:
        value = _value(text.strip())
        if not isinstance(value, str) and _CSV.match(text):
            return Envelope(cells, True) if len(cells := _cells(text)) == 1 and cells[0] != text else None
        if value is None and (before := _INSIDE.match(text)) is not None:
            value = _value(text[before.end() :])
            if not any(_LOG.search(found) for found in _strings(value)):
                return None
    if value is None:
        return None
    lines = [line for found in _strings(value) for line in re.split(r"[\r\n]", found) if line]
    return Envelope(lines, _whole(value))


def _value(source: str) -> Any:
    """The string, list or object that a text begins with, brackets of a list around it aside; None where it begins with none."""
    if not source.startswith(('"', "{", "[{", "[ {")):
        return None
    try:
        value, end = json.JSONDecoder().raw_decode(source)
    except (ValueError, RecursionError):
        return _value(source[1:].lstrip()) if source.startswith("[") else None
    return value if not source[end:].strip("],} \t") else None


def _whole(value: Any) -> bool | None:
    """Whether a line is whole that an object holds, as far as the object tells."""
    if not isinstance(value, dict):
        return True
    if value.get("logtag") in ("P", "F"):  # CRI's flag, as Fluent Bit keeps it
        return bool(value["logtag"] == "F")
    if "stream" in value and not str(value.get("log", "\n")).endswith("\n"):
        return None
    return True


class Joiner:
    """Puts the pieces of lines together that a container runtime cut: CRI's P and F, Docker's missing newline."""

    def __init__(self, limit: int) -> None:
        """``limit``: bytes of a line; pieces that would be more are not put together."""
        self._limit = limit
        self._held = ""
        self._number = 0
        self._bare = False
        """Whether these objects hold lines without their newline, as Fluent Bit and Fluentd write them."""

    def add(self, number: int, text: str, whole: bool | None) -> Iterator[tuple[int, str]]:
        """The lines, with their numbers, that this piece completes. ``whole``: as `Envelope` has it."""
        if whole is None:
            short = len(text) < _PIECE
            if short and self._held and len(self._held) < _PIECE:
                self._bare = True
                yield self._number, self._held
                self._held = ""
            whole = short and self._bare
        if not self._held:
            self._number = number
        if whole or len(self._held) + len(text) > self._limit:
            done, self._held = self._held + text, ""
            yield self._number, done
        else:
            self._held += text

    def rest(self) -> tuple[int, str] | None:
        """What no piece completed."""
        return (self._number, self._held) if self._held else None
