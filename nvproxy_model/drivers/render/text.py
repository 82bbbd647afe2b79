"""Findings and answers as text: stable, greppable lines, one a finding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from nvproxy_model.drivers.compare.findings import CLASSES, Finding, different, verdict

if TYPE_CHECKING:  # the model's tables take a while to load, and a diff of all names does not need them
    from nvproxy_model.drivers.compare.check import CheckReport

__all__ = ["check_lines", "columns", "diff_lines", "finding_lines", "shown"]

_ORDER = {name: rank for rank, name in enumerate(CLASSES)}


def shown(value: int | str | None) -> str:
    """A value of a finding: large numbers, which are commands and classes, in hexadecimal; sizes and offsets in decimal."""
    return f"{value:#x}" if isinstance(value, int) and value > 4096 else str(value)


def columns(rows: Sequence[Sequence[object]], right: Iterable[int] = ()) -> Iterator[str]:
    """Rows of a table as lines, each column as wide as its widest cell; ``right`` are the columns of numbers."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    flush = set(right)
    for row in texts:
        cells = (c.rjust(w) if n in flush else c.ljust(w) for n, (c, w) in enumerate(zip(row, widths, strict=True)))
        yield "  ".join(cells).rstrip()


def finding_lines(findings: Iterable[Finding]) -> Iterator[str]:
    """One line a finding: kind, class, name, what happened."""
    rows = [(finding.kind, finding.class_, finding.name, finding.detail) for finding in findings]
    for kind, class_, name, detail in rows:
        yield f"{kind:<16}  {class_:<17}  {name}: {detail}"


def check_lines(report: CheckReport) -> Iterator[str]:
    """A table of releases, their findings, and the summary; recorded facts leave out how many headers were parsed."""
    rows: list[tuple[object, ...]] = [
        ("release", "model", "read", "parsed", "structs", "constants", "taken from", "verdict")
    ]
    for release in report.releases:
        if release.status == "agrees":
            what = f"agrees with an independent table: {release.reason.partition(' of ')[0]}"
            rows.append((release.version, release.model, "-", "-", "-", release.constants, "-", what))
        elif release.status == "not-checkable":
            rows.append((release.version, "-", "-", "-", "-", "-", "-", f"not checkable: {release.reason}"))
        else:
            parsed = "-" if release.parsed is None else release.parsed
            counts = (release.headers, parsed, release.structs, release.constants, release.provenance or "-")
            verdict = release.status if not release.findings else f"{release.status}: {len(release.findings)} findings"
            rows.append((release.version, release.model, *counts, verdict))
    if all(release.parsed is None for release in report.releases):
        rows = [row[:3] + row[4:] for row in rows]
    yield from columns(rows, right=range(2, len(rows[0]) - 2))
    for release in report.releases:
        if release.status == "agrees":
            yield f"{release.version} was compared over {release.reason}"
        if release.findings:
            yield f"{release.version} (ours, then the release's):"
            yield from finding_lines(release.findings)
    yield report.summary


def diff_lines(base: str, following: str, findings: Sequence[Finding], compared: str, scope: str) -> Iterator[str]:
    """The findings, how many of each class, how much was compared, and the verdict."""
    yield from finding_lines(findings)
    counts = Counter(finding.class_ for finding in findings)
    if counts:
        yield "classes: " + ", ".join(f"{counts[name]} {name}" for name in sorted(counts, key=_ORDER.__getitem__))
    yield f"compared {base} with {following}: {compared}"
    yield f"verdict: {'different' if different(findings) else 'same'} ({verdict(findings)}), scope {scope}"
