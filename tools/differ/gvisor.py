"""nvproxy-differ gvisor: a gVisor checkout's Go structs and tables against the drivers' headers, or against the model."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvproxy_model.tools.command import UNKNOWN, fail
from nvproxy_model.tools.differ.shared import DIFFERENT, SAME, emit, opened, read_releases

if TYPE_CHECKING:
    from nvproxy_model.drivers.gvisor.checkout import Nvproxy
    from nvproxy_model.drivers.gvisor.parity import Finding, Parity

SCHEMA = "nvproxy-differ/gvisor/1"


def run(args: argparse.Namespace) -> int:
    """Compare and print; returns the exit status. Raises NvproxyError for what cannot be opened."""
    from nvproxy_model.drivers.gvisor import checkout as gvisor

    if not args.path or args.rev == "":
        fail("PATH and --rev: an empty name")
    nvproxy = gvisor.read(Path(args.path), args.rev)
    if args.against == "model":
        if args.source is not None:
            fail("--source: the model is compared without driver sources; leave out --against model or --source")
        from nvproxy_model.drivers.gvisor.against_model import compare_with_model

        parity = compare_with_model(nvproxy)
    else:
        parity = _against_drivers(nvproxy, args)
    emit(args, as_json(parity, args.against), lines(parity, args.against, args.notes))
    return {"same": SAME, "different": DIFFERENT, "unknown": UNKNOWN}[parity.verdict]


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
