"""Findings about a checkout that are known, each with its reason, so that only new ones count.

A file is YAML, a list of ``{finding: KEY, reason: TEXT}``; a finding's key is ``KIND NAME: DETAIL``, as the text and the
JSON of ``nvproxy-differ gvisor`` print it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nvproxy_model.drivers import yaml_file
from nvproxy_model.drivers.gvisor.parity import Finding, Parity
from nvproxy_model.errors import NvproxyError

__all__ = ["KnownError", "key", "load", "without"]


class KnownError(NvproxyError, ValueError):
    """A file of known findings that is not one."""


def key(finding: Finding) -> str:
    """What a file names a finding by."""
    return f"{finding.kind} {finding.name}: {finding.detail}"


def load(text: bytes) -> dict[str, str]:
    """Key -> reason. Raises KnownError with one line that says what is wrong with the file."""
    data = yaml_file.parse(text, KnownError)
    if not isinstance(data, list):
        raise KnownError(f"want a list of `finding:` and `reason:`, not {yaml_file.described(data)}")
    known: dict[str, str] = {}
    for number, entry in enumerate(data, 1):
        if not isinstance(entry, dict) or set(entry) != {"finding", "reason"}:
            raise KnownError(f"entry {number}: want `finding:` and `reason:`")
        name, reason = entry["finding"], entry["reason"]
        if not isinstance(name, str) or not isinstance(reason, str) or not reason.strip():
            raise KnownError(f"entry {number}: the finding and its reason are texts, and neither is empty")
        if name in known:
            raise KnownError(f"entry {number}: {name!r:.80} stands there twice")
        known[name] = reason
    return known


def without(parity: Parity, known: Iterable[str]) -> tuple[Parity, tuple[Finding, ...], tuple[str, ...]]:
    """The comparison without known findings, those that were known, and the keys that no finding or note has."""
    keys = set(known)
    found = {key(finding) for finding in (*parity.findings, *parity.notes)}
    left = tuple(finding for finding in parity.findings if key(finding) not in keys)
    notes = tuple(finding for finding in parity.notes if key(finding) not in keys)
    at = {version for finding in left for version in finding.versions}
    versions = tuple(replace(report, differs=report.version in at) for report in parity.versions)
    dropped = tuple(finding for finding in parity.findings if key(finding) in keys)
    return replace(parity, findings=left, notes=notes, versions=versions), dropped, tuple(sorted(keys - found))
