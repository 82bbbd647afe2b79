"""What nvproxy-differ's subcommands share: the releases that are asked for, and reports in Markdown and SARIF."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from nvproxy_model.tools.command import fail
from nvproxy_model.tools.output import print_json, progress, say, versions

if TYPE_CHECKING:
    from nvproxy_model.drivers.facts import Facts
    from nvproxy_model.drivers.privileges import Privileges
    from nvproxy_model.drivers.release import Release, Wanted
    from nvproxy_model.drivers.sources.source import Source
    from nvproxy_model.versions import DriverVersion

    Releases = Facts | Source

__all__ = [
    "DIFFERENT",
    "SAME",
    "emit",
    "opened",
    "parent_of",
    "privileges_of",
    "read_releases",
    "refuse_repeated",
    "release_of",
]

SAME, DIFFERENT = 0, 1
"""Exit statuses, beside UNKNOWN."""


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
    from nvproxy_model.drivers.facts import Facts

    if isinstance(releases, Facts):
        return releases.releases(versions, wanted)
    chosen = releases.releases(versions, wanted, cache=not args.no_cache)
    return progress(chosen, len(versions), "releases")


def privileges_of(args: argparse.Namespace) -> tuple[str, DriverVersion, Privileges]:
    """The release that ``--driver`` names (by default the newest recorded one that is listed), the node of the table whose
    rows hold there, and who may call what in it."""
    from nvproxy_model import versions as table
    from nvproxy_model.drivers import authority
    from nvproxy_model.drivers.sources.source import Source
    from nvproxy_model.drivers.sources.tables import PrivilegeReader

    with opened(args) as releases:
        known = [version for version in table.load() if version in releases.versions]
        version = args.driver or (known[-1] if known else None)
        if version is None:
            fail("no release of driver_versions.yaml is in the source; name one with --driver")
        node = authority.listed_for(version, lambda name: parent_of(releases, name))
        if node is None:
            fail(f"{version}: no ancestor of it is in driver_versions.yaml, so there are no rows to compare with")
        found = (
            PrivilegeReader(releases).read(version) if isinstance(releases, Source) else releases.privileges(version)
        )
        if found is None:
            fail(f"{version}: recorded from a tree without the driver's tables of who may call what")
    return version, node, found


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


def refuse_repeated(versions: Iterable[str]) -> None:
    """An empty or repeated VERSION is a mistake of the caller's."""
    seen: set[str] = set()
    for version in versions:
        if not version.strip():
            fail("VERSION: an empty name")
        if version in seen:
            fail(f"{version}: named twice")
        seen.add(version)


def emit(args: argparse.Namespace, report: dict[str, Any], lines: Iterable[str]) -> None:
    """Print a report in the format asked for; ``lines`` is its text."""
    if args.format == "text":
        say(lines)
    elif args.format == "json":
        print_json(report)
    elif args.format == "markdown":
        from nvproxy_model.drivers.render import markdown

        sys.stdout.write(markdown.render(report))
    else:
        from nvproxy_model.drivers.render import sarif

        log = sarif.render(report)
        for run in log["runs"]:
            run["tool"]["driver"]["version"] = versions()["nvproxy_model"]
            run["properties"] = {"produced_by": versions()}
        print(json.dumps(log, indent=2))


def release_of(releases: Releases, version: str, wanted: Wanted | None, args: argparse.Namespace) -> Release:
    """One release. Raises UnknownDriverVersion or SourceError, which name the nearest ones."""
    return next(iter(read_releases(releases, [version], wanted, args)))
