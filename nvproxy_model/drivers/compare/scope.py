"""The two scopes of a comparison: what nvproxy interprets, and what it passes on.

nvproxy reads or rewrites the structs that this model defines, and it dispatches on numbers: a difference there changes what
a call means. Other structs of the tables are copied as they are, whatever they hold, so a difference there matters only
where a field begins to carry something that means nothing in another process: a descriptor, a pointer or a pid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal

from nvproxy_model import versions
from nvproxy_model.drivers.compare import model
from nvproxy_model.drivers.compare.carriers import fd_paths, simple_struct_carriers
from nvproxy_model.drivers.compare.findings import CLASSES, Comparison, Finding, Gravity, compare_releases, verdict
from nvproxy_model.drivers.release import Release, Wanted

__all__ = ["GAINED", "SCOPES", "Scope", "Scoped", "compare_scoped", "gained", "gravest_first", "scope_at"]

ScopeName = Literal["interpreted", "passed on", "other"]
SCOPES: Final[tuple[ScopeName, ...]] = ("interpreted", "passed on", "other")
"""``interpreted``: structs that the model defines, and numbers that it uses. ``passed on``: structs that its rows only
name. ``other``: all that no row uses."""

GAINED: Final = ("fd-gained", "pointer-gained", "pid-gained")
"""Classes that decide in the scope ``passed on``."""

_RANK: Final = {name: rank for rank, name in enumerate(CLASSES)}


@dataclass(frozen=True, slots=True)
class Scope:
    """The names of the two scopes at one release of the model, or at all of them."""

    interpreted: frozenset[str]
    passed_on: frozenset[str]
    numbers: frozenset[str]

    def of(self, finding: Finding) -> ScopeName:
        """The scope that a finding is about."""
        if finding.struct is None:
            return "interpreted" if finding.name in self.numbers else "other"
        if finding.struct in self.interpreted:
            return "interpreted"
        return "passed on" if finding.struct in self.passed_on else "other"

    @property
    def wanted(self) -> Wanted:
        """What a source must be asked for."""
        return Wanted(self.interpreted | self.passed_on, self.numbers)


@cache
def scope_at(version: str | None) -> Scope:
    """The scopes of the model at a release of driver_versions.yaml; None: of every release together."""
    if version is None:
        each = [scope_at(name) for name in versions.load()]
        interpreted = frozenset().union(*(scope.interpreted for scope in each))
        passed = frozenset().union(*(scope.passed_on for scope in each)) - interpreted
        return Scope(interpreted, passed, frozenset().union(*(scope.numbers for scope in each)))
    interpreted = frozenset(model.used_structs(version))
    rows = list(model.rows(version))
    passed = frozenset(row.struct for row in rows if row.struct is not None) - interpreted
    return Scope(interpreted, passed, frozenset(row.rule.name for row in rows) | model.named_constants(version).keys())


def gained(base: Release, following: Release, scope: Scope, version: str | None) -> Iterator[Finding]:
    """What the passed-on structs of a release carry that those of the base do not: descriptors, pointers, pids."""
    rows = {
        row.rule.name: row.struct for name in ([version] if version else versions.load()) for row in model.rows(name)
    }
    for control, struct in sorted(rows.items()):
        if struct in scope.passed_on:
            before = {carrier.path for carrier in simple_struct_carriers(base, control, struct)}
            for carrier in simple_struct_carriers(following, control, struct):
                if carrier.path not in before:
                    yield carrier.finding(control)


@dataclass(frozen=True, slots=True)
class Scoped:
    """A comparison with its findings by scope."""

    comparison: Comparison
    scope: Scope
    by_scope: dict[ScopeName, tuple[Finding, ...]]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All of them, in the order of their names."""
        every = [finding for name in SCOPES for finding in self.by_scope[name]]
        return tuple(sorted(every, key=lambda finding: (finding.struct is None, finding.struct or finding.name)))

    @property
    def deciding(self) -> tuple[Finding, ...]:
        """The findings that decide whether one release can stand in for the other, the gravest first."""
        passed = (finding for finding in self.by_scope["passed on"] if finding.class_ in GAINED)
        return gravest_first([*self.by_scope["interpreted"], *passed])

    @property
    def rest(self) -> tuple[Finding, ...]:
        """The other findings, the gravest first."""
        deciding = set(map(id, self.deciding))
        return gravest_first(finding for finding in self.findings if id(finding) not in deciding)

    @property
    def verdict(self) -> Gravity:
        """``none``, ``cosmetic``, ``additive`` or ``breaking``, by what decides."""
        return verdict(self.deciding)

    def counts(self) -> dict[str, Any]:
        """How much was compared: headers, structs and constants, in all and by scope."""
        names = self.comparison.compared_structs
        numbers = self.comparison.compared_constants
        return {
            "headers": self.comparison.headers,
            "structs": self.comparison.structs,
            "constants": self.comparison.constants,
            "by_scope": {
                "interpreted": {
                    "structs": len(names & self.scope.interpreted),
                    "constants": len(numbers & self.scope.numbers),
                },
                "passed on": {"structs": len(names & self.scope.passed_on), "constants": 0},
                "other": {
                    "structs": len(names - self.scope.interpreted - self.scope.passed_on),
                    "constants": len(numbers - self.scope.numbers),
                },
            },
        }


def gravest_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings by class, the gravest first, and by name."""
    return tuple(sorted(findings, key=lambda finding: (_RANK[finding.class_], finding.name, finding.kind)))


def compare_scoped(base: Release, following: Release, listed: str | None, *, everything: bool = False) -> Scoped:
    """Two releases compared, over the names of the model at ``listed`` (None: at any release), or over all names."""
    scope = scope_at(listed)
    structs = None if everything else scope.interpreted | scope.passed_on
    constants = None if everything else scope.numbers
    compared = compare_releases(base, following, structs, constants, fd_paths())
    by_scope: dict[ScopeName, list[Finding]] = {name: [] for name in SCOPES}
    for finding in compared.findings:
        by_scope[scope.of(finding)].append(finding)
    known = {(finding.name, finding.class_) for finding in by_scope["passed on"]}
    for finding in gained(base, following, scope, listed):
        if (finding.name, finding.class_) not in known:
            by_scope["passed on"].append(finding)
    return Scoped(compared, scope, {name: tuple(findings) for name, findings in by_scope.items()})
