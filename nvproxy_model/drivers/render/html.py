"""The heat map as one self-contained page, or as a picture."""

from __future__ import annotations

import base64
import difflib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from nvproxy_model.drivers.compare.findings import CLASSES, Entry, Finding, compare_layouts, entries
from nvproxy_model.drivers.render.heatmap import ABSENT, UNCHECKED, Change, HeatMap, Row
from nvproxy_model.errors import NvproxyError
from nvproxy_model.layout import Layout

__all__ = ["MAX_PAGE", "Side", "SideRow", "holes", "page", "picture", "side_by_side"]

MAX_PAGE = 5 * 1000 * 1000
"""Bytes; a page over this is refused, for nobody's browser or mail takes it."""
MAX_MEMBERS = 400

PALETTE = {
    "light": (
        "#dfe5ee",
        "#f5a742",
        "#6fb1f0",
        "#d88ad0",
        "#f2dc57",
        "#7fd0d6",
        "#ee7e6c",
        "#9d94ec",
        "#c9a27a",
        "#f4b3c2",
    ),
    "dark": (
        "#333d4d",
        "#9c5e0c",
        "#2a6cae",
        "#964690",
        "#7a6a10",
        "#1f6b71",
        "#b04433",
        "#6055be",
        "#80592f",
        "#a0506a",
    ),
}
"""The first layout's colour, then those of later ones in turn: no green, which would look like a verdict."""


@dataclass(frozen=True, slots=True)
class Side:
    """One layout's half of a line: a member, or a hole when ``type`` is empty."""

    offset: int
    size: int
    type: str
    path: str


@dataclass(frozen=True, slots=True)
class SideRow:
    """A line of two layouts side by side. ``mark`` is same, moved, resized, retyped, renamed, added, removed or hole."""

    mark: str
    left: Side | None
    right: Side | None


def holes(layout: Layout, base: int = 0) -> Iterator[tuple[int, int]]:
    """Offset and size of the bytes that belong to no member, those of nested structs included, unions' excluded."""
    if layout.kind == "union":
        return
    end = 0
    for field in layout.fields:
        if field.offset > end:
            yield base + end, field.offset - end
        if field.record is not None and not field.dims:
            yield from holes(field.record, base + field.offset)
        end = max(end, field.offset + field.size)
    if layout.size > end:
        yield base + end, layout.size - end


_Matched = tuple[str, Side, Entry | None]
"""A line of one side, with the key by which it finds its other half; holes have no entry."""


def _lines(layout: Layout) -> list[_Matched]:
    """Members in the order of declaration, and holes where they are."""
    lines: list[_Matched] = []
    gaps = list(enumerate(holes(layout)))
    for entry in entries(layout):
        while gaps and not entry.in_union and gaps[0][1][0] < entry.offset:
            lines.append(_hole(*gaps.pop(0)))
        lines.append((entry.key, Side(entry.offset, entry.field.size, _type(entry), entry.path), entry))
    return lines + [_hole(*gap) for gap in gaps]


def _hole(number: int, place: tuple[int, int]) -> _Matched:
    return f"<hole {number}>", Side(*place, "", "hole"), None


def _type(entry: Entry) -> str:
    return entry.field.type + "".join(f"[{length}]" for length in entry.field.dims)


def side_by_side(left: Layout | None, right: Layout) -> list[SideRow]:
    """Two layouts of one struct, member by member; only the right one where there is no left one."""
    new = _lines(right)
    if left is None:
        return [SideRow("same" if entry else "hole", None, side) for _, side, entry in new]
    old = _lines(left)
    rows: list[SideRow] = []
    matcher = difflib.SequenceMatcher(None, [line[0] for line in old], [line[0] for line in new], autojunk=False)
    keys_old, keys_new = {line[0] for line in old}, {line[0] for line in new}
    for operation, a, b, c, d in matcher.get_opcodes():
        if operation == "equal":
            rows += [_paired(one, other) for one, other in zip(old[a:b], new[c:d], strict=True)]
            continue
        renamed = _renamed(old[a:b], new[c:d])
        for line in old[a:b]:
            if line[0] in renamed:
                rows.append(SideRow("renamed", line[1], renamed[line[0]]))
            else:
                rows.append(SideRow(_lone(line, line[0] in keys_new, "removed"), line[1], None))
        for line in new[c:d]:
            if line[1] not in renamed.values():
                rows.append(SideRow(_lone(line, line[0] in keys_old, "added"), None, line[1]))
    return rows


def _renamed(old: Sequence[_Matched], new: Sequence[_Matched]) -> dict[str, Side]:
    """Members of the same place, size and type under two names."""
    places = {(side.offset, side.size, side.type): side for _, side, entry in new if entry is not None}
    return {
        key: places[side.offset, side.size, side.type]
        for key, side, entry in old
        if entry is not None and (side.offset, side.size, side.type) in places
    }


def _lone(line: _Matched, elsewhere: bool, mark: str) -> str:
    return "hole" if line[2] is None else "moved" if elsewhere else mark


def _paired(one: _Matched, other: _Matched) -> SideRow:
    left, right = one[1], other[1]
    if one[2] is None or other[2] is None:
        return SideRow("hole", left, right)
    a, b = one[2].field, other[2].field
    if left.size != right.size:
        mark = "resized"
    elif a.base != b.base or a.dims != b.dims:
        mark = "retyped"
    else:
        mark = "same" if left.offset == right.offset else "moved"
    return SideRow(mark, left, right)


def letter(index: int) -> str:
    """a .. z, then a1 .. z1 and so on: the identity of a layout within its row."""
    return chr(ord("a") + index % 26) + (str(index // 26) if index >= 26 else "")


@dataclass(frozen=True, slots=True)
class Panel:
    """A section of the page: one layout, or two side by side; cells link to it by ``id``."""

    id: str
    name: str
    before: Layout | None
    after: Layout
    label: str
    when: str
    rows: tuple[SideRow, ...]
    findings: tuple[Finding, ...]
    cut: int


def _panels(grid: HeatMap, row: Row) -> tuple[dict[int, str], list[Panel]]:
    """Run -> the panel that its cell links to, and the panels in order."""
    links: dict[int, str] = {}
    panels: dict[str, Panel] = {}
    for index, cell in enumerate(row.cells):
        if cell < 0:
            continue
        origin = grid.origin(row, index)
        before = row.layouts[origin] if origin >= 0 else None
        label = letter(cell) if before is None else f"{letter(origin)}-{letter(cell)}"
        identity = f"{row.name}.{label}"
        links[index] = identity
        if identity not in panels:
            after = row.layouts[cell]
            lines = side_by_side(before, after)
            changed = compare_layouts(row.name, before, after, spelling=False) if before is not None else []
            panels[identity] = Panel(
                identity,
                row.name,
                before,
                after,
                label,
                grid.runs[index].first,
                tuple(lines[:MAX_MEMBERS]),
                tuple(changed),
                max(0, len(lines) - MAX_MEMBERS),
            )
    return links, list(panels.values())


_Line = tuple[Row, dict[int, str], list[Panel]]


def _palette() -> str:
    """The colours as custom properties of the root, for light and dark surroundings."""
    light, dark = ("".join(f"--l{n}: {colour}; " for n, colour in enumerate(PALETTE[scheme])) for scheme in PALETTE)
    return f":root {{ {light}}}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("nvproxy_model.drivers.render", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["letter"] = letter
    return environment


def _asset(name: str) -> str:
    return Path(__file__).with_name(name).read_text("utf-8")


def _hash(text: str) -> str:
    """A content security policy's name for an inline script or style: no other one runs on the page."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _branches(grid: HeatMap) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for run in grid.runs:
        if found and found[-1][0] == run.branch:
            found[-1] = (run.branch, found[-1][1] + 1)
        else:
            found.append((run.branch, 1))
    return found


def _gravest(findings: Sequence[Finding]) -> Finding:
    order = list(CLASSES)
    return min(findings, key=lambda finding: order.index(finding.class_))


def page(grid: HeatMap, compared: str, unchecked: Mapping[str, str | None]) -> str:
    """The report. ``compared`` says in a phrase what the facts are from. Raises NvproxyError for one over MAX_PAGE."""
    script, style = _asset("report.js"), _palette() + "\n" + _asset("report.css")
    changing: list[_Line] = []
    constant: list[_Line] = []
    breaks: list[tuple[Row, Change, Finding, str]] = []
    lines = 0
    for row in grid.rows:
        links, panels = _panels(grid, row)
        lines += sum(len(panel.rows) for panel in panels)
        if lines * _SHORTEST > MAX_PAGE:
            raise _too_large(f"over {MAX_PAGE / 1e6:.0f} MB")
        (changing if row.changes else constant).append((row, links, panels))
        first = grid.first_break(row.name)
        if first is not None:
            breaks.append((row, first, _gravest(first.findings), links.get(first.run, "")))
    groups = [
        ("several layouts", [item for item in changing if len(item[0].layouts) > 1]),
        ("one layout, which came or went", [item for item in changing if len(item[0].layouts) == 1]),
    ]
    text = (
        _environment()
        .get_template("report.html.jinja")
        .render(
            grid=grid,
            compared=compared,
            changing=changing,
            groups=groups,
            constant=constant,
            breaks=breaks,
            branches=_branches(grid),
            unchecked=unchecked,
            classes=CLASSES,
            releases=sum(len(run.releases) for run in grid.runs if run.checked),
            findings=[(change, finding) for change in grid.changes for finding in change.findings],
            script=script,
            style=style,
            script_hash=_hash(script),
            style_hash=_hash(style),
            ABSENT=ABSENT,
            UNCHECKED=UNCHECKED,
            SHADES=len(PALETTE["light"]),
        )
    )
    if len(text.encode()) > MAX_PAGE:
        raise _too_large(f"{len(text.encode()) / 1e6:.1f} MB")
    return text


_SHORTEST = 80
"""Bytes of the shortest line of a panel."""


def _too_large(size: str) -> NvproxyError:
    return NvproxyError(
        f"the page would have {size}, and more than {MAX_PAGE / 1e6:.0f} MB is too much: name fewer structs"
    )


def picture(grid: HeatMap) -> str:
    """The rows that change as an SVG picture without text links, for light and dark surroundings."""
    rows = [row for row in grid.rows if row.changes and grid.first_break(row.name) is not None]
    return (
        _environment()
        .get_template("heat-map.svg.jinja")
        .render(
            grid=grid,
            rows=rows,
            branches=_branches(grid),
            palette=_palette(),
            ABSENT=ABSENT,
            UNCHECKED=UNCHECKED,
            SHADES=len(PALETTE["light"]),
        )
    )
