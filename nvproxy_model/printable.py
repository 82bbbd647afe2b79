"""Text that came from outside, made safe to show: on a terminal, in a message, inside a JSON document."""

from __future__ import annotations

import unicodedata
from typing import Final

__all__ = ["escaped_json", "printable"]

_SHOWN: Final = "LNPSM"
"""First letters of the Unicode categories that are shown as they are: letters, numbers, punctuation, symbols, marks."""


def printable(text: str) -> str:
    """``text`` with every character that a terminal would act on written as an escape.

    These are the control characters (C0, C1 and DEL), format characters (bidirectional overrides among them), line and
    paragraph separators, lone surrogates, and characters that Unicode does not assign.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if char == " " or unicodedata.category(char)[0] in _SHOWN else char.encode("unicode_escape").decode()
        for char in text
    )


def escaped_json(document: bytes) -> bytes:
    r"""A JSON document in UTF-8 with the characters that `printable` escapes written as ``\uXXXX``.

    White space between tokens stays. A JSON parser reads the same values from the result.
    """
    if document.isascii() and b"\x7f" not in document:
        return document
    return "".join(_json_char(char) for char in document.decode()).encode()


def _json_char(char: str) -> str:
    if char in " \n\t\r" or unicodedata.category(char)[0] in _SHOWN:
        return char
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
