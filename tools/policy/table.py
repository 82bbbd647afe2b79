"""``nvproxy-policy table``: every row of a release, and what differs between two."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from nvproxy_model.caps import SUPPORTED, Caps
from nvproxy_model.fields import CStruct
from nvproxy_model.policy.policy import Policy
from nvproxy_model.rules import TABLES, Rule, Table
from nvproxy_model.tools.command import fail
from nvproxy_model.tools.output import emit
from nvproxy_model.tools.policy.shared import ADMITTED, REFUSED, caps_of, handled, node_of, structs
from nvproxy_model.versions import DriverVersion

__all__ = ["compare", "run"]

SCHEMA = "nvproxy-policy/table/1"
DIFF_SCHEMA = "nvproxy-policy/table-diff/1"
_COLUMNS = ("table", "number", "name", "capabilities", "handling", "struct", "refused because")


def run(args: argparse.Namespace) -> int:
    """List or compare; returns the exit status."""
    node = node_of(args.version, allow_unsupported=True)
    caps = None if args.caps is None else caps_of(args.caps)
    if args.diff is not None:
        other = node_of(args.diff, allow_unsupported=True)
        if other is node:
            fail(f"--diff: {other} is VERSION itself")
        return _diff(args, node, other, caps)
    rows = {table: list(_rows(node, table, caps)) for table in TABLES}
    refused = [] if caps is not None else list(_refused(node))
    document: dict[str, Any] = {"schema": SCHEMA, "version": node.name, "supported": node.supported}
    document["caps"] = None if caps is None else list(caps.names)
    for table in TABLES:
        document[table] = [_json(rule, node) for rule in rows[table]]
    document["refused"] = refused
    if args.format == "html":
        from nvproxy_model.tools.policy.table_page import page

        whole = {table: [*document[table], *(row for row in refused if row["table"] == table)] for table in TABLES}
        print(page(node, whole, _tables(node).rules), end="")
        return ADMITTED
    emit(args, document, _lines(rows, refused, node), (_COLUMNS, _cells(document)))
    return ADMITTED


def _cells(document: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    for table in TABLES:
        for row in document[table]:
            structs_of = ", ".join(row["structs"])
            yield table, f"{row['number']:#x}", row["name"], ",".join(row["caps"]), row["kind"], structs_of, None
    for row in document["refused"]:
        yield row["table"], f"{row['number']:#x}", row["name"], None, row["kind"], ", ".join(row["structs"]), row["why"]


def _tables(node: DriverVersion) -> Policy:
    return Policy.for_driver(node.name, SUPPORTED, allow_unsupported=True)


def _rows(node: DriverVersion, table: Table, caps: Caps | None) -> Iterator[Rule]:
    """The rows that some capability opens; those that nothing opens are `_refused`'s."""
    for rule in _tables(node).rules[table].values():
        if rule.caps and (caps is None or (rule.caps & caps and not rule.rejected)) and not rule.opt_in:
            yield rule


def _refused(node: DriverVersion) -> Iterator[dict[str, Any]]:
    for table in TABLES:
        for rule in _tables(node).rules[table].values():
            if not rule.caps or rule.opt_in:
                yield {
                    "table": table,
                    "number": rule.number,
                    "name": rule.name,
                    "kind": handled(rule, node),
                    "structs": structs(rule, node),
                    "why": rule.why,
                }


def _json(rule: Rule, node: DriverVersion) -> dict[str, Any]:
    return {
        "number": rule.number,
        "name": rule.name,
        "caps": list(rule.caps.names),
        "kind": handled(rule, node),
        "structs": structs(rule, node),
    }


def _lines(rows: Mapping[Table, list[Rule]], refused: list[dict[str, Any]], node: DriverVersion) -> Iterator[str]:
    for table in TABLES:
        for rule in rows[table]:
            caps, kind, of = str(rule.caps), handled(rule, node), ", ".join(structs(rule, node))
            yield f"{table:9}{rule.number:#010x}  {rule.name:62} {caps:34} {kind:18} {of}".rstrip()
    for row in refused:
        yield f"{row['table']:9}{row['number']:#010x}  {row['name']:62} {row['kind']}: {row['why']}"
    counts = ", ".join(f"{len(rows[table])} {table}" for table in TABLES)
    yield f"{node}{'' if node.supported else ' (known, not supported)'}: {counts}"


def _diff(args: argparse.Namespace, base: DriverVersion, to: DriverVersion, caps: Caps | None) -> int:
    findings = [found for table in TABLES for found in compare(table, base, to, caps)]
    compared = {
        table: len({rule.number for node in (base, to) for rule in _rows(node, table, caps)}) for table in TABLES
    }
    if not any(compared.values()):
        fail(f"--caps: {caps} admits nothing in either release: nothing was compared")
    verdict = "different" if findings else "same"
    report = {"schema": DIFF_SCHEMA, "base": base.name, "next": to.name, "verdict": verdict}
    document = {**report, "compared": compared, "findings": findings}
    counts = ", ".join(f"{n} {table}" for table, n in compared.items())
    last = f"{base} to {to}: {verdict}; compared {counts} numbers"
    columns = ("table", "number", "name", "kind", "base", "next")
    cells = (
        (found["table"], f"{found['number']:#x}", found["name"], found["kind"], found["base"], found["next"])
        for found in findings
    )
    emit(args, document, [*map(_diff_line, findings), last], (columns, cells))
    return REFUSED if findings else ADMITTED


def _diff_line(found: Mapping[str, Any]) -> str:
    line = f"{found['table']:9}{found['number']:#010x}  {found['name']:62} {found['kind']}"
    return line if found["kind"].startswith("row-") else f"{line}: {found['base']} -> {found['next']}"


def compare(table: Table, base: DriverVersion, to: DriverVersion, caps: Caps | None) -> Iterator[dict[str, Any]]:
    before = {rule.number: rule for rule in _rows(base, table, caps)}
    after = {rule.number: rule for rule in _rows(to, table, caps)}
    for number in sorted(before.keys() | after.keys()):
        old, new = before.get(number), after.get(number)
        if old is None or new is None:
            there = old or new
            assert there is not None
            yield _finding(table, there, "row-added" if old is None else "row-removed", None, None)
            continue
        for kind, one, other in (
            ("renamed", old.name, new.name),
            ("caps-changed", str(old.caps), str(new.caps)),
            ("handling-changed", handled(old, base), handled(new, to)),
            ("struct-renamed", ", ".join(structs(old, base)), ", ".join(structs(new, to))),
            ("layout-changed", *_layouts(old, base, new, to)),
        ):
            if one != other:
                yield _finding(table, new, kind, one, other)


def _layouts(old: Rule, base: DriverVersion, new: Rule, to: DriverVersion) -> tuple[str, str]:
    """Both sizes, and the leaves that only one of them has; equal texts for equal layouts. Only defined structs have one."""
    one, other = old.params_at(base), new.params_at(to)
    if one is other or one is None or other is None:
        return "", ""
    leaves = [
        {f"{path}@{offset}": None for path, offset, _ in of.walk()} if isinstance(of, CStruct) else {}
        for of in (one, other)
    ]
    texts = []
    for of, mine, theirs in ((one, leaves[0], leaves[1]), (other, leaves[1], leaves[0])):
        own = [leaf for leaf in mine if leaf not in theirs]
        texts.append(f"{of.sizeof()} bytes" + (f": {' '.join(own)}" if own else ""))
    return texts[0], texts[1]


def _finding(table: str, rule: Rule, kind: str, base: Any, to: Any) -> dict[str, Any]:
    return {"table": table, "number": rule.number, "name": rule.name, "kind": kind, "base": base, "next": to}
