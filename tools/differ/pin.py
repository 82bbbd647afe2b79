"""nvproxy-differ pin: which releases break the expectations that another project keeps in a file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvproxy_model.errors import NvproxyError
from nvproxy_model.tools.command import UNKNOWN, fail
from nvproxy_model.tools.differ.shared import DIFFERENT, SAME, emit, opened, parent_of, read_releases

if TYPE_CHECKING:
    from nvproxy_model.drivers.compare.pins import Pin, PinReport
    from nvproxy_model.drivers.release import Wanted
    from nvproxy_model.tools.differ.shared import Releases

SCHEMA = "nvproxy-differ/pin/1"

MAX_FILE = 1 << 20


def run(args: argparse.Namespace) -> int:
    """Check and print; returns the exit status. Raises NvproxyError for a file or a release that cannot be read."""
    from nvproxy_model.drivers.compare import pins

    if args.init:
        return _init(args)
    if len(args.names) != 1:
        fail(f"{args.names[1]}: one FILE at a time; did you mean --init {' '.join(args.names)}?")
    if args.driver is not None:
        fail("--driver: belongs to --init; a check runs over all releases, or those of --since and --branch")
    name = args.names[0]
    try:
        wanted = pins.load(_read(name))
    except pins.PinError as error:
        raise NvproxyError(f"{name}: {error}") from None
    with opened(args) as releases:
        versions = chosen(releases, args)
        read = dict(zip(versions, read_releases(releases, versions, _wanted(wanted), args), strict=True))

        parents = ancestry(releases)
        reports = pins.check(wanted, read, parents.get)
        broken = {version for report in reports for version, _ in report.broken}
        begins = [
            version
            for version in versions
            if version in broken and pins.nearest(parents.get, version, read) not in broken
        ]
    unknown = sum(report.unknown is not None for report in reports)
    summary = {
        "releases": len(versions),
        "broken": len(broken),
        "pins": len(reports),
        "broken-pins": sum(bool(report.broken) for report in reports),
        "unknown-pins": unknown,
    }
    report = {
        "schema": SCHEMA,
        "file": name,
        "status": "different" if broken else "unknown" if unknown else "same",
        "pins": [_as_json(report) for report in reports],
        "satisfied": [version for version in versions if version not in broken],
        "first": begins,
        "summary": summary,
    }
    lines = _lines(reports, versions, broken, begins)
    if args.quiet:
        lines = (line for line in lines if not line.startswith(("holds ", "satisfied ")))
    emit(args, report, lines)
    return DIFFERENT if broken else UNKNOWN if unknown else SAME


def _init(args: argparse.Namespace) -> int:
    from nvproxy_model.drivers.compare import pins
    from nvproxy_model.drivers.release import Wanted
    from nvproxy_model.naming import natural

    if args.since is not None or args.branch or args.format != "text":
        fail("--init: writes a file for one release; --since, --branch and --format belong to a check")
    names = list(dict.fromkeys(args.names))
    with opened(args) as releases:
        version = args.driver if args.driver is not None else max(releases.versions, key=natural)
        wanted = Wanted(frozenset(names), frozenset(names))
        release = next(iter(read_releases(releases, [version], wanted, args)))
        sys.stdout.write(pins.dump(names, release))
    return SAME


def _read(name: str) -> bytes:
    try:
        if name == "-":
            return sys.stdin.buffer.read(MAX_FILE + 1)
        path = Path(name)
        if not path.is_file():
            raise NvproxyError(f"{name}: no such file; --init NAME... writes one")
        with path.open("rb") as file:
            return file.read(MAX_FILE + 1)
    except OSError as error:
        raise NvproxyError(f"{name}: {error.strerror or error}") from None


def _wanted(pins: Sequence[Pin]) -> Wanted:
    from nvproxy_model.drivers.release import Wanted

    structs = frozenset(pin.name for pin in pins if pin.what != "value")
    return Wanted(structs, frozenset(pin.name for pin in pins if pin.what == "value"))


def ancestry(releases: Releases) -> dict[str, str | None]:
    """Release -> its parent. A directory or an archive of releases that nobody recorded tells none at all: then each
    descends from the one before it in the order of their names."""
    from nvproxy_model.naming import natural

    parents = {version: parent_of(releases, version) for version in releases.versions}
    if any(parents.values()):
        return parents
    order = sorted(releases.versions, key=natural)
    return dict(zip(order, [None, *order], strict=False))


def chosen(releases: Releases, args: argparse.Namespace) -> list[str]:
    """The releases that --since and --branch leave, in order of ancestry."""
    from nvproxy_model.drivers.compare.history import select
    from nvproxy_model.drivers.facts import nearest_names

    versions = list(releases.versions)
    if args.since is not None and args.since not in versions:
        fail(f"--since {args.since}: no such release; nearest: {', '.join(nearest_names(args.since, versions))}")
    parents = ancestry(releases)
    kept: set[str] = set()
    for branch in args.branch or [None]:
        line = select(versions, parents.get, args.since, branch)
        if not line:
            fail(f"--branch {branch}: no release of that branch" + (f" since {args.since}" if args.since else ""))
        kept.update(line)
    return [version for version in versions if version in kept]


def _as_json(report: PinReport) -> dict[str, Any]:
    return {
        "name": report.pin.name,
        "what": report.pin.what,
        "path": report.pin.path,
        "value": report.pin.value,
        "holds": list(report.holds),
        "broken": [{"version": version, "actual": actual} for version, actual in report.broken],
        "first": [{"version": first.version, "actual": first.actual} for first in report.first],
        "unknown": report.unknown is not None,
        "near": report.unknown or None,
    }


def _lines(
    reports: Sequence[PinReport], versions: Sequence[str], broken: set[str], begins: Sequence[str]
) -> Iterator[str]:
    for report in reports:
        pin = report.pin
        if report.unknown is not None:
            continue
        if not report.broken:
            yield f"holds   {pin} = {_shown(pin, pin.value)}: all {len(versions)} releases"
            continue
        breaks = ", ".join(f"{first.version} ({_shown(pin, first.actual)})" for first in report.first)
        count = f"{len(report.broken)} of {len(versions)} releases"
        yield f"broken  {pin} = {_shown(pin, pin.value)}: {count}, first {breaks}"
    for report in reports:
        if report.unknown is not None:
            near = f"; did you mean {report.unknown}?" if report.unknown else ""
            yield f"unknown {report.pin}: none of {len(versions)} releases has it{near}"
    good = [version for version in versions if version not in broken]
    yield f"satisfied by {len(good)} of {len(versions)} releases" + (f": {_ranges(good, versions)}" if good else "")
    bad = sum(bool(report.broken) for report in reports)
    first = f", first at {', '.join(begins)}" if begins else ""
    unknown = sum(report.unknown is not None for report in reports)
    verdict = "different" if broken else "could not tell" if unknown else "same"
    tail = f"; {unknown} of names that no release has" if unknown else ""
    yield f"verdict: {verdict}: {bad} of {len(reports)} pins broken{first}{tail}"


def _shown(pin: Pin, value: int | None) -> str:
    if value is None:
        return "absent"
    return f"{value:#x}" if pin.what == "value" else str(value)


def _ranges(chosen: Sequence[str], versions: Sequence[str]) -> str:
    """Releases as runs of the tree's order: ``535.43.02 .. 535.288.01, 550.40.07``."""
    place = {version: index for index, version in enumerate(versions)}
    runs: list[list[str]] = []
    for version in chosen:
        if runs and place[version] == place[runs[-1][-1]] + 1:
            runs[-1].append(version)
        else:
            runs.append([version])
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]} .. {run[-1]}" for run in runs)
