"""What the commands print: lines, JSON documents, progress. Colour and progress bars on a terminal only."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any, TypeVar

from nvproxy_model.printable import printable
from nvproxy_model.tools.screen import Screen

__all__ = ["bold", "color", "emit", "print_json", "progress", "say", "versions", "warn"]

T = TypeVar("T")


@cache
def versions() -> Mapping[str, str]:
    """Which package answered, which state of gVisor it follows, and the newest release whose headers are recorded."""
    from nvproxy_model import __version__, followed
    from nvproxy_model.drivers import facts

    return {
        "nvproxy_model": __version__,
        "gvisor_commit": followed.WHOLE,
        "gvisor_change": followed.CHANGE,
        "newest_release": facts.newest(),
    }


_STYLES = (
    (
        re.compile(
            r"\b(?:different|breaking|removed|pointer-gained|fd-gained|number-reused|window-\w+|unclassified)\b"
        ),
        31,
    ),
    (re.compile(r"\b(?:refused|broken)\b"), 31),
    (re.compile(r"\b(?:same|additive|identical|admitted|holds)\b"), 32),
    (re.compile(r"\b(?:not-checkable|not checkable|cosmetic)\b"), 33),
)
"""What is coloured wherever it stands: verdicts, by their SGR number."""


_color = "auto"


def color(when: str) -> None:
    """Whether text is coloured from here on: ``always``, ``never``, or ``auto`` for on a terminal, unless NO_COLOR is set."""
    global _color  # noqa: PLW0603
    _color = when


def _coloured() -> bool:
    if _color != "auto":
        return _color == "always"
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def say(lines: Iterable[str]) -> None:
    """Print lines; on a terminal verdicts are coloured. What a terminal would act on is escaped: see `printable`."""
    coloured = _coloured()
    for line in map(printable, lines):
        if coloured:
            for pattern, style in _STYLES:
                line = pattern.sub(f"\x1b[{style}m\\g<0>\x1b[39m", line)
        print(line)


def bold(text: str) -> str:
    """Emphasis, on a terminal."""
    return f"\x1b[1m{text}\x1b[22m" if _coloured() else text


def warn(program: str, text: str) -> None:
    """One line on standard error: something that the user should know and that does not end the command."""
    print(f"{program}: {printable(text)}", file=sys.stderr)


def print_json(document: Mapping[str, Any]) -> None:
    """One document on standard output: its schema, `versions`, then the rest. Bytes that are not text stay escapes."""
    schema = {"schema": document["schema"]} if "schema" in document else {}
    print(json.dumps({**schema, "produced_by": versions(), **document}, indent=2))


Table = tuple[Sequence[str], Iterable[Sequence[object]]]
"""A header and rows, for the formats that have columns."""


def emit(
    args: argparse.Namespace,
    document: Mapping[str, Any],
    lines: Iterable[str],
    table: Table | None = None,
    head: Sequence[str] = (),
) -> None:
    """Print an answer in the form that ``--format`` asks for.

    ``table`` serves csv, markdown and html, the latter two below the sentences of ``head``.
    """
    if args.format == "json":
        print_json(document)
    elif args.format == "text" or table is None:
        say(lines)
    elif args.format == "csv":
        import csv

        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(table[0])
        writer.writerows([_cell(value) for value in row] for row in table[1])
    elif args.format == "html":
        say(_html(document, table, head))
    else:
        from nvproxy_model.drivers.render.markdown import escape

        say(line for sentence in head for line in (escape(sentence), ""))
        say([f"| {' | '.join(table[0])} |", "|" + " --- |" * len(table[0])])
        say(f"| {' | '.join(escape(_cell(value)) for value in row)} |" for row in table[1])


def _html(document: Mapping[str, Any], table: Table, head: Sequence[str]) -> Iterator[str]:
    """One page that needs nothing else: no script, no other file."""
    import html

    title = html.escape(document["schema"])
    yield f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
    yield "<style>body{font:14px sans-serif}td,th{padding:2px 8px;text-align:left;border-bottom:1px solid #ccc}</style>"
    yield from (f"<p>{html.escape(printable(sentence))}</p>" for sentence in head)
    yield f"<table><tr>{''.join(f'<th>{html.escape(name)}</th>' for name in table[0])}</tr>"
    for row in table[1]:
        yield f"<tr>{''.join(f'<td>{html.escape(_cell(value))}</td>' for value in row)}</tr>"
    yield f"</table><p>{html.escape('; '.join(f'{name} {value}' for name, value in versions().items()))}</p></html>"


def _cell(value: object) -> str:
    """A value in a column. A text that a spreadsheet would take for a formula begins with a quote."""
    text = "" if value is None else "yes" if value is True else "no" if value is False else printable(str(value))
    return "'" + text if isinstance(value, str) and text[:1] in ("=", "+", "-", "@") else text


def progress(items: Iterable[T], total: int | None = None, what: str = "records") -> Iterator[T]:
    """The items, with a bar on standard error if it is a terminal and rich is installed; without a ``total``, a count once a
    second has passed.

    No thread refreshes it: parsers are forked while the bar is up. It ends where a pager has the terminal.
    """
    if not sys.stderr.isatty() or (total is not None and total < 3) or find_spec("rich") is None:
        yield from items
        return
    bar: Any = None
    shown = time.monotonic()
    try:
        rest = iter(items)
        for count, item in enumerate(rest, 1):
            yield item
            if total is None and (count & 0x3FF or (bar is None and time.monotonic() - shown < 1)):
                continue
            if isinstance(sys.stdout, Screen) and sys.stdout.paged:
                break
            bar = bar or _bar(total, what)
            bar.update(bar.task_ids[0], completed=count)
            if count == total or time.monotonic() - shown > 0.1:
                shown = time.monotonic()
                bar.refresh()
    finally:
        if bar is not None:
            bar.stop()
    yield from rest


def _bar(total: int | None, what: str) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    timing = () if total is None else (BarColumn(), TimeRemainingColumn())
    bar = Progress(
        MofNCompleteColumn(),
        TextColumn(what),
        *timing,
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,
    )
    bar.add_task(what, total=total)
    bar.start()
    return bar
