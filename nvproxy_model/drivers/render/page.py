"""A page that stands alone: one file without a network, its script and style named by their hashes, its facts as JSON."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from nvproxy_model.errors import NvproxyError

__all__ = ["MAX_PAGE", "PALETTE", "assembled", "asset", "made_at", "palette", "table", "too_large"]

MAX_PAGE = 2 * 1000 * 1000
"""Bytes; a page over this is refused, for nobody's browser or mail takes it."""

PALETTE = {
    "light": [
        "#dfe5ee",
        "#f5a742",
        "#6fb1f0",
        "#d88ad0",
        "#f2dc57",
        "#7fd0d6",
        "#ee7e6c",
        "#9d94ec",
        "#c9a27a",
        "#f4b3c2",
    ],
    "dark": [
        "#333d4d",
        "#9c5e0c",
        "#2a6cae",
        "#964690",
        "#7a6a10",
        "#1f6b71",
        "#b04433",
        "#6055be",
        "#80592f",
        "#a0506a",
    ],
}
"""The first layout's colour, then those of later ones in turn: no green, which would look like a verdict."""


def palette() -> str:
    """The colours as custom properties of the root, for light and dark surroundings."""
    light, dark = ("".join(f"--l{n}: {colour}; " for n, colour in enumerate(PALETTE[scheme])) for scheme in PALETTE)
    return f":root {{ {light}}}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}"


def asset(name: str) -> str:
    """A file beside this one."""
    return Path(__file__).with_name(name).read_text("utf-8")


def made_at() -> str:
    """The time to state in a page, to the minute: ``SOURCE_DATE_EPOCH`` if it is set, so that a page can be made again byte
    for byte. Raises NvproxyError if it is not a number of seconds."""
    text = os.environ.get("SOURCE_DATE_EPOCH")
    try:
        when = time.gmtime(None if text is None else int(text))
        return time.strftime("%Y-%m-%d %H:%M UTC", when)
    except (ValueError, OverflowError, OSError):
        raise NvproxyError(f"SOURCE_DATE_EPOCH: {text!r} is not a number of seconds since 1970") from None


def table(kind: str, heads: Sequence[str], rows: Iterable[str]) -> str:
    """A list of rows, made already, that scrolls in a box of its own."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    return (
        f'<table class="list {kind}"><thead><tr>{head}</tr></thead>\n<tbody>\n' + "\n".join(rows) + "\n</tbody></table>"
    )


def assembled(template: str, scripts: Sequence[str], facts: Mapping[str, Any], values: Mapping[str, object]) -> str:
    """The page. ``values`` are HTML already. Raises NvproxyError for one over MAX_PAGE."""
    style = palette() + "\n" + asset("page.css")
    script = "\n".join(map(asset, scripts))
    text = Template(asset(template)).substitute(
        values,
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        # No text of a fact can end the element that it stands in.
        facts=json.dumps(facts, separators=(",", ":")).replace("<", "\\u003c"),
    )
    size = len(text.encode())
    if size > MAX_PAGE:
        raise too_large(f"{size / 1e6:.1f} MB")
    return text


def too_large(size: str) -> NvproxyError:
    """The error for a page of that size."""
    return NvproxyError(
        f"the page would have {size}, and more than {MAX_PAGE / 1e6:.0f} MB is too much: name fewer structs"
    )


def _hash(text: str) -> str:
    """A content security policy's name for an inline script or style: no other one runs on the page."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
