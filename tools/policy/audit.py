"""``nvproxy-policy audit``: what the calls that a capability set opens carry across the sandbox's boundary."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nvproxy_model.caps import Caps
from nvproxy_model.drivers import facts
from nvproxy_model.drivers.compare.audit import Audited, audit_release
from nvproxy_model.rules import TABLES, Rule
from nvproxy_model.tools.command import fail
from nvproxy_model.tools.output import emit
from nvproxy_model.tools.policy.shared import ADMITTED, policy_of
from nvproxy_model.versions import DriverVersion

__all__ = ["run"]

SCHEMA = "nvproxy-policy/audit/1"
_COLUMNS = ("table", "number", "command", "capability", "struct", "field", "offset", "kind", "handled", "evidence")
_HOST = {"pid": "process numbers of the host", "host-address": "addresses of the host"}
"""What a field shows the guest, if the driver returns it and it is passed on."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """One field of one call; ``caps`` are those of the capabilities asked about that open the call."""

    rule: Rule
    caps: Caps
    field: Audited

    @property
    def leaks(self) -> bool:
        return self.field.shown and self.field.handled == "passed"

    def row(self) -> tuple[object, ...]:
        rule, at = self.rule, self.field
        evidence = "; ".join(at.how)
        return (
            rule.table,
            f"{rule.number:#x}",
            rule.name,
            self.caps,
            at.struct,
            at.path,
            at.offset,
            at.what,
            at.handled,
            evidence,
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "table": self.rule.table,
            "number": self.rule.number,
            "name": self.rule.name,
            "caps": list(self.caps.names),
            "struct": self.field.struct,
            "path": self.field.path,
            "offset": self.field.offset,
            "what": self.field.what,
            "handled": self.field.handled,
            "how": list(self.field.how),
            "reaches_guest": self.leaks,
        }


def run(args: argparse.Namespace) -> int:
    """List the fields; returns the exit status."""
    policy = policy_of(args)
    recorded = _recorded(policy.version)
    fields: dict[str, list[Audited]] = {}
    for audited in audit_release(facts.load().release(recorded), policy.version.name):
        fields.setdefault(audited.struct, []).append(audited)
    rows: list[_Entry] = []
    calls = 0
    for table in TABLES:
        rules: dict[int, Rule] = getattr(policy, table)
        for rule in rules.values():
            caps = Caps(rule.caps & policy.caps)
            if not caps or rule.rejected or rule.opt_in:
                continue
            calls += 1
            struct = rule.struct_at(policy.version)
            rows += [_Entry(rule, caps, field) for field in fields.get(struct or "", ())]
    headline = _headline(rows, calls, policy.caps)
    note = "" if recorded == policy.version.name else f"; layouts from the headers of {recorded}"
    document = {
        "schema": SCHEMA,
        "driver": policy.version.name,
        "headers": recorded,
        "caps": list(policy.caps.names),
        "profile": policy.profile,
        "calls": calls,
        "headline": headline,
        "reaches_guest": {what: sum(row.leaks and row.field.what == what for row in rows) for what in _HOST},
        "kinds": dict(sorted(Counter(row.field.what for row in rows).items())),
        "fields": [row.as_json() for row in rows],
    }
    title = f"driver {policy.version}, capabilities {policy.caps or 'none'}{note}"
    emit(args, document, _lines(headline, title, rows), (_COLUMNS, (row.row() for row in rows)), [*headline, title])
    return ADMITTED


def _recorded(version: DriverVersion) -> str:
    for ancestor in version.lineage:
        if ancestor in facts.load():
            return ancestor
    return fail(f"{version}: neither it nor an ancestor of it is in the recorded facts, so its structs are not known")


def _headline(rows: list[_Entry], calls: int, caps: Caps) -> list[str]:
    said = []
    for what, words in _HOST.items():
        found = [row for row in rows if row.leaks and row.field.what == what]
        numbers = len({(row.rule.table, row.rule.number) for row in found})
        which = f"{len(found)} fields of {numbers} calls" if found else "no field"
        said.append(f"{which} can show the guest {words}")
    kinds = Counter((row.field.what, row.field.handled) for row in rows if not row.leaks)
    others = "; ".join(f"{count} {what}, {handled}" for (what, handled), count in sorted(kinds.items()))
    return [*said, f"{calls} calls are open to {caps or 'no capability'}; their other fields: {others or '-'}"]


def _lines(headline: list[str], title: str, rows: list[_Entry]) -> Iterator[str]:
    from nvproxy_model.drivers.render.text import columns

    yield from headline
    yield title
    ordered = sorted(
        rows, key=lambda row: (not row.leaks, TABLES.index(row.rule.table), row.rule.number, row.field.offset)
    )
    yield from columns([_COLUMNS[:-1], *(row.row()[:-1] for row in ordered)], right=(6,))
