"""nvproxy-differ record: write down what releases of a source say, for commands that read no source."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from nvproxy_model.tools.command import fail
from nvproxy_model.tools.differ.shared import SAME, opened

if TYPE_CHECKING:
    from nvproxy_model.drivers.facts import Facts
    from nvproxy_model.drivers.privileges import Privileges
    from nvproxy_model.drivers.release import Provenance, Release
    from nvproxy_model.drivers.sources import Source

    Recorded = tuple[Release, Privileges | None, Provenance]


def run(args: argparse.Namespace) -> int:
    """Read and write; returns the exit status."""
    from nvproxy_model.drivers import facts
    from nvproxy_model.drivers.sources import Source

    with opened(args) as source:
        assert isinstance(source, Source)
        if args.add:
            target = args.output or facts.own_file()
            if target is None:
                fail("--add: $NVPROXY_FACTS is empty, so there is no file to add to; name one with --output")
            kept = facts.load(target) if target.is_file() else None
            added = _named(source, args.add)
            parents = {version: _recorded_parent(source, version, kept, added) for version in added}
            before = [] if kept is None else [version for version in kept.versions if version not in added]
            if kept is not None:
                parents |= {version: kept.parent(version) or kept.above(version) for version in before}
            versions = [*before, *added]
            content = facts.encode(_recorded(source, kept, before, added, args), parents)
        else:
            target = args.output or facts.FACTS
            versions = list(source.versions)
            if not versions:
                fail(f"{args.source}: no release in it: no tag is a version")
            parents = {version: source.parent(version) for version in versions}
            content = facts.encode(_recorded(source, None, [], versions, args), parents)
        _write(target, content)
        for version in [v.partition("=")[0] for v in args.add]:
            print(
                f"{version}: {source.provenance(version)}; its signature was not verified, descends from {parents[version]}"
            )
    print(f"{target}: {len(versions)} releases, {len(content)} bytes, {len(content) // len(versions)} a release")
    return SAME


def _named(source: Source, texts: list[str]) -> list[str]:
    """The releases that ``--add`` names, ancestors first; a commit is made known to the repository first."""
    from nvproxy_model.drivers.sources.repositories import RepositorySource

    wanted: dict[str, None] = {}
    for text in texts:
        version, equals, commit = text.partition("=")
        if version in wanted:
            fail(f"--add {version}: named twice")
        if equals:
            if not isinstance(source, RepositorySource):
                fail(f"--add {text}: only a git repository has commits")
            source.name(version, commit)
        wanted[version] = None
    absent = [version for version in wanted if version not in source.versions]
    if absent:
        near = ", ".join(source.versions[-3:])
        fail(
            f"--add {absent[0]}: {source.path} has no such tag (its last: {near}); name a commit with {absent[0]}=COMMIT"
        )
    return [version for version in source.versions if version in wanted]


def _recorded_parent(source: Source, version: str, kept: Facts | None, added: list[str]) -> str | None:
    """The nearest ancestor that will be recorded. A source without history cannot tell."""
    from nvproxy_model.drivers import facts

    shipped = facts.load(facts.FACTS)
    at = source.parent(version)
    while at is not None and at not in shipped and at not in added and (kept is None or at not in kept):
        at = source.parent(at)
    return at


def _recorded(
    source: Source, kept: Facts | None, before: list[str], versions: list[str], args: argparse.Namespace
) -> Iterator[Recorded]:
    from nvproxy_model.drivers.sources.tables import whole
    from nvproxy_model.tools.differ.shared import read_releases

    for version in before:
        assert kept is not None
        yield kept.release(version), kept.privileges(version), kept.provenance(version)
    yield from whole(source, read_releases(source, versions, None, args))


def _write(target: Path, content: bytes) -> None:
    import os
    import tempfile

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        fd, name = tempfile.mkstemp(prefix=".facts-", dir=target.parent)
        with open(fd, "wb") as file:
            file.write(content)
        os.chmod(name, 0o644)
        os.replace(name, target)
    except OSError as error:
        fail(f"{target}: {error.strerror}")
