"""The report in a real browser."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvproxy_model.drivers import facts
from nvproxy_model.drivers.compare import model
from nvproxy_model.drivers.compare.carriers import fd_paths
from nvproxy_model.drivers.compare.findings import compare_releases
from nvproxy_model.drivers.render import html
from nvproxy_model.tools import policy
from nvproxy_model.tools.driver_differ import main
from tests.drivers.render.browser import CHROMIUM, BrowserGone, Page, browser
from tests.drivers.render.heatmap_samples import HOSTILE, ORIGIN, UNCHECKED, sample

AXE = os.environ.get("NVPROXY_AXE")
"""The path of axe-core's axe.min.js."""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if CHROMIUM is None:
        pytest.skip("SKIPPED, NOT TESTED: the report in a browser; no chromium on this machine")
    with contextlib.ExitStack() as stack:
        try:
            page = stack.enter_context(browser(CHROMIUM, tmp_path_factory.mktemp("profile")))
        except BrowserGone as gone:
            pytest.skip(f"SKIPPED, NOT TESTED: the report in a browser; {CHROMIUM} does not start: {gone}")
        yield page


@pytest.fixture(scope="module")
def small_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "small.html"
    path.write_text(html.page(sample(), ORIGIN, UNCHECKED), "utf-8")
    return path


@pytest.fixture
def small(tab: Page, small_page: Path) -> Page:
    tab.open(small_page)
    return tab


@pytest.fixture(scope="module")
def full_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("full") / "full.html"
    assert main(["report", "-o", str(path)]) == 0
    return path


@pytest.fixture
def full(tab: Page, full_page: Path) -> Page:
    """The page of all releases, which a browser takes a while to load: only where another one was open."""
    tab.scheme("light")
    tab.wide(1280)
    if tab.path != full_page:
        tab.open(full_page)
    tab.value(
        "set({q: '', at: '', a: '', b: '', only: ''}), filter.value = '', document.activeElement.blur(), scrollTo(0, 0)"
    )
    return tab


@pytest.fixture(autouse=True)
def _no_problems(tab: Page) -> Iterator[None]:
    tab.problems.clear()
    yield
    assert tab.problems == []


OVERFLOW = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
SHOWN = (
    "Array.from(document.querySelectorAll('.map tbody tr[data-n]'))"
    ".filter((r) => r.offsetParent !== null).map((r) => r.dataset.n)"
)
GROUPS = "all('.map .group').filter((g) => g.offsetParent !== null).map((g) => g.textContent)"
LINES = "all('#layouts tbody tr').map((r) => [r.className, ...all('.p', r).map((c) => c.textContent)])"
HERE = "[document.activeElement.parentElement.dataset.n || '', document.activeElement.cellIndex]"


def search(page: Page, text: str) -> None:
    page.value("filter.focus(), filter.select()")
    page.type("#filter", text) if text else page.value("filter.value = '', filter.dispatchEvent(new Event('input'))")


def test_it_fits_and_is_drawn_light_and_dark_wide_and_narrow(full: Page, tmp_path: Path) -> None:
    """Nothing overlaps, the page does not scroll sideways, and the letters in the cells keep WCAG's 4.5 to 1."""
    overlaps = """(() => {
      const boxes = all('h1, h2, main p, dl.sums > div, .bar label, #count, .box, .scroll, #layouts .wide, .classes li, summary')
        .filter((e) => e.offsetParent !== null && !e.closest('.bar .pair > label > *'));
      const found = [];
      boxes.forEach((a, n) => boxes.slice(n + 1).forEach((b) => {
        if (a.contains(b) || b.contains(a) || getComputedStyle(a.closest('.bar') || a).position === 'sticky'
          || a.closest('.box, .wide') || b.closest('.box .box')) return;
        const [r, s] = [a.getBoundingClientRect(), b.getBoundingClientRect()];
        const width = Math.min(r.right, s.right) - Math.max(r.left, s.left);
        const height = Math.min(r.bottom, s.bottom) - Math.max(r.top, s.top);
        if (width > 1 && height > 1) found.push([a.textContent.slice(0, 40), b.textContent.slice(0, 40)]);
      }));
      return found;
    })()"""
    contrast = """(() => {
      const channel = (v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
      const light = (c) => { const [r, g, b] = c.match(/[\\d.]+/g).map(Number);
        return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b); };
      const worst = {};
      for (const cell of all('.map td:not(:empty)')) {
        if (cell.className in worst) continue;
        const style = getComputedStyle(cell), a = light(style.color), b = light(style.backgroundColor);
        worst[cell.className] = Math.round(100 * (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)) / 100;
      }
      return worst;
    })()"""
    luminance = (
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0)"
    )
    full.value("set({at: 'NV_CHANNEL_ALLOC_PARAMS.a-b', a: '535.43.02', b: '580.65.06'})")
    for width in (1280, 400):
        full.wide(width)
        for scheme in ("light", "dark"):
            full.scheme(scheme)
            full.shows(OVERFLOW, False)
            assert (full.value(luminance) > 600) is (scheme == "light")
            ratios = full.value(contrast)
            assert len(ratios) >= 5
            assert {name: ratio for name, ratio in ratios.items() if ratio < 4.5} == {}, scheme
        assert full.value(overlaps) == [], width
        assert len(full.screenshot(tmp_path / "page.png")) > 30_000
    # Narrow, the rows of lists are cards, and the map scrolls in its box under names that stay.
    assert full.value("getComputedStyle(one('table.breaks td')).display") == "block"
    assert full.value("one('.scroll').scrollWidth > one('.scroll').clientWidth")
    assert full.value("(one('.scroll').scrollLeft = 300, one('.map th[scope=row]').getBoundingClientRect().left >= 0)")


def test_a_search_finds_names_fields_calls_classes_and_releases(full: Page) -> None:
    everything = full.value(SHOWN)
    assert len(everything) > 50
    cases: dict[str, set[str]] = {
        "uvm migrate": {"UVM_MIGRATE_PARAMS"},
        "hhandlelist.nothing": set(),
        "pageSize NV00FD": {"NV00FD_ALLOCATION_PARAMETERS"},  # a field
        "0x2080123d": set(),
        "0xc9b70101": set(),
        "NV_ESC_RM_ALLOC": {"NVOS64_PARAMETERS"},  # a call's name
        "0x2b NVOS64": {"NVOS64_PARAMETERS"},  # its number
        "pointer-gained": {"NV0000_CTRL_SYSTEM_GET_P2P_CAPS_PARAMS"},  # a class
        "525.53 NVOS64": {"NVOS64_PARAMETERS"},  # a release
        "no such struct": set(),
    }
    for text, wanted in cases.items():
        search(full, text)
        found = set(full.value(SHOWN))
        assert wanted <= found, text
        assert len(found) < len(everything), text
        assert full.value("new URLSearchParams(location.hash.slice(1)).get('q')") == text
    search(full, "545.29.06")  # a release that changed nothing in a struct is none of the beginnings of a run
    assert full.value(SHOWN) == []
    search(full, "uvm")
    found = full.value(SHOWN)
    groups = full.value(GROUPS)
    assert all(" of " in group for group in groups)
    assert sum(int(group.split(": ")[1].split(" ")[0]) for group in groups) == len(found)
    assert full.value("one('table.findings').closest('details').firstChild.textContent").split(" of ")[0].isdigit()
    full.key("Escape")
    full.shows(SHOWN, everything)


def test_a_number_is_found_in_every_spelling(full: Page) -> None:
    name, number = full.value(
        "(() => { const s = [...structs.values()].find((s) => s.cells.length && s.calls.some(([t]) => t === 'control'));"
        " return [s.name, s.calls.find(([t]) => t === 'control')[1]]; })()"
    )
    for text in (number, str(int(number, 16)), number.replace("0x", "0x00"), number.upper().replace("X", "x")):
        search(full, text)
        assert name in full.value("[...structs.values()].filter((s) => matches(words(), s)).map((s) => s.name)"), text


def test_a_class_of_the_legend_is_searched_for_by_a_click(full: Page) -> None:
    full.click("[data-class='moved-same-size']")
    full.shows("filter.value", "moved-same-size")
    listed = "[...new Set(listed.filter(({row}) => !row.hidden && row.closest('.findings')).map((l) => l.class))]"
    full.shows(listed, ["moved-same-size"])
    full.click("[data-class='moved-same-size']")
    full.shows("state.q || ''", "")


PAIRS = [
    ("515.43.04", "610.57.04"),
    ("610.57.04", "515.43.04"),
    ("535.43.02", "535.54.03"),
    ("570.195.03", "570.211.01"),
    ("550.40.07", "580.65.06"),
    ("590.48.01", "595.80"),
]


@pytest.mark.parametrize(("base", "to"), PAIRS)
def test_two_releases_compare_as_diff_says(full: Page, base: str, to: str) -> None:
    wanted = model.names()
    recorded = facts.load()
    said = compare_releases(recorded.release(base), recorded.release(to), wanted.structs, wanted.constants, fd_paths())
    expected: set[tuple[str, str, str]] = set()
    for finding in said.findings:
        if finding.kind in ("struct-added", "struct-removed"):
            # Of a struct that goes as another comes with its layout, the page says just that.
            detail = finding.detail.partition(",")[0]
            expected.add((finding.kind.removeprefix("struct-"), finding.name, detail))
        elif finding.class_ != "cosmetic" and not finding.kind.startswith("constant-"):
            expected.add((finding.class_, finding.name, finding.detail))
    shown = full.value(f"differences({base!r}, {to!r}).map((f) => [f.class, f.name, f.detail, f.struct])")
    assert {tuple(found[:3]) for found in shown if found[3]} == expected
    numbers = {finding.name for finding in said.findings if finding.kind.startswith("constant-")}
    assert {found[1] for found in shown if not found[3]} == numbers


def test_compare_and_what_breaks_are_in_the_address(full: Page) -> None:
    full.value("location.hash = '#a=580.105.08&b=590.44.01'")
    full.shows("one('#comparison h2').firstChild.textContent", "From 580.105.08 to 590.44.01: breaking ")
    assert full.value("[one('#a').value, one('#b').value]") == ["580.105.08", "590.44.01"]
    lines = "all('#comparison tbody tr').map((r) => r.cells[1].textContent)"
    assert "added" in full.value(lines)
    full.click("#only")
    full.shows(f"{lines}.includes('added')", False)
    assert full.value("location.hash") == "#a=580.105.08&b=590.44.01&only=breaks"
    assert full.value("all('#comparison a[href^=http]').map((a) => a.href)") == [
        f"{html.NVIDIA}/tree/{tag}/src/common/sdk/nvidia/inc" for tag in ("580.105.08", "590.44.01")
    ]
    full.value("location.hash = '#a=580.105.08&b=580.167.08'")
    full.shows("one('#comparison p').textContent", "580.167.08: not checkable, for no public source exists.")
    full.value("location.hash = '#a=580.105.08&b=1.2.3'")
    full.shows("one('#comparison p').textContent", "1.2.3: not a release of this page.")


def test_every_member_of_both_sides_is_shown_once(full: Page) -> None:
    """Of every two layouts of every struct; marks agree with what stands on the line."""
    wrong = full.value("""(() => {
      const wrong = [], text = (m) => JSON.stringify([m.offset, m.size, m.type, m.path]);
      let pairs = 0;
      for (const struct of structs.values()) struct.layouts.forEach((left, a) => struct.layouts.forEach((right, b) => {
        if (a === b) return;
        pairs += 1;
        const lines = sides(left, right);
        for (const [side, layout] of [[1, left], [2, right]]) {
          const mine = lines.map((line) => line[side]).filter(Boolean).map(text), all = keyed(layout).map(text);
          if (mine.slice().sort().join() !== all.slice().sort().join()) wrong.push([struct.name, a, b, side]);
        }
        for (const [mark, one, other] of lines) {
          const equal = Boolean(one && other && one.path) && text(one) === text(other);
          if ((mark === "same") !== equal) wrong.push([struct.name, a, b, mark]);
          if ((mark === "added" && one) || (mark === "removed" && other)) wrong.push([struct.name, a, b, mark]);
        }
        if (lines.every(([mark]) => mark === "same" || mark === "hole") && left.size === right.size && left.kind === right.kind)
          wrong.push([struct.name, a, b, "nothing marked"]);
      }));
      return [pairs, wrong];
    })()""")
    assert wrong[0] > 400
    assert wrong[1] == []


def test_a_click_shows_both_layouts(small: Page) -> None:
    assert small.value("one('#layouts').hidden")
    small.click('.map tr[data-n="S"] td:nth-of-type(3)')
    small.shows("location.hash", "#at=S.a-b")
    small.shows(LINES, [["same", "a", "a"], ["hole", "hole", "hole"], ["added", "", "n"], ["moved", "b", "b"]])
    assert small.value("document.querySelectorAll('td.at').length") == 1
    small.shows(OVERFLOW, False)
    # The layouts stand above the map, and both are in sight.
    assert small.value("one('#layouts').getBoundingClientRect().bottom <= one('.map').getBoundingClientRect().top")
    small.click('.map tr[data-n="S"] td:nth-of-type(4)')
    small.shows("location.hash", "#at=S.b-a")
    small.value("history.back()")
    small.shows("location.hash", "#at=S.a-b")
    small.shows("one('#layouts h3').firstChild.textContent", "S: 16 bytes (a), then 24 (b) ")
    small.click("#layouts .close")
    small.shows("one('#layouts').hidden", True)


def test_a_link_from_elsewhere_opens_its_layouts(tab: Page, small_page: Path) -> None:
    tab.open(small_page, fragment="#q=s&at=S.b-a")
    tab.shows("one('#layouts h3').firstChild.textContent", "S: 24 bytes (b), then 16 (a) ")
    assert tab.value("filter.value") == "s"
    assert tab.value("one('#layouts').textContent.includes('control 0x123 NV_CTRL_S')")
    for nonsense in ("#at=S.z", "#at=NOT.a", "#at=S", "#at=.", "#at=S.a-b-a", "#a=1", "#=", "#%"):
        tab.value(f"location.hash = {nonsense!r}")
        tab.shows("one('#layouts').hidden", True)


@pytest.mark.slow
def test_a_run_opens_and_closes(full: Page) -> None:
    columns, cells = "heads.cells.length", "rows[0].cells.length"
    before = full.value(columns)
    assert full.value(cells) == before
    count = full.value("runs[0].releases.length")
    full.click("th.run[aria-expanded]")
    full.shows(columns, before + count - 1)
    full.shows(cells, before + count - 1)
    full.shows("one('th.run').getAttribute('aria-expanded')", "true")
    full.value("all('th.run[aria-expanded=false]').slice(0, 5).forEach(toggle)")  # far more columns than fit
    assert full.value("one('.scroll').scrollWidth > one('.scroll').clientWidth")
    full.shows(OVERFLOW, False)
    assert full.value("describe(rows[0].cells[3])").split("  ")[1].startswith(full.value("runs[0].releases[2]"))
    full.value("all('th.run[aria-expanded=true]').forEach(toggle)")
    full.shows(columns, before)
    full.shows(cells, before)


def test_the_map_is_one_tab_stop_in_which_the_arrows_move(small: Page) -> None:
    assert small.value("all('.map [tabindex=\"0\"]').length") == 1
    small.value("one('table.breaks').closest('.box').focus()")
    links = small.value("all('table.breaks a').length")
    for _ in range(links + 1):
        small.key("Tab")
    small.shows(HERE, [small.value("rows[0].dataset.n"), 1])
    small.key("ArrowRight")
    small.key("ArrowRight")
    small.shows("document.activeElement.cellIndex", 3)
    assert small.value("all('.map [tabindex=\"0\"]').length") == 1
    small.key("End")
    small.shows("document.activeElement.cellIndex", 4)
    small.key("Home")
    small.key("ArrowUp")
    small.key("ArrowUp")
    small.shows("document.activeElement === heads.cells[0]", True)
    small.key("ArrowDown")
    small.key("ArrowRight")
    name = small.value("rows[0].dataset.n")
    small.shows(HERE, [name, 1])
    assert "1.0 to 1.2, 3 releases: layout a, " in small.value("document.activeElement.getAttribute('aria-label')")
    small.key("Enter")
    small.shows("one('#layouts').hidden", False)
    small.key("Escape")
    small.shows("one('#layouts').hidden", True)
    small.shows(HERE, [name, 1])
    small.key("/")
    small.shows("document.activeElement.id", "filter")
    small.type("#filter", "u")
    small.shows(SHOWN, ["U"])
    assert small.value("one('.map [tabindex=\"0\"]').parentElement.dataset.n") == "U"
    small.key("Escape")
    small.shows("filter.value", "")
    small.value("one('.skip').focus()")
    small.key("Enter")
    small.shows("document.activeElement.id", "map")


def test_the_status_line_says_what_is_under_the_mouse(small: Page) -> None:
    over = "dispatchEvent(new MouseEvent('mouseover', {bubbles: true}))"
    small.value(f"one('.map tr[data-n=\"S\"]').cells[3].{over}")
    small.shows("one('#status').textContent", "S  2.0 to 2.1, 2 releases: layout b, 24 bytes")
    small.value(f"one('.map tr[data-n=\"S\"]').cells[2].{over}")
    small.shows("one('#status').textContent", "S  1.3: not checkable: no public source")


def test_hostile_names_do_nothing(small: Page) -> None:
    assert HOSTILE in small.value(SHOWN)
    small.click(f".map tr[data-n={json.dumps(HOSTILE)}] td:nth-of-type(1)")
    small.shows("one('#layouts').hidden", False)
    small.value("set({a: '1.0', b: '2.2'})")
    assert HOSTILE in small.value("one('#comparison').textContent")
    assert HOSTILE in small.value("one('#layouts').textContent")
    small.shows("document.scripts.length", 2)


def test_without_scripts(tab: Page, small_page: Path) -> None:
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        tab.open(small_page)
        for selector in ("#filter", "#layouts", "#comparison"):
            tab.shows(f"document.querySelector('{selector}').offsetParent === null", True)
        tab.shows("document.querySelector('noscript').offsetParent !== null", True)
        tab.shows(OVERFLOW, False)
    finally:
        tab.call("Emulation.setScriptExecutionDisabled", value=False)


@pytest.mark.slow
def test_the_policy_page(tab: Page, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert policy.main(["table", "580.126.20", "--format", "html"]) == 0
    path = tmp_path / "policy.html"
    path.write_text(capsys.readouterr().out, "utf-8")
    tab.open(path, fragment="#q=event&caps=profiling")
    shown = "groups.flatMap((g) => g.rows).filter(({row}) => row.offsetParent !== null).map(({row}) => row.cells[0].textContent)"
    found = tab.value(shown)
    assert "0x90cd0101" in found  # NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS
    assert tab.value("one('#count').textContent").startswith(f"{len(found)} of ")
    assert tab.value("one('[data-cap=profiling]').checked")
    tab.click("[data-cap=profiling]")
    tab.shows("location.hash", "#q=event")
    assert len(tab.value(shown)) > len(found)
    search(tab, str(0x90CD0101))
    tab.shows(shown, ["0x90cd0101"])
    tab.key("Escape")
    tab.shows("one('#count').textContent.split(' of ')[0] === one('#count').textContent.split(' ')[2]", True)
    for width in (1280, 400):
        tab.wide(width)
        for scheme in ("light", "dark"):
            tab.scheme(scheme)
            tab.shows(OVERFLOW, False)
    if AXE is not None:
        assert serious(tab) == []
    tab.scheme("light")


def serious(page: Page) -> list[object]:
    """What axe-core finds of the page as it is, but for the lesser."""
    assert AXE is not None
    page.call("Runtime.evaluate", expression=Path(AXE).read_text("utf-8"))
    found = page.value(
        "axe.run(document).then((r) => r.violations.map((v) => [v.impact, v.id, v.nodes.map((n) => n.html).slice(0, 3)]))"
    )
    return [each for each in found if each[0] in ("serious", "critical")]


@pytest.mark.skipif(AXE is None, reason="NVPROXY_AXE does not name axe-core's axe.min.js")
@pytest.mark.parametrize("width", [1280, 400])
def test_axe_finds_nothing_serious(small: Page, width: int) -> None:
    small.wide(width)
    small.value("set({at: 'S.a-b', a: '1.0', b: '2.0'})")
    assert serious(small) == []
