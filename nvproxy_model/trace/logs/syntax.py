"""What strace writes: a call's name, arguments and result, in any of its styles; read in linear time.

An argument ends where a tokenizer says so, which knows strings, comments and paths in angle brackets.
"""

from __future__ import annotations

import errno
import re
from typing import Final, NamedTuple

from nvproxy_model import ioctl
from nvproxy_model.trace.logs.prefixes import Line

__all__ = [
    "FD",
    "HEAD",
    "RESUMED",
    "STRING",
    "Answer",
    "Call",
    "Glued",
    "Unreadable",
    "answer_of",
    "argument",
    "body_of",
    "cut",
    "descriptor",
    "is_call",
    "is_summary",
    "literal_bytes",
    "path_text",
    "request_number",
]

_MAX: Final = 0x7FFFFFFF

HEAD: Final = re.compile(r"([a-z_][a-z_0-9]{0,63})\(")
RESUMED: Final = re.compile(r"<\.\.\. ([a-z_][a-z_0-9]{0,63}) resumed>")
_SOMEWHERE: Final = re.compile(
    r"^[^\"()=]{0,255}?[\s:|>\]](?P<call>(?:open(?:at2?)?|ioctl|close|dup[23]?|fcntl|v?fork|clone3?|mmap)\("
    r"|<\.\.\. [a-z_0-9]{1,64} resumed>)"
)
_TOKEN: Final = re.compile(
    r'"[^"\\]*(?:\\.[^"\\]*)*"?'
    r"|/\*.*?(?:\*/|\Z)"
    r"|(?<=[\w)])<(?:->|[^<>]|<[^<>]{0,4096}>){0,8192}>"
    r"|<(?:unfinished|detached) \.\.\.>|<ptrace\("
    r"|[(\[{]|[)\]}]|,",
    re.DOTALL,
)
"""What decides where an argument ends. Every alternative takes linear time, and so does a line."""
_RESULT: Final = re.compile(
    r"\s*=\s+(?P<ret>\?|0x[0-9a-fA-F]{1,40}|-?\d{1,40})(?P<path><(?:->|[^<>]|<[^<>]{0,4096}>){0,8192}>)?"
)
_ERRNO: Final = re.compile(r"\s(?:(?P<name>E[A-Z0-9]{1,20})\b|\(errno (?P<number>\d{1,4})\))")
_GLUED: Final = re.compile(r"(?:\b|(?<=\\n))(?:ioctl|open|openat|close)\(")
"""A call behind a result: two threads or programs wrote into one file, or the newline was lost or became two characters."""
_DURATION: Final = re.compile(r"<(\d{1,9}(?:\.\d{1,9})?)>\s*$")
_SUMMARY: Final = re.compile(r"% time\s+seconds\s+usecs/call\s+calls")


class Call(NamedTuple):
    """A call cut into its arguments. ``after`` is what follows the closing bracket; None for a call that strace left."""

    name: str
    args: list[str]
    after: str | None


class Unreadable(ValueError):
    """A line about a device of NVIDIA's that cannot be read; its text says what is wrong."""


class Glued(Unreadable):
    """Two calls stand in one line; either may be on one of NVIDIA's devices."""


def cut(name: str, text: str) -> Call:
    """A call's arguments in ``text``, which begins behind the opening bracket."""
    args: list[str] = []
    depth, start = 0, 0
    for token in _TOKEN.finditer(text):
        what = token[0]
        if what in "([{":
            depth += 1
        elif what in ")]}":
            if not depth:
                args.append(text[start : token.start()].strip())
                return Call(name, args, text[token.end() :])
            depth -= 1
        elif what == "," and not depth:
            args.append(text[start : token.start()].strip())
            start = token.end()
        elif what.startswith(("<unfinished", "<detached", "<ptrace")):
            args.append(text[start : token.start()].strip())
            return Call(name, args, None)
    raise Unreadable("a call that does not end")


def is_call(line: Line) -> bool:
    """Whether a line is a call as strace prints it."""
    return body_of(line) is not None


def is_summary(line: Line) -> bool:
    """Whether a line is the head of strace -c's table, which counts calls and shows none."""
    return _SUMMARY.match(line.body) is not None


_ANSWER: Final = re.compile(r"\)\s*=\s+(?:-?\d|0x|\?)|<(?:unfinished|detached) \.\.\.>|<ptrace\(")


def body_of(line: Line) -> str | None:
    """Where the call begins in a line, behind prefixes that the common grammar does not know too; None for another line."""
    body = line.body
    if RESUMED.match(body):
        return body
    if HEAD.match(body):
        # runsc's lines have the path after the descriptor: ioctl(0x3 /dev/nvidiactl, ...).
        return body if _ANSWER.search(body) and not _SANDBOX.match(body) else None
    found = _SOMEWHERE.match(body)
    return (
        body[found.start("call") :]
        if found and (_ANSWER.search(body) or "resumed>" in body) and not _RUNSC.search(body)
        else None
    )


_SANDBOX: Final = re.compile(r"[a-z_0-9]{1,64}\((?:0x[0-9a-f]{1,16}|AT_FDCWD) /")
_RUNSC: Final = re.compile(r"\s[EX] [a-z_0-9]{1,64}\(")

# Arguments

_NAMED: Final = re.compile(r"[a-z_]{1,32}=(?!=)")
_COMMENT: Final = re.compile(r"\s*/\*.*?(?:\*/|\Z)\s*", re.DOTALL)
FD: Final = re.compile(
    r"(?P<fd>-?\d{1,40}|AT_FDCWD)(?:<(?P<path>(?:->|[^<>]){0,8192})(?:<[^<>]{0,4096}>)?>(?:\(deleted\))?)?"
)
STRING: Final = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"(\.{3})?', re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(?:x([0-9a-fA-F]{2})|([0-7]{1,3})|(.))", re.DOTALL)
_LETTERS: Final = {"n": 10, "t": 9, "r": 13, "f": 12, "v": 11, "a": 7, "b": 8, "e": 27, '"': 34, "'": 39, "\\": 92}
_SYMBOLS: Final = {
    "FIBMAP": 0x1,
    "FIGETBSZ": 0x2,
    "TCGETS": 0x5401,
    "TCSETS": 0x5402,
    "TIOCGWINSZ": 0x5413,
    "FIONREAD": 0x541B,
    "FIONBIO": 0x5421,
    "FIONCLEX": 0x5450,
    "FIOCLEX": 0x5451,
    "FIOASYNC": 0x5452,
}
"""Requests that strace prints by name on any file (asm-generic/ioctls.h). The first two are also UVM's commands 1 and 2."""


def argument(text: str) -> str:
    """An argument without its name (-N) and comments (-X verbose)."""
    named = _NAMED.match(text)
    text = text[named.end() :] if named else text
    return text if text.startswith('"') or "/*" not in text else _COMMENT.sub("", text)


def literal_bytes(literal: str) -> bytes:
    """The bytes of a C string literal without its quotes."""

    def one(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        if match[2]:
            return chr(int(match[2], 8) & 0xFF)
        if match[3] not in _LETTERS:
            raise Unreadable("a string with an escape that strace does not write")
        return chr(_LETTERS[match[3]])

    return _ESCAPED.sub(one, literal).encode("latin-1", "replace")


def path_text(literal: str) -> str:
    """A path as text; bytes that are not UTF-8 become replacement characters."""
    if "\\" in literal:
        literal = literal_bytes(literal).decode("utf-8", "replace")
    return literal.encode("utf-8", "replace").decode()


def descriptor(text: str) -> tuple[int | None, str | None]:
    """A descriptor argument's number, None for one out of range, and the path that -y prints."""
    match = FD.match(text)
    if match is None:
        raise Unreadable("a descriptor that is not a number")
    number = -100 if match["fd"] == "AT_FDCWD" else int(match["fd"])
    return number if -_MAX <= number <= _MAX else None, match["path"]


def request_number(text: str) -> int | None:
    return _SYMBOLS[text] if text in _SYMBOLS else ioctl.parse_request(text)


def _integer(text: str) -> int | None:
    """A result: decimal, hexadecimal or octal as strace prints it; None for ``?``."""
    if text == "?":
        return None
    try:
        octal = len(text) > 1 and text[0] == "0" and text[1] != "x"
        value = int(text, 16 if text.startswith("0x") else 8 if octal else 10)
    except ValueError:
        raise Unreadable(f"a result that is not a number: {text}") from None
    if 1 << 63 <= value < 1 << 64:
        value -= 1 << 64  # a long, as the register holds it
    if not -(1 << 63) < value < 1 << 63:
        raise Unreadable("a result that is out of range")
    return value


class Answer(NamedTuple):
    ret: int | None
    err: int
    path: str | None
    duration: int | None


def answer_of(after: str, line: Line) -> Answer:
    match = _RESULT.match(after)
    if match is None:
        raise Unreadable("a call without its result")
    rest = after[match.end() :]
    if _GLUED.search(rest):
        raise Glued("a second call in the same line: neither was read")
    # Of a number that may have been cut, only 0 is sure: no other one begins with it.
    if not rest.strip() and not line.whole and match["ret"] not in ("0", "?"):
        raise Unreadable("a result that may have been cut")
    ret = _integer(match["ret"])
    code = 0
    error = _ERRNO.match(rest)
    if error is not None and ret is not None and ret < 0:
        number = getattr(errno, error["name"], None) if error["name"] else int(error["number"])
        if not isinstance(number, int) or not 0 < number <= 4095:
            raise Unreadable(f"an errno that Linux does not have: {error['name'] or error['number']}")
        code = number
    took = _DURATION.search(rest[-32:])
    duration = None
    if took is not None:
        whole, _, part = took[1].partition(".")
        duration = int(whole) * 1_000_000_000 + int(part.ljust(9, "0") or 0)
    path = match["path"][1:-1] if match["path"] else None
    if path is not None:
        path = path.partition("<")[0]
    return Answer(ret, code, path, duration)
