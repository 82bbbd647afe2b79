"""The documentation site as `mkdocs build` left it in ``site/``: it needs no network and no server, and its search works."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import pytest

from tests import ROOT
from tests.drivers.render.browser import CHROMIUM, browser
from tests.test_reference import MODULES, public

SITE = ROOT / "site"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (SITE / "index.html").is_file(), reason="pip install '.[docs]' && mkdocs build --strict makes the site"
    ),
]


def test_nothing_is_loaded_from_elsewhere() -> None:
    for path in SITE.rglob("*.html"):
        loaded = re.findall(r"<(?:script|link|img|iframe)[^>]*?(?:src|href)=\"?(\w+:)?//[^\">]*", path.read_text())
        assert loaded == [], path.name


def test_every_public_name_has_a_place() -> None:
    *_, body = (SITE / "objects.inv").read_bytes().split(b"\n", 4)
    places = {line.split()[0] for line in zlib.decompress(body).decode().splitlines()}
    for module in MODULES:
        assert module in places
        assert [name for name in public(module) if f"{module}.{name}" not in places] == [], module


def test_every_schema_is_there_and_listed() -> None:
    listed = (SITE / "schemas.html").read_text()
    for path in ROOT.glob("*/schemas/*.json"):
        assert f'href="schemas/{path.name}"' in listed
        assert (SITE / "schemas" / path.name).read_bytes() == path.read_bytes()


def test_the_search_finds_from_a_folder(tmp_path: Path) -> None:
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine")
    with browser(CHROMIUM, tmp_path) as page:
        page.open(SITE / "index.html")
        page.type(".md-search__input", "hardened")
        page.value("document.querySelector('.md-search__input').dispatchEvent(new Event('keyup', {bubbles: true}))")
        page.shows("!!document.querySelector('.md-search-result__link[href*=\"hardened.html\"]')", True)
        assert page.problems == []
