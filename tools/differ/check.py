"""nvproxy-differ check: this model against releases of the driver."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from nvproxy_model.tools.command import fail
from nvproxy_model.tools.differ.shared import SAME, emit, opened

if TYPE_CHECKING:
    from nvproxy_model.drivers.compare.check import CheckedRelease, CheckReport
    from nvproxy_model.tools.differ.shared import Releases


def run(args: argparse.Namespace) -> int:
    """Check and print; returns the exit status."""
    from nvproxy_model.drivers import evidence, facts
    from nvproxy_model.drivers.compare import model
    from nvproxy_model.drivers.compare.check import CheckReport, check_release, model_release, not_checkable
    from nvproxy_model.drivers.render.text import check_lines
    from nvproxy_model.tools.differ.shared import parent_of, read_releases, refuse_repeated

    refuse_repeated(args.versions)
    with opened(args) as releases:
        where = str(args.source) if args.source else "recorded facts"
        if args.recorded and (args.versions or args.source):
            fail("--recorded: it takes no VERSION and no --source")
        if args.unlisted and (args.versions or args.recorded):
            fail("--unlisted: it takes no VERSION and no --recorded")
        versions = (
            list(releases.versions)
            if args.recorded
            else _unlisted(releases)
            if args.unlisted
            else args.versions or _all(releases)
        )
        models: dict[str, str] = {}
        absent: dict[str, str] = {}
        weaker: dict[str, CheckedRelease] = {}
        for version in versions:
            if not _has(releases, version):
                if not args.source and version in evidence.independent():
                    weaker[version] = _agreement(releases, version)
                    continue
                if model_release(version, lambda _: None) is None:
                    _unknown(releases, version, where)
                absent[version] = (
                    f"{where}: no such tag" if args.source else f"not in our facts, which are of {facts.AS_OF}"
                )
                continue
            listed = model_release(version, lambda name: parent_of(releases, name))
            if listed is None:
                if args.versions:
                    fail(
                        f"{version}: no ancestor of it is in driver_versions.yaml, so there is no model to compare with"
                    )
                absent[version] = "no ancestor of it is in driver_versions.yaml"
            else:
                models[version] = listed
        checked = weaker | {
            release.version: check_release(release, models[release.version])._replace(
                provenance=str(releases.provenance(release.version))
            )
            for release in read_releases(releases, list(models), model.names(), args)
        }
    answers = tuple(checked[v] if v in checked else not_checkable(v, absent[v]) for v in versions)
    report = CheckReport(where, answers)
    document, lines = report.as_json(), check_lines(report)
    if args.unlisted:
        places = _places(report)
        document |= {"scope": "unlisted", "yaml": places}
        lines = chain(lines, _place_lines(places, where))
        if not versions:
            emit(args, document, [f"driver_versions.yaml lists every release of {where}"])
            return SAME
    emit(args, document, lines)
    return report.exit_status


def _places(report: CheckReport) -> dict[str, str]:
    """Release -> its line in driver_versions.yaml, of every release that was compared, as ``place`` prints it."""
    from nvproxy_model.drivers.compare.placement import node_line

    return {
        release.version: node_line(release.version, release.model).strip()
        for release in report.releases
        if release.status in ("same", "different")
    }


def _place_lines(places: dict[str, str], where: str) -> Iterator[str]:
    if places:
        yield f"lines for driver_versions.yaml (nvproxy-differ place V --source {where} has the rest):"
        yield from (f"  {line}" for line in places.values())


def _unlisted(releases: Releases) -> list[str]:
    """The releases of a source that the table lacks."""
    from nvproxy_model import versions

    return [version for version in releases.versions if version not in versions.load()]


def _agreement(releases: Releases, version: str) -> CheckedRelease:
    """A release that only an independent table knows, beside the nearest recorded ancestor of what it is compared with."""
    from nvproxy_model import versions
    from nvproxy_model.drivers import evidence

    table = evidence.independent()[version]
    before = next((name for name in versions.load()[table.model].lineage if name in releases.versions), None)
    release = None if before is None else next(iter(releases.releases([before])))
    return evidence.check_independent(table, release)


def _has(releases: Releases, version: str) -> bool:
    return version in releases.versions


def _all(releases: Releases) -> list[str]:
    """The table's releases, and those of a directory or archive that the table lacks."""
    from nvproxy_model import versions
    from nvproxy_model.drivers.sources.source import Source

    listed = list(versions.load())
    return listed + [
        v for v in releases.versions if isinstance(releases, Source) and not releases.ancestry and v not in listed
    ]


def _unknown(releases: Releases, version: str, where: str) -> None:
    from nvproxy_model import versions
    from nvproxy_model.drivers.facts import nearest_names

    near = nearest_names(version, {*versions.load(), *releases.versions})
    fail(f"{version}: neither in driver_versions.yaml nor in {where}; nearest known: {', '.join(near)}")
