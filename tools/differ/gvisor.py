"""nvproxy-differ gvisor: a gVisor checkout's Go structs and tables against the drivers' headers, or against the model."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvproxy_model.tools.command import UNKNOWN, fail
from nvproxy_model.tools.differ.shared import DIFFERENT, SAME, emit, opened, read_releases

if TYPE_CHECKING:
    from nvproxy_model.drivers.gvisor.addition import Addition
    from nvproxy_model.drivers.gvisor.checkout import Nvproxy
    from nvproxy_model.drivers.gvisor.parity import Finding, Parity

SCHEMA = "nvproxy-differ/gvisor/1"


def run(args: argparse.Namespace) -> int:
    """Compare and print; returns the exit status. Raises NvproxyError for what cannot be opened."""
    from nvproxy_model.drivers.gvisor import checkout as gvisor

    if not args.path or args.rev == "":
        fail("PATH and --rev: an empty name")
    nvproxy = gvisor.read(Path(args.path), args.rev)
    if args.add is not None:
        return _add(nvproxy, args)
    if args.against == "model":
        if args.source is not None:
            fail("--source: the model is compared without driver sources; leave out --against model or --source")
        from nvproxy_model.drivers.gvisor.against_model import compare_with_model

        parity = compare_with_model(nvproxy)
    else:
        parity = _against_drivers(nvproxy, args)
    known: tuple[Finding, ...] = ()
    unused: tuple[str, ...] = ()
    if args.known is not None:
        parity, known, unused = _known(parity, args.known)
    report = as_json(parity, args.against) | {"known": [finding.as_json() for finding in known], "unused": list(unused)}
    emit(args, report, [*lines(parity, args.against, args.notes), *_known_lines(args.known, known, unused)])
    return {"same": SAME, "different": DIFFERENT, "unknown": UNKNOWN}[parity.verdict]


def _known(parity: Parity, path: str) -> tuple[Parity, tuple[Finding, ...], tuple[str, ...]]:
    from nvproxy_model.drivers.gvisor.known import KnownError, load, without
    from nvproxy_model.drivers.yaml_file import MAX_FILE

    with Path(path).open("rb") as file:
        text = file.read(MAX_FILE + 1)
    try:
        return without(parity, load(text))
    except KnownError as error:
        fail(f"{path}: {error}")


def _known_lines(path: str | None, known: Sequence[Finding], unused: Sequence[str]) -> Iterator[str]:
    if path is not None:
        yield f"{len(known)} findings are known ({path})"
        yield from (f"unused entry in {path}: {name}" for name in unused)


def _add(nvproxy: Nvproxy, args: argparse.Namespace) -> int:
    """Print what a release needs; 0 if the checkout's types fit it, 1 if it needs new ones, 2 if a person must decide."""
    from nvproxy_model.drivers.gvisor.addition import add, parent_in
    from nvproxy_model.drivers.gvisor.parity import release_name
    from nvproxy_model.tools.differ.shared import parent_of

    if args.against == "model" or args.notes or args.known:
        fail("--add: takes no --against, --notes or --known")
    with opened(args) as releases:
        parent = parent_in(nvproxy, args.add, lambda name: parent_of(releases, name))
        tag = release_name(parent, releases.versions)
        if tag is None:
            fail(
                f"{parent}: the nearest registered ancestor of {args.add} has no source in {args.source or 'the facts'}"
            )
        before, release = read_releases(releases, [tag, args.add], None, args)
        addition = add(nvproxy, parent, before, release)
    report = {
        "schema": "nvproxy-differ/gvisor-add/1",
        "revision": nvproxy.revision,
        "version": addition.version,
        "parent": addition.parent,
        "types": [asdict(kind) for kind in addition.types],
        "rows": [asdict(row) for row in addition.rows],
        "registration": addition.registration,
        "notes": list(addition.notes),
        "description": addition.description,
    }
    emit(args, report, _addition_lines(addition))
    return UNKNOWN if addition.notes else DIFFERENT if addition.types else SAME


def _addition_lines(addition: Addition) -> Iterator[str]:
    """Text to paste; gofmt(1) brings its white space into shape."""
    yield f"{addition.version}, below {addition.parent}: {len(addition.types)} types, {len(addition.rows)} rows"
    for note in addition.notes:
        yield f"to decide: {note}"
    for kind in addition.types:
        replaced = f", replaces {kind.replaces}" if kind.replaces else ""
        yield ""
        yield f"== {kind.file or 'beside the type that holds it'}: {kind.struct}{replaced}"
        yield from (f"   {why}" for why in kind.why)
        yield from _untabbed(kind.source)
    if addition.rows:
        yield ""
        yield "== rows that have the old types"
        yield from (f"   {row.where}: {row.table} {row.symbol}" for row in addition.rows)
    yield ""
    yield "== pkg/sentry/devices/nvproxy/version.go, in Init()"
    yield from _untabbed(addition.registration)
    yield ""
    yield "== description"
    yield addition.description


def _untabbed(source: str) -> Iterator[str]:
    return (line.expandtabs(4) for line in source.rstrip("\n").splitlines())


def _against_drivers(nvproxy: Nvproxy, args: argparse.Namespace) -> Parity:
    from nvproxy_model.drivers.gvisor.parity import compare, release_name

    with opened(args) as releases:
        tags = [tag for version in nvproxy.versions if (tag := release_name(version, releases.versions)) is not None]
        wanted = list(dict.fromkeys(tags))
        read = dict(zip(wanted, read_releases(releases, wanted, None, args), strict=True))
    return compare(nvproxy, read)


def as_json(parity: Parity, against: str) -> dict[str, Any]:
    """The report as JSON: findings and notes in stable order, numbers as integers."""
    statuses = Counter(report.status for report in parity.versions)
    return {
        "schema": SCHEMA,
        "revision": parity.revision,
        "against": against,
        "verdict": parity.verdict,
        "versions": [
            {
                "version": report.version,
                "supported": report.supported,
                "registered": report.registered,
                "status": report.status,
                "reason": report.reason,
                "rows": report.rows,
                "structs": report.structs,
            }
            for report in parity.versions
        ],
        "findings": [finding.as_json() for finding in parity.findings],
        "notes": [finding.as_json() for finding in parity.notes],
        "unread": [{"where": item.where, "what": item.what, "why": item.why} for item in parity.unread],
        "summary": {
            "versions": len(parity.versions),
            "same": statuses["same"],
            "different": statuses["different"],
            "not-checkable": statuses["not-checkable"],
            "findings": len(parity.findings),
            "notes": len(parity.notes),
            "unread": len(parity.unread),
        },
    }


def lines(parity: Parity, against: str, notes: bool) -> Iterator[str]:
    """A table of versions, what could not be read, one line a finding, and the verdict."""
    from nvproxy_model.drivers.render.text import columns

    rows: list[tuple[object, ...]] = [("version", "rows", "structs", "nvproxy", "verdict")]
    for report in parity.versions:
        kind = "supported" if report.supported else "unsupported" if report.registered else "a step only"
        verdict = "not checkable" if report.status == "not-checkable" else report.status
        why = f": {report.reason}" if report.reason else ""
        rows.append((report.version, report.rows, report.structs, kind, verdict + why))
    yield from columns(rows, right=(1, 2))
    for item in parity.unread:
        yield f"not-read {item.where}: {item.what}: {item.why}"
    for finding in parity.findings + (parity.notes if notes else ()):
        yield _line(finding, "model" if against == "model" else "driver")
    hidden = "" if notes or not parity.notes else " (--notes lists them)"
    yield (
        f"compared {parity.revision} with {'the model' if against == 'model' else 'the drivers'}: "
        f"{parity.compared} of {len(parity.versions)} versions"
    )
    yield (
        f"verdict: {parity.verdict}: {len(parity.findings)} findings, {len(parity.notes)} notes{hidden}, "
        f"{len(parity.unread)} not read"
    )


def _line(finding: Finding, other: str) -> str:
    from nvproxy_model.drivers.render.text import shown as value_text

    values = [
        f"{side} {value_text(v)}" for side, v in (("gvisor", finding.base), (other, finding.next)) if v is not None
    ]
    shown = f" ({', '.join(values)})" if values else ""
    return f"{finding.kind:<20}  {finding.name}: {finding.detail}{shown} [{span(finding.versions)}] {finding.where}"


def span(versions: Sequence[str]) -> str:
    """Versions in few words: ``550.40.07 .. 590.48.01, 20 versions``."""
    if len(versions) < 3:
        return ", ".join(versions)
    return f"{versions[0]} .. {versions[-1]}, {len(versions)} versions"
