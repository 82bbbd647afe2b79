"""What nvproxy-differ's subcommands share: arguments, sources, output, and how a mistake is told."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from nvproxy_model.tools.command import UNKNOWN, Parser, fail

if TYPE_CHECKING:
    from nvproxy_model.drivers.facts import Facts
    from nvproxy_model.drivers.parsing.headers import Wanted
    from nvproxy_model.drivers.release import Release
    from nvproxy_model.drivers.sources.source import Source

    Releases = Facts | Source

__all__ = [
    "DIFFERENT",
    "SAME",
    "UNKNOWN",
    "Parser",
    "add_format",
    "add_source",
    "add_subparser",
    "emit",
    "fail",
    "opened",
    "parent_of",
    "read_releases",
    "refuse_repeated",
    "release_of",
    "say",
]

SAME, DIFFERENT = 0, 1
"""Exit statuses, beside UNKNOWN."""

EXIT = "exit status: 0 same, 1 different, 2 could not tell"


def add_subparser(subparsers: Any, name: str, summary: str, description: str, examples: str) -> argparse.ArgumentParser:
    """A subcommand's parser with examples under its help."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=summary,
        description=description,
        epilog=f"examples:\n{examples}\n\n{EXIT}",
    )
    return parser


def add_source(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """``--source`` and ``--no-cache``."""
    what = (
        "a git repository (releases are its tags), a directory (one tree, or one folder per version) or a tar archive"
    )
    parser.add_argument(
        "--source", metavar="SRC", required=required, help=what + ("" if required else "; default: recorded facts")
    )
    parser.add_argument("--no-cache", action="store_true", help="parse anew, and leave the cache alone")


def add_format(parser: argparse.ArgumentParser, schema: str, formats: tuple[str, ...] = ("text", "json")) -> None:
    """``--json`` and ``--format``."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--json", dest="format", action="store_const", const="json", help=f"the same as --format json: {schema}"
    )
    group.add_argument("--format", choices=formats, default="text", help="(default: text)")
    parser.set_defaults(format="text")


@contextmanager
def opened(args: argparse.Namespace) -> Iterator[Releases]:
    """The releases that ``--source`` names, or the recorded ones."""
    if args.source is None:
        from nvproxy_model.drivers import facts

        yield facts.load()
        return
    from nvproxy_model.drivers.sources import open_source

    if not args.source:
        fail("--source: an empty path")
    with open_source(args.source) as source:
        yield source


def read_releases(
    releases: Releases, versions: list[str], wanted: Wanted | None, args: argparse.Namespace
) -> Iterator[Release]:
    """The named releases in order, with a progress bar on a terminal."""
    from nvproxy_model.drivers.sources.source import Source

    if isinstance(releases, Source):
        return _progress(releases.releases(versions, wanted, cache=not args.no_cache), len(versions))
    return releases.releases(versions, wanted)


def parent_of(releases: Releases, version: str) -> str | None:
    """A release's nearest ancestor as its source knows it, else as the recorded facts do."""
    from nvproxy_model.drivers import facts
    from nvproxy_model.drivers.facts import Facts

    if isinstance(releases, Facts):
        return releases.parent(version) if version in releases else None
    known = releases.parent(version)
    if known is None:
        recorded = facts.load()
        known = recorded.parent(version) if version in recorded else None
    return known


def _progress(releases: Iterator[Release], total: int) -> Iterator[Release]:
    if total < 3 or not sys.stderr.isatty():
        yield from releases
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # No refreshing thread: parsers are forked while the bar is up.
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("reading releases", total=total)
        for release in releases:
            bar.update(task, advance=1, description=release.version)
            bar.refresh()
            yield release


def refuse_repeated(versions: Iterable[str]) -> None:
    """An empty or repeated VERSION is a mistake of the caller's."""
    seen: set[str] = set()
    for version in versions:
        if not version.strip():
            fail("VERSION: an empty name")
        if version in seen:
            fail(f"{version}: named twice")
        seen.add(version)


_STYLES = (
    (
        re.compile(
            r"\b(?:different|breaking|removed|pointer-gained|fd-gained|number-reused|window-\w+|unclassified)\b"
        ),
        "red",
    ),
    (re.compile(r"\b(?:same|none|additive|identical)\b"), "green"),
    (re.compile(r"\b(?:not-checkable|not checkable|cosmetic)\b"), "yellow"),
)


def say(lines: Iterable[str]) -> None:
    """Print lines: as they are into a pipe, with a verdict's colour and folded to the width on a terminal."""
    if not sys.stdout.isatty():
        for line in lines:
            print(line)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for line in lines:
        text = Text(line, overflow="fold")
        for pattern, style in _STYLES:
            text.highlight_regex(pattern, style)
        console.print(text)


def emit(args: argparse.Namespace, report: dict[str, Any], lines: Iterable[str]) -> None:
    """Print a report in the format asked for; ``lines`` is its text."""
    if args.format == "text":
        say(lines)
    elif args.format == "json":
        print(json.dumps(report, indent=2, ensure_ascii=False))
    elif args.format == "markdown":
        from nvproxy_model.drivers.render import markdown

        sys.stdout.write(markdown.render(report))
    else:
        from nvproxy_model.drivers.render import sarif

        print(json.dumps(sarif.render(report), indent=2, ensure_ascii=False))


def release_of(releases: Releases, version: str, wanted: Wanted | None, args: argparse.Namespace) -> Release:
    """One release. Raises UnknownDriverVersion or SourceError, which name the nearest ones."""
    return next(iter(read_releases(releases, [version], wanted, args)))
