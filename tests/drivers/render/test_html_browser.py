"""The report in a real browser."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvproxy_model.drivers.render import html
from nvproxy_model.tools.driver_differ import main
from tests.drivers.render.browser import CHROMIUM, BrowserGone, Page, browser
from tests.drivers.render.heatmap_samples import HOSTILE, UNCHECKED, sample


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
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "small.html"
    path.write_text(html.page(sample(), "A sample", UNCHECKED), "utf-8")
    return path


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("full") / "full.html"
    assert main(["report", "-o", str(path)]) == 0
    return path


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
PANELS = "Array.from(document.querySelectorAll('.panel')).filter((p) => p.offsetParent !== null).map((p) => p.id)"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_is_drawn(tab: Page, full: Path, tmp_path: Path, scheme: str) -> None:
    tab.scheme(scheme)
    tab.open(full)
    tab.shows(OVERFLOW, False)
    assert tab.value(f"({SHOWN}).length") > 50
    assert len(tab.screenshot(tmp_path / "page.png")) > 50_000
    luminance = (
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0)"
    )
    assert (tab.value(luminance) > 600) is (scheme == "light")


def test_text_can_be_read_on_every_colour(tab: Page, full: Path) -> None:
    """The letters in the cells against their grounds: WCAG's 4.5 to 1 for small text, in light and in dark."""
    contrast = """(() => {
      const channel = (v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
      const light = (c) => { const [r, g, b] = c.match(/[\\d.]+/g).map(Number);
        return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b); };
      const worst = {};
      for (const link of document.querySelectorAll('.map td a')) {
        const cell = link.parentElement, a = light(getComputedStyle(link).color), b = light(getComputedStyle(cell).backgroundColor);
        worst[cell.className] = Math.round(100 * (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)) / 100;
      }
      return worst;
    })()"""
    for scheme in ("light", "dark"):
        tab.scheme(scheme)
        tab.open(full)
        ratios = tab.value(contrast)
        assert len(ratios) >= 5
        assert {name: ratio for name, ratio in ratios.items() if ratio < 4.5} == {}, scheme


def test_the_filter(tab: Page, full: Path) -> None:
    tab.open(full)
    everything = tab.value(SHOWN)
    tab.type("#filter", "uvm migrate")
    tab.shows(SHOWN, [name for name in everything if "UVM" in name and "MIGRATE" in name])
    assert "UVM_MIGRATE_PARAMS" in tab.value(SHOWN)
    tab.value("document.querySelector('#filter').select()")
    tab.type("#filter", "no such struct")
    tab.shows(SHOWN, [])
    tab.shows("document.querySelector('#count').textContent", "0 structs shown")
    tab.value(
        "document.querySelector('#filter').value = ''; document.querySelector('#filter').dispatchEvent(new Event('input'))"
    )
    tab.shows(SHOWN, everything)


def test_a_click_shows_both_layouts(tab: Page, small: Path) -> None:
    tab.open(small)
    tab.shows(PANELS, [])
    tab.click('tr[data-n="S"] td[data-r="2"] a')
    tab.shows("location.hash", "#S.a-b")
    tab.shows(PANELS, ["S.a-b"])
    tab.shows("document.querySelectorAll('td.at').length", 1)
    marks = "Array.from(document.querySelectorAll('[id=\"S.a-b\"] tbody tr')).map((r) => r.className)"
    tab.shows(marks, ["same", "hole", "added", "moved"])
    tab.shows(OVERFLOW, False)
    tab.click('tr[data-n="S"] td[data-r="3"] a')
    tab.shows(PANELS, ["S.b-a"])


def test_a_link_from_elsewhere_opens_its_layouts(tab: Page, small: Path) -> None:
    tab.open(small, fragment="#S.b-a")
    tab.shows(PANELS, ["S.b-a"])


def test_a_run_opens_and_closes(tab: Page, full: Path) -> None:
    tab.open(full)
    columns = "document.querySelectorAll('.map thead .run').length"
    cells = "document.querySelector('.map tbody tr[data-n]').querySelectorAll('td').length"
    before = tab.value(columns)
    tab.shows(cells, before)
    head = "th[data-run] button"
    count = tab.value(f"document.querySelector('{head}').closest('th').dataset.releases.split(' ').length")
    tab.click(head)
    tab.shows(columns, before + count - 1)
    tab.shows(cells, before + count - 1)
    tab.shows(f"document.querySelector('{head}').getAttribute('aria-expanded')", "true")
    tab.shows(OVERFLOW, False)
    for index in range(1, 8):  # far more columns than fit: the map scrolls in its box
        tab.value(f"document.querySelectorAll('{head}')[{index}].click()")
    assert (
        tab.value("(() => { const b = document.querySelector('.scroll'); return b.scrollWidth > b.clientWidth; })()")
        is True
    )
    tab.shows(OVERFLOW, False)
    for index in range(8):
        tab.value(f"document.querySelectorAll('{head}')[{index}].click()")
    tab.shows(columns, before)
    tab.shows(cells, before)


def test_the_status_line_says_what_is_under_the_mouse(tab: Page, small: Path) -> None:
    tab.open(small)
    tab.value(
        "document.querySelector('tr[data-n=\"S\"] td[data-r=\"2\"]').dispatchEvent(new MouseEvent('mouseover', {bubbles: true}))"
    )
    tab.shows("document.querySelector('#status').textContent", "S  2.0 to 2.1, 2 releases: layout b, 24 bytes")
    tab.value(
        "document.querySelector('tr[data-n=\"S\"] td[data-r=\"1\"]').dispatchEvent(new MouseEvent('mouseover', {bubbles: true}))"
    )
    tab.shows("document.querySelector('#status').textContent", "S  1.3: not checkable: no public source")


def test_hostile_names_do_nothing(tab: Page, small: Path) -> None:
    tab.open(small)
    assert HOSTILE in tab.value(SHOWN)
    tab.shows("document.scripts.length", 1)
    tab.click(f"tr[data-n={json.dumps(HOSTILE)}] td a")
    assert len(tab.value(PANELS)) == 1


def test_without_scripts(tab: Page, small: Path) -> None:
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        tab.open(small)
        assert len(tab.value(PANELS)) >= 5
        tab.shows("document.querySelector('#filter').offsetParent === null", True)
        tab.shows(OVERFLOW, False)
    finally:
        tab.call("Emulation.setScriptExecutionDisabled", value=False)
