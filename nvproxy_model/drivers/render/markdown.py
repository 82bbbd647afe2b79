"""Reports as Markdown that fits a pull request's comment. Names come from other people's trees, so all text is escaped."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nvproxy_model.drivers.compare.findings import CLASSES
from nvproxy_model.drivers.render.text import shown

__all__ = ["MAX_COMMENT", "code", "escape", "render"]

MAX_COMMENT = 60_000
"""Characters; GitHub takes 65,536 in a comment."""

# An underscore within a word marks nothing up; a colon only matters where it makes a link.
_SPECIAL = re.compile(r"[\\`*\[\]<>#!|~&@$]|(?<!\w)_|_(?!\w)|:(?=//)|(?<=www)\.", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_ORDER = {name: rank for rank, name in enumerate(CLASSES)}


def escape(value: object) -> str:
    """Text that Markdown shows as it is, on one line."""
    line = _CONTROL.sub(lambda match: ascii(match[0])[1:-1], str(value))
    return _SPECIAL.sub(lambda match: f"&#{ord(match[0])};", line)


def code(value: object) -> str:
    """Text in a code span; where the span could be broken out of, escaped text in a ``<code>`` element."""
    line = _CONTROL.sub(lambda match: ascii(match[0])[1:-1], str(value))
    return f"`{line}`" if line.strip() and not set("`|\\") & set(line) else f"<code>{escape(value)}</code>"


def render(report: Mapping[str, Any]) -> str:
    """A report of ``check``, ``diff``, ``gvisor`` or ``pin``, as its ``--json`` states it.

    A longer one than MAX_COMMENT is cut, and says so.

    Raises ValueError for a report of another schema.
    """
    kinds = {
        "nvproxy-differ/diff/2": _diff,
        "nvproxy-differ/check/1": _check,
        "nvproxy-differ/gvisor/1": _gvisor,
        "nvproxy-differ/pin/1": _pin,
    }
    schema = report.get("schema")
    if schema not in kinds:
        raise ValueError(f"no Markdown for {schema!r}")
    head, columns, rows = kinds[schema](report)
    lines = [*head]
    if rows:
        lines += ["", "| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    used = sum(len(line) + 1 for line in lines)
    for index, row in enumerate(rows):
        line = "| " + " | ".join(row) + " |"
        used += len(line) + 1
        if used > MAX_COMMENT:
            lines += ["", f"{len(rows) - index} more findings; `--json` has them all."]
            break
        lines.append(line)
    return "\n".join(lines) + "\n"


_Parts = tuple[Sequence[str], Sequence[str], Sequence[Sequence[str]]]


def _diff(report: Mapping[str, Any]) -> _Parts:
    compared, findings = report["compared"], report["findings"]
    head = [f"### {code(report['base'])} to {code(report['next'])}: {escape(report['change'])}", ""]
    counts = f"{compared['headers']} headers, {compared['structs']} structs, {compared['constants']} constants"
    head.append(f"{counts} compared; {_classes(findings)}.")
    return head, ("class", "name", "what"), [_row(finding) for finding in findings]


def _classes(findings: Sequence[Mapping[str, Any]]) -> str:
    counts = Counter(finding["class"] for finding in findings)
    if not counts:
        return "no finding"
    return ", ".join(f"{counts[name]} {escape(name)}" for name in sorted(counts, key=lambda name: _ORDER.get(name, 99)))


def _row(finding: Mapping[str, Any]) -> Sequence[str]:
    return escape(finding["class"]), code(finding["name"]), escape(finding["detail"])


def _check(report: Mapping[str, Any]) -> _Parts:
    summary = report["summary"]
    verdict = "different" if summary["different"] else "same" if summary["same"] else "nothing compared"
    head = [f"### the model and the driver: {verdict}", ""]
    head.append(
        f"{summary['compared']} of {len(report['releases'])} releases compared with {escape(report['source'])}: "
        f"{summary['same']} same, {summary['different']} different; {summary['not-checkable']} not checkable."
    )
    skipped = [release for release in report["releases"] if release["status"] == "not-checkable"]
    if skipped:
        reasons = sorted({release["reason"] for release in skipped})
        names = ", ".join(code(release["version"]) for release in skipped)
        head += ["", f"Not checkable ({escape('; '.join(reasons))}): {names}."]
    rows = [
        (code(release["version"]), *_row(finding)) for release in report["releases"] for finding in release["findings"]
    ]
    return head, ("release", "class", "name", "what (ours, then the release's)"), rows


def _gvisor(report: Mapping[str, Any]) -> _Parts:
    summary = report["summary"]
    against = "the model" if report["against"] == "model" else "the drivers"
    head = [f"### {code(report['revision'])} and {against}: {escape(report['verdict'])}", ""]
    head.append(
        f"{summary['same'] + summary['different']} of {summary['versions']} versions compared: {summary['findings']} findings, "
        f"{summary['notes']} notes, {summary['unread']} not read."
    )
    for item in report["unread"]:
        head.append(f"- not read: {code(item['where'])} {code(item['what'])}: {escape(item['why'])}")
    rows = list(_gvisor_rows(report["findings"]))
    return head, ("kind", "name", "what", "gVisor", "other", "versions", "where"), rows


def _pin(report: Mapping[str, Any]) -> _Parts:
    summary = report["summary"]
    head = [f"### {code(report['file'])}: {escape(report['status'])}", ""]
    head.append(
        f"{summary['broken-pins']} of {summary['pins']} pins broken, {summary['unknown-pins']} of names that no release has; "
        f"{summary['releases'] - summary['broken']} of {summary['releases']} releases satisfy all that could be judged."
    )
    rows = []
    for pin in report["pins"]:
        name = code(".".join(filter(None, (pin["name"], pin["path"]))))
        if pin["unknown"]:
            near = f"did you mean {code(pin['near'])}?" if pin["near"] else ""
            rows.append((name, pin["what"], escape(pin["value"]), "no release has it", near))
        elif pin["broken"]:
            first = ", ".join(
                f"{code(at['version'])} ({'absent' if at['actual'] is None else escape(at['actual'])})"
                for at in pin["first"]
            )
            rows.append((name, pin["what"], escape(pin["value"]), f"broken in {len(pin['broken'])} releases", first))
    return head, ("name", "what", "pinned", "", "first"), rows


def _gvisor_rows(findings: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    for finding in findings:
        versions = finding["versions"]
        when = code(versions[0]) if len(versions) == 1 else f"{code(versions[0])} to {code(versions[-1])}"
        values = ["" if value is None else escape(shown(value)) for value in (finding["base"], finding["next"])]
        where = code(finding["where"]) if finding["where"] else ""
        yield escape(finding["kind"]), code(finding["name"]), escape(finding["detail"]), *values, when, where
