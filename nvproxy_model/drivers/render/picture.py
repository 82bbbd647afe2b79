"""The heat map as a picture."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from nvproxy_model.drivers.render.heatmap import ABSENT, UNCHECKED, HeatMap
from nvproxy_model.drivers.render.html import branches, shade
from nvproxy_model.drivers.render.page import PALETTE, palette

__all__ = ["picture"]

LEFT, TOP, CELL, LINE = 330, 92, 24, 13
NAME = 52
"""Pixels: the names' width, the heads' height, a cell's width and height. Letters of a name before it is cut."""

_STYLE = """text { font: 10px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #1c2330; }
.soft { fill: #5b6575; }
.page { fill: #ffffff; }
SHADES
.n { fill: none; stroke: #d5dbe4; }
.hatch { stroke: #aab3c0; }
.rule { stroke: #aab3c0; }
@media (prefers-color-scheme: dark) {
text { fill: #dfe5ee; }
.soft { fill: #95a1b3; }
.page { fill: #14181f; }
.n { stroke: #303949; }
.hatch { stroke: #56627a; }
.rule { stroke: #56627a; }
}"""


def picture(grid: HeatMap) -> str:
    """The rows that change as an SVG picture without links. It has a ground of its own, and so can be read on any page;
    where a page says its colour scheme, the picture's is that one."""
    return "\n".join(_lines(grid)) + "\n"


def _rect(x: float, y: float, width: int, height: int, kind: str) -> str:
    paint = 'fill="url(#hatch)"' if kind == "hatch" else f'class="{kind}"'
    return f'<rect {paint} x="{x}" y="{y}" width="{width}" height="{height}"/>'


def _text(x: int, y: int, text: str, more: str = "") -> str:
    return f'<text x="{x}" y="{y}"{more}>{escape(text)}</text>'


def _lines(grid: HeatMap) -> Iterator[str]:
    rows = [row for row in grid.rows if row.name in grid.breaks]
    width, height = LEFT + CELL * len(grid.runs) + 12, TOP + LINE * len(rows) + 44
    title = (
        f"{len(rows)} structs of the NVIDIA driver ABI that changed incompatibly, {grid.runs[0].first} to "
        f"{grid.runs[-1].releases[-1]}"
    )
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        'aria-labelledby="title">'
    )
    yield f'<title id="title">{escape(title)}</title>'
    shades = " ".join(f".l{n} {{ fill: var(--l{n}); }}" for n in range(len(PALETTE["light"])))
    yield f"<style>\n{palette()}\n{_STYLE.replace('SHADES', shades)}\n</style>"
    yield (
        '<defs><pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<line class="hatch" x1="0" y1="0" x2="0" y2="5" stroke-width="2.4"/></pattern></defs>'
    )
    yield _rect(0, 0, width, height, "page")
    x = LEFT
    for branch, span in branches(grid):
        yield _text(x + 2, 14, branch)
        yield f'<line class="rule" x1="{x + 1}" y1="19" x2="{x + span * CELL - 2}" y2="19"/>'
        x += span * CELL
    for index, run in enumerate(grid.runs):
        turned = f"translate({LEFT + index * CELL + 15} {TOP - 5}) rotate(-90)"
        yield f'<text class="soft" transform="{turned}">{escape(run.first)}</text>'
    for index, row in enumerate(rows):
        y = TOP + index * LINE
        name = row.name if len(row.name) <= NAME else row.name[: NAME - 1] + "\u2026"
        yield _text(LEFT - 8, y + 9, name, ' text-anchor="end"')
        for column, value in enumerate(row.cells):
            x = LEFT + column * CELL
            if value == ABSENT:
                yield _rect(x + 0.5, y + 0.5, CELL - 2, LINE - 2, "n")
            else:
                yield _rect(x, y, CELL - 1, LINE - 1, "hatch" if value == UNCHECKED else f"l{shade(value)}")
    y = height - 22
    yield _rect(LEFT, y, 16, 12, "l0") + _text(LEFT + 21, y + 10, "first layout")
    yield _rect(LEFT + 110, y, 16, 12, "l1") + _rect(LEFT + 128, y, 16, 12, "l2")
    yield _text(LEFT + 149, y + 10, "later layouts")
    yield _rect(LEFT + 245.5, y + 0.5, 15, 11, "n") + _text(LEFT + 266, y + 10, "no such struct")
    yield _rect(LEFT + 370, y, 16, 12, "hatch") + _text(LEFT + 391, y + 10, "not checkable: no public source")
    yield "</svg>"
