"""A release's whole policy as one page for reviewers: rows, fields with their roles, who may call what, on which chips."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from nvproxy_model.fields import CStruct
from nvproxy_model.rules import TABLES, Rule, Table
from nvproxy_model.tools.output import versions
from nvproxy_model.versions import DriverVersion

if TYPE_CHECKING:
    from nvproxy_model.drivers.privileges import Privileges
    from nvproxy_model.drivers.release import Release

__all__ = ["page"]

_HEADS = ("number", "name", "capabilities", "handling", "argument", "who may call it", "chips")


def page(
    node: DriverVersion, rows: Mapping[Table, Sequence[Mapping[str, Any]]], rules: Mapping[Table, Mapping[int, Rule]]
) -> str:
    """The page. ``rows`` are those of the JSON document, a refused one with its ``why``. Raises NvproxyError."""
    from nvproxy_model.drivers import authority, facts
    from nvproxy_model.drivers.render.html import GVISOR, NVIDIA
    from nvproxy_model.drivers.render.page import assembled, made_at

    recorded = facts.load()
    stands = authority.recorded_for(recorded, node)
    release = recorded.release(stands) if stands else None
    privileges = recorded.privileges(stands) if stands else None
    by = versions()
    made = (
        f"Made {made_at()} by nvproxy-model {by['nvproxy_model']} from its tables, which follow gVisor "
        f"{by['gvisor_commit'][:12]}, and the recorded facts of {facts.AS_OF}."
    )
    told = (
        "No recorded release stands for this one: who may call what cannot be told."
        if privileges is None
        else f"Fields, privileges and chips are those of {stands}; an empty cell is what its tables do not say."
    )
    body = "\n".join(
        line for table in TABLES for line in _group(table, rows[table], rules[table], node, release, privileges)
    )
    names = sorted({cap for table in TABLES for row in rows[table] for cap in row.get("caps", ())})
    head = "".join(f'<th scope="col">{name}</th>' for name in _HEADS)
    values = {
        "release": escape(node.name),
        "what": "Every number that nvproxy knows there, with the capabilities that admit it"
        + ("." if node.supported else ". The release is known, and not supported."),
        "made": escape(made),
        "privileges": escape(told),
        "capabilities": "".join(f'<label><input type="checkbox" data-cap="{name}"> {name}</label>' for name in names),
        "rows": f'<div class="rows" tabindex="0" role="region" aria-label="rows"><table class="list policy"><thead><tr>{head}</tr>'
        f"</thead>\n{body}\n</table></div>",
        "links": f'Sources: <a href="{NVIDIA}">NVIDIA\'s open-gpu-kernel-modules</a>, '
        f'<a href="{GVISOR}/tree/{by["gvisor_commit"]}/pkg/sentry/devices/nvproxy">gVisor\'s nvproxy</a>.',
    }
    return assembled("policy.html", ("page.js", "policy.js"), {}, values)


def _group(
    table: Table,
    rows: Sequence[Mapping[str, Any]],
    rules: Mapping[int, Rule],
    node: DriverVersion,
    release: Release | None,
    privileges: Privileges | None,
) -> Iterator[str]:
    head = f'<th class="group" colspan="{len(_HEADS)}" scope="rowgroup">{table}: {len(rows)}</th>'
    yield f'<tbody data-label="{table}"><tr>{head}</tr>'
    for row in rows:
        caps = row.get("caps", ())
        who, chips = _authority(table, row["number"], privileges)
        why = f": {row['why']}" if row.get("why") else ""
        cells = (
            f'<td class="mono nowrap">{row["number"]:#x}</td>',
            f'<th scope="row" class="mono">{_name(row["name"])}</th>',
            f"<td>{escape(', '.join(caps)) or 'none'}</td>",
            f"<td>{escape(row['kind'] + why)}</td>",
            f"<td>{''.join(_fields(name, rules[row['number']], node, release) for name in row['structs'])}</td>",
            f"<td>{escape(who)}</td>",
            f"<td>{escape(chips)}</td>",
        )
        admitting = () if row["kind"] == "reject" else caps
        yield f'<tr data-caps="{escape(" ".join(admitting))}">{"".join(cells)}</tr>'
    yield "</tbody>"


def _name(name: str) -> str:
    """A name that goes on in the next line after an underscore, where it must."""
    return escape(name).replace("_", "_<wbr>")


def _authority(table: Table, number: int, privileges: Privileges | None) -> tuple[str, str]:
    """Who may call it, and on which chips it is, where the driver's tables say so."""
    from nvproxy_model.drivers import authority

    if privileges is None:
        return "", ""
    if table == "control" and number in privileges.exports:
        return authority.WORDS[privileges.exports[number].privilege], ""
    if table == "alloc" and number in privileges.classes:
        entry = privileges.classes[number]
        chips = authority.chips_in_words(entry.chips, privileges.chips)
        return authority.WORDS[entry.privilege], chips or ""
    return "", ""


def _fields(name: str, rule: Rule, node: DriverVersion, release: Release | None) -> str:
    """A struct with its fields: as the release's headers have it, else as this model does; roles are the model's."""
    from nvproxy_model.drivers.compare.findings import entries, typed

    of = rule.params_at(node)
    defined = of if isinstance(of, CStruct) and of.ctype == name else None
    layout = release.structs.get(name) if release is not None else None
    if layout is None and defined is not None:
        layout = defined.layout()
    if layout is None:
        return _name(name)
    roles = (
        {} if defined is None else {path: member.role for path, _, member in defined.walk() if member.role is not None}
    )
    lines = []
    for entry in entries(layout):
        role = roles.get(entry.key) or roles.get(entry.path)
        meaning = f" <b>{escape(type(role).__name__)}</b>" if role is not None else ""
        lines.append(f"<li>{entry.offset} {escape(entry.path)} {escape(typed(entry.field))}{meaning}</li>")
    return (
        f"<details><summary>{_name(name)}, {layout.size} bytes</summary>"
        f'<ul class="mono">{"".join(lines)}</ul></details>'
    )
