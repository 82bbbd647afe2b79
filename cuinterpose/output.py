"""What the command prints: lines that a terminal takes as text, and JSON.

Paths, names and endpoints come from other processes, which may be hostile.
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from typing import TextIO


class Failure(Exception):
    """Why a command has no answer: one line for stderr, exit status 2."""


def reason(error: OSError) -> str:
    """What failed and on which file, without Python's ``[Errno 2]``."""
    return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)


def visible(text: str) -> str:
    """text with everything that does not print as itself written as an escape.

    Control characters (line breaks included), C1, bidi and other format characters become ``\\x1b`` or ``\\u202e``;
    a byte that was not UTF-8 (a surrogate, as ``os.fsdecode`` makes it) becomes ``\\xff``.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else _escaped(ord(c)) for c in text)


def _escaped(code: int) -> str:
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def say(line: str, file: TextIO | None = None) -> None:
    """Prints one line, on standard output unless another file is given. Line breaks inside it are escaped.

    On a terminal it becomes rows that fit, broken between words; the further ones are indented below the first.
    """
    file = file or sys.stdout
    text = visible(line)
    encoding = getattr(file, "encoding", None) or "utf-8"
    text = text.encode(encoding, "backslashreplace").decode(encoding)
    width = shutil.get_terminal_size().columns
    if file.isatty() and len(text) > width:
        indent = " " * min(len(text) - len(text.lstrip()) + 4, width // 2)
        text = textwrap.fill(
            text, max(width, 20), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
    print(text, file=file)


def emit(document: dict[str, object]) -> None:
    """Prints a JSON document in ASCII: everything else is escaped, as JSON escapes it."""
    print(json.dumps(document, indent=2))
