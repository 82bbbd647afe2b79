"""The heat map as one self-contained page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from nvproxy_model.drivers.compare.findings import ADDITIVE, CLASSES, COSMETIC, Class, Entry, Finding, entries
from nvproxy_model.drivers.render.heatmap import ABSENT, UNCHECKED, Change, HeatMap, Row
from nvproxy_model.drivers.render.page import MAX_PAGE, PALETTE, assembled, made_at, table, too_large
from nvproxy_model.layout import Layout

__all__ = ["Origin", "branches", "holes", "letter", "page", "shade"]

NVIDIA = "https://github.com/NVIDIA/open-gpu-kernel-modules"
GVISOR = "https://github.com/google/gvisor"


@dataclass(frozen=True)
class Origin:
    """Where the page's facts are from. ``what`` is a phrase; ``maker`` names the program and its version.

    ``refs``: release -> its tag or commit in NVIDIA's repository, where it is known. ``gvisor`` is the commit of gVisor that
    is followed. ``uses``: struct -> (table, number, name) of the calls whose argument it is.
    """

    what: str
    maker: str
    facts: str
    gvisor: str
    refs: Mapping[str, str] = field(default_factory=dict)
    uses: Mapping[str, Sequence[tuple[str, int, str]]] = field(default_factory=dict)


def holes(layout: Layout, base: int = 0) -> Iterator[tuple[int, int]]:
    """Offset and size of the bytes that belong to no member, those of nested structs included, unions' excluded."""
    if layout.kind == "union":
        return
    end = 0
    for member in layout.fields:
        if member.offset > end:
            yield base + end, member.offset - end
        if member.record is not None and not member.dims:
            yield from holes(member.record, base + member.offset)
        end = max(end, member.offset + member.size)
    if layout.size > end:
        yield base + end, layout.size - end


def _members(layout: Layout) -> list[Sequence[int | str]]:
    """Members in the order of declaration, (offset, size, type, path[, key]), and holes where they are, (offset, size).

    The key, by which a member finds its other half in another layout, is there where it is not the path.
    """
    found: list[Sequence[int | str]] = []
    gaps = list(holes(layout))
    for entry in entries(layout):
        while gaps and not entry.in_union and gaps[0][0] < entry.offset:
            found.append(gaps.pop(0))
        key = () if entry.key == entry.path else (entry.key,)
        found.append((entry.offset, entry.field.size, _type(entry), entry.path, *key))
    return [*found, *gaps]


def _type(entry: Entry) -> str:
    return entry.field.type + "".join(f"[{length}]" for length in entry.field.dims)


def letter(index: int) -> str:
    """a .. z, then a1 .. z1 and so on: the identity of a layout within its row."""
    return chr(ord("a") + index % 26) + (str(index // 26) if index >= 26 else "")


def shade(index: int) -> int:
    """The colour of a layout: the first one's own, then the others in turn."""
    return 0 if index == 0 else (index - 1) % (len(PALETTE["light"]) - 1) + 1


def branches(grid: HeatMap) -> list[tuple[str, int]]:
    """The first numbers over the columns, and how many columns each is over."""
    found: list[tuple[str, int]] = []
    for run in grid.runs:
        if found and found[-1][0] == run.branch:
            found[-1] = (run.branch, found[-1][1] + 1)
        else:
            found.append((run.branch, 1))
    return found


def page(grid: HeatMap, origin: Origin, unchecked: Mapping[str, str | None]) -> str:
    """The report. Raises NvproxyError for one over MAX_PAGE."""
    changing = [row for row in grid.rows if row.changes]
    constant = [row for row in grid.rows if not row.changes]
    releases = sum(len(run.releases) for run in grid.runs if run.checked)
    verdict = "breaking" if grid.breaks else "additive" if changing else "no change"
    sentences = [f"{len(constant)} are identical wherever they were checked."]
    if grid.breaks:
        sentences.insert(
            0,
            f"{len(grid.breaks)} of {len(grid.rows)} structs have a change that breaks code built for an older layout;",
        )
    if unchecked:
        sentences.append(f"Not checkable, for no public source exists: {', '.join(unchecked)}.")
    made = f"Made {made_at()} by {origin.maker} from {origin.facts}."
    links = (
        f"Sources: <a href=\"{NVIDIA}\">NVIDIA's open-gpu-kernel-modules</a>; gVisor's nvproxy at "
        f'<a href="{GVISOR}/tree/{escape(origin.gvisor)}/pkg/sentry/devices/nvproxy">{escape(origin.gvisor[:12])}</a>.'
    )
    values = {
        "what": escape(origin.what),
        "made": escape(made),
        "links": links,
        "first": escape(grid.runs[0].first),
        "last": escape(grid.runs[-1].releases[-1]),
        "structs": len(grid.rows),
        "constants": len(grid.numbers.names),
        "releases": releases,
        "unchecked": len(unchecked),
        "breaking": len(grid.breaks),
        "never": len(constant),
        "verdict": verdict,
        "verdict_text": escape(" ".join(sentences)),
        "options": "".join(f'<option value="{escape(v)}">' for run in grid.runs for v in run.releases),
        "breaks": _breaks(grid),
        "map": _map(grid, changing) if changing else "<p>None.</p>",
        "classes": "\n".join(_classes(grid)),
        "findings": _findings(grid),
        "constant": _constant(constant),
        "runs": len(grid.runs),
        "columns": table("columns", ("from", "descends from", "releases"), _columns(grid)),
    }
    return assembled("report.html", ("page.js", "layouts.js", "report.js"), _facts(grid, origin), values)


def _facts(grid: HeatMap, origin: Origin) -> dict[str, Any]:
    """What the page's script works on: columns, layouts, what differs between any two, and the numbers that change."""
    structs = []
    size = 0
    for row in grid.rows:
        layouts = [(layout.size, layout.kind, _members(layout)) for layout in row.layouts]
        size += sum(len(members) for _, _, members in layouts) * _SHORTEST
        if size > MAX_PAGE:
            raise too_large(f"over {MAX_PAGE / 1e6:.0f} MB")
        some = range(len(layouts))
        between = {f"{a}-{b}": _brief(grid.between(row, a, b)) for a in some for b in some if a != b}
        calls = [(where, f"{number:#x}", name) for where, number, name in origin.uses.get(row.name, ())]
        structs.append((row.name, layouts, row.cells if row.changes else row.cells[:0], between, calls))
    moving = [n for n, values in enumerate(zip(*grid.numbers.values, strict=True)) if len(set(values)) > 1]
    return {
        "runs": [(run.releases, run.checked, -1 if run.parent is None else run.parent) for run in grid.runs],
        "structs": structs,
        "numbers": {
            "names": [grid.numbers.names[n] for n in moving],
            "values": [[values[n] for n in moving] for values in grid.numbers.values],
            "states": grid.numbers.states,
        },
        "classes": CLASSES,
        "additive": sorted(ADDITIVE | COSMETIC),
        "refs": origin.refs,
        "nvidia": NVIDIA,
        "gvisor": f"{GVISOR}/tree/{origin.gvisor}/pkg/sentry/devices/nvproxy",
    }


_SHORTEST = 20
"""Bytes of the shortest member of a layout in the page."""


def _brief(findings: Sequence[Finding]) -> list[tuple[str, str, str]]:
    return [(finding.class_, finding.name.partition(".")[2], finding.detail) for finding in findings]


def _address(grid: HeatMap, row: Row, run: int) -> str:
    """What the page's address says where a cell is opened: the layout, beside the one that it came from."""
    cell, origin = row.cells[run], grid.origin(row, run)
    return f"{row.name}.{letter(cell)}" if origin == ABSENT else f"{row.name}.{letter(origin)}-{letter(cell)}"


def _class(name: Class) -> str:
    return f'<td class="nowrap" title="{escape(CLASSES[name])}">{name}</td>'


def _breaks(grid: HeatMap) -> str:
    if not grid.breaks:
        return "<p>No struct breaks.</p>"
    order = list(CLASSES)
    rows = []
    for row in grid.rows:
        change = grid.breaks.get(row.name)
        if change is None:
            continue
        finding = min(change.findings, key=lambda finding: order.index(finding.class_))
        at = escape(change.version)
        if row.cells[change.run] >= 0:
            at = f'<a href="#at={escape(_quoted(_address(grid, row, change.run)))}">{at}</a>'
        path = finding.name[len(row.name) + 1 :]
        what = f'<span class="mono">{escape(path)}</span>: {escape(finding.detail)}' if path else escape(finding.detail)
        name = escape(row.name)
        rows.append(
            f'<tr data-n="{name}"><td>{name}</td><td class="nowrap mono">{at}</td><td class="num">{len(row.layouts)}</td>'
            f"{_class(finding.class_)}<td>{what}</td></tr>"
        )
    listed = table("breaks", ("struct", "first at", "layouts", "class", "what"), rows)
    return f'<div class="box" tabindex="0" role="region" aria-label="first breaking releases">{listed}</div>'


def _quoted(text: str) -> str:
    from urllib.parse import quote

    return quote(text, safe="")


def _map(grid: HeatMap, changing: Sequence[Row]) -> str:
    heads = "".join(
        f'<th class="branch" id="branch-{n}" colspan="{span}" scope="colgroup">{escape(branch)}</th>'
        for n, (branch, span) in enumerate(branches(grid))
    )
    places = [n for n, (_, span) in enumerate(branches(grid)) for _ in range(span)]
    runs = "".join(
        f'<th class="run" scope="col" data-run="{index}" data-branch="branch-{places[index]}"'
        + (f' aria-expanded="false" title="{escape(", ".join(run.releases))}"' if len(run.releases) > 1 else "")
        + f"><span>{escape(run.first)}{f' +{len(run.releases) - 1}' if len(run.releases) > 1 else ''}</span></th>"
        for index, run in enumerate(grid.runs)
    )
    groups = {
        "several layouts": [row for row in changing if len(row.layouts) > 1],
        "one layout, which came or went": [row for row in changing if len(row.layouts) == 1],
    }
    cells = {
        UNCHECKED: '<td class="u" aria-label="not checkable"></td>',
        ABSENT: '<td class="n" aria-label="no such struct"></td>',
    } | {
        index: f'<td class="l{shade(index)}">{letter(index)}</td>'
        for index in range(max(len(row.layouts) for row in changing))
    }
    parts = [
        f'<div class="scroll"><table class="map" aria-label="layouts of {len(changing)} structs over {len(grid.runs)} runs of '
        f'releases"><colgroup><col class="name"><col span="{len(grid.runs)}"></colgroup>\n<thead>\n'
        f'<tr><th scope="col"><span class="unseen">branch</span></th>{heads}</tr>\n'
        f'<tr><th scope="col"><span class="unseen">struct</span></th>{runs}</tr>\n</thead>'
    ]
    for label, rows in groups.items():
        if not rows:
            continue
        parts.append(
            f'<tbody data-label="{label}">\n<tr><th class="group" colspan="{len(grid.runs) + 1}" scope="rowgroup">'
            f"{label}: {len(rows)}</th></tr>"
        )
        for row in rows:
            name = escape(row.name)
            parts.append(
                f'<tr data-n="{name}"><th scope="row" title="{name}">{name}</th>'
                + "".join([cells[cell] for cell in row.cells])
                + "</tr>"
            )
        parts.append("</tbody>")
    parts.append("</table></div>")
    return "\n".join(parts)


def _all(grid: HeatMap) -> Iterator[tuple[Change, Finding]]:
    return ((change, finding) for change in grid.changes for finding in change.findings)


def _classes(grid: HeatMap) -> Iterator[str]:
    counts: dict[str, int] = dict.fromkeys(CLASSES, 0)
    for _, finding in _all(grid):
        counts[finding.class_] += 1
    for name, what in CLASSES.items():
        verdict = "cosmetic" if name in COSMETIC else "additive" if name in ADDITIVE else "breaking"
        yield (
            f'<li class="{verdict}"><button type="button" data-class="{name}" aria-pressed="false">{name}</button> '
            f'<span class="soft">{verdict}, found {counts[name]} time{"s" * (counts[name] != 1)}:</span> {escape(what)}</li>'
        )


def _findings(grid: HeatMap) -> str:
    rows = [
        f'<tr data-n="{escape(finding.name)}"><td>{escape(finding.name)}</td><td class="nowrap mono">{escape(change.version)}'
        f"</td>{_class(finding.class_)}<td>{escape(finding.detail)}</td></tr>"
        for change, finding in _all(grid)
    ]
    summary = f"{len(rows)} findings, in order of releases"
    return _folded(summary, table("findings", ("name", "at", "class", "what"), rows), len(rows) <= 40)


def _folded(summary: str, text: str, is_open: bool) -> str:
    return f"<details{' open' if is_open else ''}><summary>{escape(summary)}</summary>\n{text}\n</details>"


def _constant(constant: Sequence[Row]) -> str:
    rows = [
        f'<tr data-n="{escape(row.name)}"><td><a href="#at={escape(_quoted(row.name))}.a">{escape(row.name)}</a></td>'
        f'<td class="num">{row.layouts[0].size}</td><td class="num">{len(row.layouts[0].fields)}</td></tr>'
        for row in constant
    ]
    summary = f"{len(constant)} structs, identical at every release that was checked"
    return _folded(summary, table("constant", ("struct", "bytes", "members"), rows), False)


def _columns(grid: HeatMap) -> Iterator[str]:
    for run in grid.runs:
        above = "" if run.parent is None else escape(grid.runs[run.parent].first)
        note = "" if run.checked else " (not checkable: no public source)"
        yield (
            f'<tr><td class="nowrap">{escape(run.first)}</td><td class="nowrap mono">{above}</td>'
            f"<td>{escape(', '.join(run.releases))}{note}</td></tr>"
        )
