"""This model against a release of the driver: layouts, numbers, and the structs that it passes through by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

from nvproxy_model import versions
from nvproxy_model.drivers.compare import model
from nvproxy_model.drivers.compare.carriers import fd_paths, simple_struct_carriers
from nvproxy_model.drivers.compare.findings import Finding, compare_layouts
from nvproxy_model.drivers.release import Release
from nvproxy_model.layout import Layout

__all__ = ["CheckReport", "CheckedRelease", "Status", "check_release", "model_release", "not_checkable"]

Status = Literal["same", "different", "agrees", "not-checkable"]
"""How a release compares. ``agrees``: with an independent table, see `nvproxy_model.drivers.evidence`."""


class CheckedRelease(NamedTuple):
    """One release's answer. The ``reason`` names the independent table that it agrees with, or says why it is not
    checkable. ``provenance`` says how the release is known: a tag, whose signature nobody verified, or a commit.
    ``headers`` declare the ABI and were read; ``parsed`` of them declare what was compared (None: recorded facts);
    ``structs`` and ``constants`` were compared.

    ``model`` is the release of driver_versions.yaml whose tables were compared: the release itself or its nearest
    listed ancestor. In ``findings`` ``base`` is ours and ``next`` the release's.
    """

    version: str
    model: str
    status: Status
    reason: str = ""
    headers: int = 0
    structs: int = 0
    constants: int = 0
    findings: tuple[Finding, ...] = ()
    provenance: str = ""
    parsed: int | None = None

    def as_json(self) -> dict[str, Any]:
        """The release as the schema check/1 states it."""
        return {
            "version": self.version,
            "model": self.model,
            "status": self.status,
            "reason": self.reason,
            "provenance": self.provenance,
            "headers": self.headers,
            "parsed": self.parsed,
            "structs": self.structs,
            "constants": self.constants,
            "findings": [finding.as_json() for finding in self.findings],
        }


class CheckReport(NamedTuple):
    """All releases' answers. ``source`` says what was read."""

    source: str
    releases: tuple[CheckedRelease, ...]

    def count(self, status: Status) -> int:
        """How many releases have this status."""
        return sum(release.status == status for release in self.releases)

    @property
    def exit_status(self) -> int:
        """0: something was compared with headers and all of it is the same; 1: something differs; 2: neither.

        Agreement with an independent table is not sameness, so that alone it is 2.
        """
        if self.count("different"):
            return 1
        return 0 if self.count("same") else 2

    @property
    def summary(self) -> str:
        """The one line at the end."""
        same, different = self.count("same"), self.count("different")
        parts = [
            f"{same + different} of {len(self.releases)} releases compared",
            f"{same} same",
            f"{different} different",
        ]
        agree = self.count("agrees")
        weaker = f"{agree} agree{'s' * (agree == 1)} with an independent table, " if agree else ""
        return f"{parts[0]}: {parts[1]}, {parts[2]}; {weaker}{self.count('not-checkable')} not checkable"

    def as_json(self) -> dict[str, Any]:
        """The whole as ``nvproxy-differ/check/1``."""
        return {
            "schema": "nvproxy-differ/check/1",
            "source": self.source,
            "releases": [release.as_json() for release in self.releases],
            "summary": {
                "compared": self.count("same") + self.count("different"),
                "same": self.count("same"),
                "different": self.count("different"),
                "agrees": self.count("agrees"),
                "not-checkable": self.count("not-checkable"),
                "findings": sum(len(release.findings) for release in self.releases),
            },
        }


def model_release(version: str, parent: Callable[[str], str | None]) -> str | None:
    """The release of driver_versions.yaml to compare with: itself, or the nearest ancestor that is listed, or None."""
    listed = versions.load()
    at: str | None = version
    while at is not None and at not in listed:
        at = parent(at)
    return at


def not_checkable(version: str, reason: str) -> CheckedRelease:
    """The answer for a release that there is no source of."""
    return CheckedRelease(version, version, "not-checkable", reason)


def check_release(release: Release, listed: str) -> CheckedRelease:
    """Compare the model as it is at ``listed``, a release of driver_versions.yaml, with what a release's headers say."""
    found: list[Finding] = []
    structs = model.used_structs(listed)
    fds = fd_paths()
    for name, ours in structs.items():
        theirs = release.structs.get(name)
        if theirs is None:
            found.append(_no_struct(release, name, ours.size))
        else:
            kept = _compared.get((id(ours), id(theirs)))
            if kept is None or kept[0] is not ours or kept[1] is not theirs:
                findings = compare_layouts(name, ours, theirs, fds.get(name, ()), spelling=False)
                kept = _compared[id(ours), id(theirs)] = (ours, theirs, findings)
            found += kept[2]
    passed: dict[str, None] = {}
    numbers: set[str] = set()
    for row in model.rows(listed):
        rule = row.rule
        numbers.add(rule.name)
        value = release.constants.get(rule.name)
        if value is None:
            detail = f"no such constant{_meant(rule.name, release.constants)}"
            found.append(Finding("constant-removed", rule.name, detail, rule.number, None, "removed"))
        elif value != rule.number:
            detail = f"the model's row says {rule.number:#x}, the headers {value:#x}"
            found.append(Finding("constant-changed", rule.name, detail, rule.number, value, "renumbered"))
        theirs_by_name = release.params.get(rule.name)
        if theirs_by_name and theirs_by_name != row.struct and not _alike(release, row.struct, theirs_by_name):
            detail = (
                f"{rule.name} is made of {theirs_by_name}'s MESSAGE_ID; the model's row takes {row.struct or 'nothing'}"
            )
            found.append(
                Finding("struct-removed", row.struct or rule.name, detail, row.struct, theirs_by_name, "replaced")
            )
        if row.struct is None or row.struct in structs:
            continue
        passed[row.struct] = None
        found += (unfit.finding(rule.name) for unfit in simple_struct_carriers(release, rule.name, row.struct))
    for name in passed:
        if name not in release.structs:
            found.append(_no_struct(release, name, None))
    for name, number in model.named_constants(listed).items():
        if name in numbers:
            continue
        numbers.add(name)
        value = release.constants.get(name)
        if value is None:
            detail = f"no such constant{_meant(name, release.constants)}"
            found.append(Finding("constant-removed", name, detail, number, None, "removed"))
        elif value != number:
            detail = f"the model says {number:#x}, the headers {value:#x}"
            found.append(Finding("constant-changed", name, detail, number, value, "renumbered"))
    found.sort(key=lambda finding: (finding.kind.startswith("constant-"), finding.name, finding.kind))
    return CheckedRelease(
        release.version,
        listed,
        "different" if found else "same",
        "",
        release.headers,
        len(structs) + len(passed),
        len(numbers),
        tuple(found),
        parsed=release.parsed,
    )


# Most layouts are one object in all releases, on either side: each pair is compared once.
_compared: dict[tuple[int, int], tuple[Layout, Layout, list[Finding]]] = {}


def _alike(release: Release, ours: str | None, theirs: str) -> bool:
    """Whether two names are one struct to the headers: one is an alias of the other."""
    one, other = release.structs.get(ours or ""), release.structs.get(theirs)
    return one is not None and one == other


def _no_struct(release: Release, name: str, size: int | None) -> Finding:
    return Finding("struct-removed", name, f"no such struct{_meant(name, release.structs)}", size, None, "removed")


def _meant(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), 2, 0.85)
    return f"; did you mean {' or '.join(near)}?" if near else ""
