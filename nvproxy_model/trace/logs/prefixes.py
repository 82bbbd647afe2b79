"""The lines of a log without what tools put around them: one grammar for all readers.

A log reaches us through a terminal, a container runtime, journalctl, grep, a bug tracker. Each adds its own wrapping: colours,
JSON objects (`envelopes`), time stamps, pod names, line numbers, quotes, indentation. `texts` takes the wrapping off and yields
`Line` objects; what a line says is the business of the reader that gets it.
"""

from __future__ import annotations

import codecs
import html
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Final, NamedTuple

from nvproxy_model.trace.logs.envelopes import FIELD, Joiner, opened

__all__ = ["LINE_LIMIT", "Clock", "Line", "Time", "strip", "texts", "utf8"]

LINE_LIMIT: Final = 1 << 20
"""Bytes of one line. A longer one is dropped and reported."""


class Time(NamedTuple):
    """A time stamp: ``style`` is ``date`` (since 1970), ``clock`` (since midnight) or ``delta`` (since the line before)."""

    style: str
    nanoseconds: int


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a program's own output."""

    number: int
    """Where it stands in the file, from 1."""
    text: str
    """The line without colours and envelopes; prefixes still stand."""
    body: str
    """The text without its prefixes."""
    pid: str | None
    """strace's process column, as digits; they may be too many for a process number."""
    time: Time | None
    """The innermost time stamp."""
    whole: bool
    """False where the text was cut: a number that ends it may have had more digits."""

    def torn(self, end: int) -> bool:
        """Whether a number that ends at ``text[end]`` may have been cut: the text was, or a cut mark follows."""
        rest = self.text[end : end + 8].strip()
        return (not rest and not self.whole) or rest in (">", "…", "...", "\\")


# Bytes to characters

_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_SAMPLE: Final = 64


def _encoding(first: bytes) -> tuple[str, int]:
    """The encoding that a file's first bytes show, and the length of its byte-order mark."""
    for mark, name in _MARKS:
        if first.startswith(mark):
            return name, len(mark)
    sample = first[:_SAMPLE]
    # Without a mark: ASCII characters in UTF-16 have a zero in every second byte.
    if len(sample) >= 8 and not any(sample[1::2]) and all(sample[::2]):
        return "utf-16-le", 0
    if len(sample) >= 8 and not any(sample[::2]) and all(sample[1::2]):
        return "utf-16-be", 0
    return "utf-8", 0


def utf8(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """A file's bytes as UTF-8, whatever Unicode encoding its byte-order mark names; the mark is dropped."""
    rest = iter(chunks)
    first = b""
    for chunk in rest:
        first += chunk
        if len(first) >= _SAMPLE:
            break
    name, skip = _encoding(first)
    first = first[skip:]
    if name == "utf-8":
        yield first
        yield from rest
        return
    decoder = codecs.getincrementaldecoder(name)("replace")
    yield decoder.decode(first).encode("utf-8", "replace")
    for chunk in rest:
        yield decoder.decode(chunk).encode("utf-8", "replace")
    yield decoder.decode(b"", True).encode("utf-8", "replace")


# Colours

_ESCAPE: Final = re.compile(
    r"(?:\x1b|\x9b|\^\[|#033)"
    r"(?:\[[0-9;:?]{0,40}[A-Za-z]|\][^\x07\x1b]{0,255}(?:\x07|\x1b\\)|_[^\x07\x1b]{0,255}(?:\x07|\x1b\\)|[=>()][0-9A-Za-z]?)"
)
"""ECMA-48 control sequences and titles: raw, and as cat -v and syslog daemons write the escape character."""


_TYPESET: Final = str.maketrans(
    {
        **dict.fromkeys("\u201c\u201d\u201e\u201f", '"'),
        **dict.fromkeys("\u2018\u2019", "'"),
        **dict.fromkeys("\u00a0\u202f", " "),
        "\u200b": None,
    }
)
"""What word processors, chats and web pages make of quotes and spaces. strace and runsc write none of these characters."""


def _plain(text: str) -> str:
    text = text.strip("\r\ufeff\0")
    if text.endswith(("`", "|", "\u2502", "<br>", "<br/>")):
        text = text.removesuffix("<br>").removesuffix("<br/>").rstrip(" `|\u2502")
    if not text.isascii():
        text = text.translate(_TYPESET)
    if "&quot;" in text or "&gt;" in text or "&#34;" in text:
        text = html.unescape(text)
    return _ESCAPE.sub("", text) if "[" in text or "]" in text or "\x1b" in text else text


# Prefixes

_CALENDAR: Final = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_CLOCK: Final = r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
_SENDER: Final = r"(?:\S{1,255}[ ]+[\w./@+-]{1,255}(?:\[\d{1,10}\])?:[ ]+)?"
_PART: Final = re.compile(
    rf"""
      (?P<space>\s+)
    | \[pid\s+(?P<pid>\d{{1,30}})(?:<[^<>]{{0,255}}>)?(?:\s*/\*[^*]{{0,255}}\*/)?\]
    | (?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[ ])?
      (?P<iso>\d{{4}}-\d\d-\d\d[T ]{_CLOCK}(?:Z|[ ]?[+-]\d\d:?\d\d)?)(?:[ ][A-Z]{{3,4}})?[ ]+{_SENDER}
    | (?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[ ])?
      (?P<syslog>{_CALENDAR}[ ]{{1,2}}\d{{1,2}}[ ](?:\d{{4}}[ ])?{_CLOCK})[ ]+{_SENDER}
    | [IWEFD](?P<klog>\d{{4}}[ ]{_CLOCK})[ ]+\d{{1,10}}[ ]+[^\s\]]{{1,255}}\]
    | (?P<clock>{_CLOCK})[ ]+
    | (?P<epoch>\d{{9,12}}\.\d{{1,9}})[ ]+{_SENDER}
    | <\d{{1,3}}>\d{{1,2}}[ ](?P<rfc5424>\d{{4}}-\d\d-\d\dT{_CLOCK}(?:Z|[+-]\d\d:\d\d))[ ](?:\S{{1,255}}[ ]){{4}}
      (?:-|(?:\[[^\]\\"]{{1,64}}(?:"(?:[^"\\]|\\.){{0,512}}"[^\]\\"]{{0,64}}){{0,32}}\]){{1,8}})(?:[ ]|$)
    | (?:\(\+\s*(?P<since>\d{{1,9}}\.\d{{1,9}})\)|(?P<delta>\d{{1,8}}\.\d{{1,9}})[ ]+)
    | (?:stdout|stderr)[ ][FP](?:[ ]|$)
    | <\d{{1,3}}>(?:\d[ ])?
    | (?P<column>\d{{1,30}})(?:<[^<>]{{0,255}}>)?(?:[ ]/\*[^*]{{0,255}}\*/)?(?P<gap>\s+)
    | \[[^\[\]]{{0,255}}\]:?
    | \((?:\w{{1,64}}[ ])?pid=\d{{1,10}}(?:,[ ]ip=[\w.:]{{1,64}})?\)(?=[ ])
    | \d{{1,9}}\)[ ]
    | [\w./@-]{{1,255}}\s{{0,80}}\|(?:\s|$)
    | (?:[^\s:"()\[\]=,]{{1,255}}[:-])?\d{{1,9}}[:-](?!\d)
    | [^\s:"()\[\]=,]{{1,255}}\.\w{{1,8}}:(?!\d)
    | \{{[\w.-]{{1,64}}="[^"\\]{{0,255}}"(?:,[ ]?[\w.-]{{1,64}}="[^"\\]{{0,255}}"){{0,32}}\}}
    | MESSAGE=
    | [>\u2502]|[-*+][ ]|\+(?=[\w\[<])|`{{1,3}}
    """,
    re.VERBOSE,
)
"""One prefix: strace's process and time columns (-f, -o, -r, -t, -i, -n, -Y), dates of journalctl, syslog and kubectl with the
sender behind them, syslog's header (RFC 5424), klog's, CRI's stream and flag, [pod/...], docker compose's name, Ray's process,
Loki's labels, grep's file and line, quotes, lists, a patch's plus."""
_PARTS: Final = 16


class _Stripped(NamedTuple):
    body: str
    pid: str | None
    time: Time | None


def _date(text: str) -> Time | None:
    """A date of any of the styles that `_PART` knows; logs without a year are taken as of a leap year."""
    text = text.replace(",", ".")
    day, _, clock = text.rpartition(" ") if text[0].isalpha() or text[4] == " " else (text[:10], "", text[11:])
    try:
        if text[0].isalpha():
            year = day if len(day.split()) == 3 else f"{day} 2000"
            at = datetime.strptime(" ".join(year.split()), "%b %d %Y")
        elif text[4] == " ":
            at = datetime.strptime(f"2000{day}", "%Y%m%d")
        else:
            at = datetime.strptime(day, "%Y-%m-%d")
        zone = re.search(r"([+-])(\d\d):?(\d\d)$|Z$", clock)
        offset = timedelta()
        if zone is not None and zone[1]:
            offset = timedelta(hours=int(zone[2]), minutes=int(zone[3])) * (-1 if zone[1] == "-" else 1)
        of_day = _of_day((clock[: zone.start()] if zone else clock).strip())
    except ValueError:
        return None
    return Time("date", int((at.replace(tzinfo=timezone.utc) - offset).timestamp()) * _SECOND + of_day)


_SECOND: Final = 1_000_000_000


def _nanoseconds(text: str) -> int:
    """``12.5`` seconds, exactly."""
    whole, _, part = text.partition(".")
    return int(whole) * _SECOND + int(part[:9].ljust(9, "0"))


def _of_day(clock: str) -> int:
    hours, minutes, seconds = clock.replace(",", ".").split(":")
    return (int(hours) * 3600 + int(minutes) * 60) * _SECOND + _nanoseconds(seconds)


def _time(match: re.Match[str]) -> Time | None:
    for name in ("iso", "syslog", "klog", "rfc5424"):
        if match[name]:
            return _date(match[name])
    if match["clock"]:
        return Time("clock", _of_day(match["clock"]))
    if match["epoch"]:
        return Time("date", _nanoseconds(match["epoch"]))
    if match["delta"]:
        return Time("delta", _nanoseconds(match["delta"]))
    return None


def strip(text: str) -> _Stripped:
    """A line's body behind its prefixes, with strace's process number and the innermost time stamp."""
    pid: str | None = None
    time: Time | None = None
    at = 0
    for _ in range(_PARTS):
        match = _PART.match(text, at)
        if match is None:
            break
        if match["space"] is None:
            time = _time(match) or time
            if match["pid"]:
                pid = match["pid"]
            elif match["column"] and "\t" not in match["gap"]:  # a tab follows the numbers of cat -n and nl
                pid = match["column"]
        at = match.end()
    return _Stripped(text[at:], pid, time)


# The whole

_DEPTH: Final = 4
"""Envelopes in envelopes: Docker's JSON around runsc's, in an array that a web page exported."""
_PARTIAL: Final = re.compile(r"^(.{0,512}?\b(stdout|stderr) )([FP]) ")
_CONTINUED: Final = re.compile(r"[0-9a-fA-F]{1,8}(?:, | ?\(|\)|\s*$)")
_OPEN_NUMBER: Final = re.compile(r"0x[0-9a-fA-F]{0,15}$")


def _unwrapped(number: int, text: str, ended: bool, join: Joiner, depth: int = 0) -> Iterator[tuple[int, str, bool]]:
    """(line number, text, whether it is whole) of every line of the program's in one line of the file."""
    text = _plain(text)
    if '"' in text and depth < _DEPTH:
        body = text if FIELD.fullmatch(text) or text.lstrip().startswith(("[{", "[ {")) else strip(text).body
        if (found := opened(body)) is not None:
            for inner in found.lines[:-1]:
                yield from _unwrapped(number, inner, True, join, depth + 1)
            if found.lines:
                for at, inner in join.add(number, found.lines[-1], found.whole):
                    yield from _unwrapped(at, inner, True, join, depth + 1)
            return
    partial = _PARTIAL.match(text) if depth == 0 and (" P " in text[:600] or " F " in text[:600]) else None
    if partial is not None:
        for at, whole in join.add(number, text[partial.end() :], partial[3] == "F"):
            yield at, partial[1] + partial[3] + " " + whole, ended
        return
    yield number, text, ended


def texts(lines: Iterable[tuple[int, bytes, bool]]) -> Iterator[Line]:
    """The program's lines in numbered lines of a file: (number from 1, bytes, whether a newline ended them)."""
    join = Joiner(LINE_LIMIT)

    def unwrapped() -> Iterator[tuple[int, str, bool]]:
        for number, line, ended in lines:
            # A return ends a line as well: of a terminal, of a progress bar that a message followed, of old files.
            *earlier, last = line.decode("utf-8", "replace").rstrip("\r").split("\r")
            for text in filter(None, earlier):
                yield from _unwrapped(number, text, True, join)
            yield from _unwrapped(number, last, ended, join)
        if (rest := join.rest()) is not None:
            yield from _unwrapped(*rest, False, join, 1)

    held: Line | None = None
    counted = _Counted()
    for number, text, ended in unwrapped():
        line = Line(number, text, *strip(text), ended)
        if held is not None:
            # A terminal or a mail program broke the line inside a number: the next one begins with the rest of it.
            broken = _OPEN_NUMBER.search(held.text[-20:]) is not None and _CONTINUED.match(text) is not None
            yield counted.line(replace(held, whole=False) if broken else held, line)
        held = line
    if held is not None:
        yield counted.line(held, None)


class _Counted:
    """Tells numbers that a pager or an editor put before the lines from strace's process numbers, which look alike."""

    def __init__(self) -> None:
        self._next: int | None = None
        """The next line's number; None until a line shows whether they are counted, -1 where they are not."""

    def line(self, line: Line, after: Line | None) -> Line:
        """The line, without a process where its number only counts. ``after``: the line that follows it."""
        if line.pid is None or self._next == -1:
            return line
        number = int(line.pid)
        if self._next is None:
            follows = after is not None and after.pid is not None and int(after.pid) == number + 1
            self._next = number if follows and number == line.number and "[pid" not in line.text else -1
        if number != self._next:
            return line
        self._next += 1
        return replace(line, pid=None)


_FUTURE: Final = (1 << 33) * _SECOND
"""No log is from after the year 2242, and so no difference of two stamps leaves 64 bits."""


class Clock:
    """Time stamps as nanoseconds since the first: of one style, since no two styles have a common origin."""

    def __init__(self) -> None:
        self.last = 0
        self._style: str | None = None
        self._start = 0
        self._before = 0
        self._days = 0

    def at(self, time: Time | None) -> int:
        """Nanoseconds from the first stamp to this one; the last answer for a line without one.

        Raises ValueError for a stamp later than any log.
        """
        if time is None:
            return self.last
        if time.nanoseconds >= _FUTURE:
            raise ValueError("a time stamp out of range")
        if self._style is None:
            self._style, self._start, self._before = time.style, time.nanoseconds, time.nanoseconds
        elif time.style != self._style:
            pass
        elif time.style == "delta":
            self.last = min(self.last + time.nanoseconds, _FUTURE)
        else:
            if time.style == "clock" and time.nanoseconds < self._before - 12 * 3600 * _SECOND:
                self._days += 1
            self._before = time.nanoseconds
            self.last = time.nanoseconds - self._start + self._days * 24 * 3600 * _SECOND
        return self.last
