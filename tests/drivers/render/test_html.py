"""The heat map and its page, without a browser."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvproxy_model.drivers.render import html
from nvproxy_model.drivers.render import page as page_module
from nvproxy_model.drivers.render.heatmap import ABSENT, build
from nvproxy_model.drivers.render.heatmap import UNCHECKED as NOT_CHECKED
from nvproxy_model.drivers.render.page import asset
from nvproxy_model.drivers.render.picture import picture
from nvproxy_model.errors import NvproxyError
from nvproxy_model.layout import Field, Layout
from nvproxy_model.tools.driver_differ import main
from tests import ROOT
from tests.drivers import driver_world
from tests.drivers.render.heatmap_samples import HOSTILE, ORIGIN, PARENTS, UNCHECKED, releases, sample

VOID = {"meta", "input", "col", "br", "option"}


class Document(HTMLParser):
    """Elements with their attributes and text, and a check that tags nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            self.scripts.append(data)
        else:
            self.text += data

    def find(self, tag: str, **wanted: str) -> list[dict[str, str | None]]:
        return [
            attrs for name, attrs in self.elements if name == tag and all(attrs.get(k) == v for k, v in wanted.items())
        ]


@pytest.fixture(scope="module")
def page() -> str:
    return html.page(sample(), ORIGIN, UNCHECKED)


@pytest.fixture(scope="module")
def document(page: str) -> Document:
    return Document(page)


# The grid.


def test_runs_follow_the_tree_and_the_layouts() -> None:
    grid = sample()
    assert [(run.releases, run.parent, run.checked) for run in grid.runs] == [
        (("1.0", "1.1", "1.2"), None, True),
        (("1.3",), 0, False),
        (("2.0", "2.1"), 0, True),
        (("2.2",), 2, True),
    ]


def test_a_colour_is_a_layout() -> None:
    rows = {row.name: row for row in sample().rows}
    assert set(rows) == {"S", "T", "U", HOSTILE}
    assert rows["S"].cells == (0, NOT_CHECKED, 1, 0)  # it returns
    assert rows["T"].cells == (0, NOT_CHECKED, 0, 0)
    assert rows["U"].cells == (ABSENT, NOT_CHECKED, 0, 0)
    assert [rows[name].changes for name in ("S", "T", "U")] == [True, False, True]


def test_a_spelling_is_no_change() -> None:
    grid = sample()
    assert len(next(row for row in grid.rows if row.name == "S").layouts) == 2
    assert not [change for change in grid.changes if change.version == "1.1"]


def test_changes_and_the_first_break() -> None:
    grid = sample()
    assert [(c.version, c.name, c.before, c.after, c.breaking) for c in grid.changes if c.name in ("S", "U", "")] == [
        ("2.0", "S", 0, 1, True),
        ("2.0", "U", ABSENT, 0, False),
        ("2.2", "S", 1, 0, True),
        ("2.2", "", ABSENT, ABSENT, True),
    ]
    first = grid.breaks["S"]
    assert first.version == "2.0"
    assert {f.class_ for f in first.findings} >= {"pointer-gained", "grew"}
    assert "U" not in grid.breaks


def test_what_a_layout_came_from() -> None:
    grid = sample()
    row = next(row for row in grid.rows if row.name == "S")
    assert [grid.origin(row, run) for run in (0, 2, 3)] == [ABSENT, 0, 1]


def test_a_release_between_two_that_are_not_shown() -> None:
    """2.1 descends from 1.1 through releases that nobody read."""
    read = {version: release for version, release in releases().items() if version in ("1.1", "2.1")}
    grid = build(read, PARENTS.get, ["S"])
    assert [(run.first, run.parent) for run in grid.runs] == [("1.1", None), ("2.1", 0)]


# Layouts, as the page's script gets them.


_layouts = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.sampled_from([1, 2, 4, 8]), st.integers(0, 3)),
    min_size=1,
    max_size=6,
    unique_by=lambda m: m[0],
)


def _layout(members: list[tuple[str, int, int]]) -> Layout:
    offset, fields = 0, []
    for name, size, gap in members:
        offset = -(-(offset + gap) // size) * size
        fields.append(Field(name, offset, size, f"NvU{8 * size}", f"u{8 * size}"))
        offset += size
    return Layout("S", "struct", -(-offset // 8) * 8, 8, tuple(fields))


@given(_layouts)
def test_every_byte_of_a_layout_is_told_once(members: list[tuple[str, int, int]]) -> None:
    layout = _layout(members)
    end = 0
    for offset, size, *_ in html._members(layout):
        assert offset == end
        end = int(offset) + int(size)
    assert end == layout.size


# The page.


def facts_of(document: Document) -> dict[str, Any]:
    text = next(text for text in document.scripts if text.startswith("{"))
    facts: dict[str, Any] = json.loads(text)
    return facts


def test_every_link_opens_a_layout_that_is_there(document: Document) -> None:
    layouts = {name: len(layouts) for name, layouts, *_ in facts_of(document)["structs"]}
    assert layouts == {"S": 2, "T": 1, "U": 1, HOSTILE: 2}
    opened = [
        unquote(attrs["href"] or "").removeprefix("#at=")
        for attrs in document.find("a")
        if (attrs["href"] or "").startswith("#at=")
    ]
    assert sorted(opened) == sorted(["S.a-b", f"{HOSTILE}.a-b", "T.a"])
    others = {attrs["href"] for attrs in document.find("a")} - {f"#at={quote(name, safe='')}" for name in opened}
    ids = {attrs["id"] for _, attrs in document.elements if attrs.get("id")}
    assert {link[1:] for link in others if link and link.startswith("#") and "=" not in link} <= ids


def test_the_facts_hold_what_differs_between_any_two_layouts(document: Document) -> None:
    between = {name: between for name, _, _, between, _ in facts_of(document)["structs"]}["S"]
    assert set(between) == {"0-1", "1-0"}
    assert ["pointer-gained", "n", "NvP64 of 8 bytes at offset 8"] in between["0-1"]
    assert ["pointer-lost", "n", "NvP64 of 8 bytes at offset 8"] in between["1-0"]


def test_when_by_what_and_from_what_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    page = html.page(sample(), ORIGIN, UNCHECKED)
    assert f"Made 2023-11-14 22:13 UTC by a test from facts of {HOSTILE}." in Document(page).text
    assert page == html.page(sample(), ORIGIN, UNCHECKED)
    for wrong in ("yesterday", "", "9" * 30):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", wrong)
        with pytest.raises(NvproxyError, match=r"SOURCE_DATE_EPOCH: .* is not a number of seconds since 1970"):
            html.page(sample(), ORIGIN, UNCHECKED)


def test_ids_are_unique(document: Document) -> None:
    ids = [attrs["id"] for _, attrs in document.elements if attrs.get("id")]
    assert len(ids) == len(set(ids))


def test_what_is_not_checkable_is_hatched_and_never_a_colour(document: Document) -> None:
    cells = document.find("td", **{"class": "u"})
    assert [attrs["aria-label"] for attrs in cells] == ["not checkable"] * 3
    style = re.sub(r"\s+", " ", asset("page.css"))
    assert re.search(r"\.u \{ background: repeating-linear-gradient", style)


def test_it_reads_without_scripts(page: str, document: Document) -> None:
    """All facts are in the text; what only a script can do is hidden without one."""
    for words in (
        "2.0",
        "1.0, 1.1, 1.2",
        "2.0, 2.1",
        "1.3 (not checkable: no public source)",
        "pointer-gained",
        "Verdict: breaking.",
    ):
        assert words in document.text
    assert "html:not(.js) .needs-js { display: none; }" in page
    assert "The search, the comparison of two releases and the layouts need scripts" in document.text


def test_names_from_other_peoples_trees_are_text(page: str, document: Document) -> None:
    assert HOSTILE not in page
    assert len(document.find("script")) == 2
    assert "</" not in next(text for text in document.scripts if text.startswith("{"))
    assert HOSTILE in document.text
    assert [attrs["data-n"] for attrs in document.find("tr", **{"data-n": HOSTILE})]
    assert "49" not in document.text.split("{{7*7}}")[1][:10]


def test_it_needs_nothing_from_outside(page: str, document: Document) -> None:
    policy = document.find("meta", **{"http-equiv": "Content-Security-Policy"})[0]["content"] or ""
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert not re.findall(r"src=|<link|<img|@import|url\(", page)
    links = {attrs["href"] or "" for attrs in document.find("a")}
    assert {link.partition("#")[0] for link in links} - {""} == {
        "https://github.com/NVIDIA/open-gpu-kernel-modules",
        "https://github.com/google/gvisor/tree/0123456789abcdef/pkg/sentry/devices/nvproxy",
    }


def test_a_page_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "MAX_PAGE", 1000)
    with pytest.raises(NvproxyError, match="name fewer structs"):
        html.page(sample(), ORIGIN, {})


def test_the_picture_is_xml(tmp_path: Path) -> None:
    root = ElementTree.fromstring(picture(sample()))
    text = "".join(root.itertext())
    assert "S" in text
    assert HOSTILE[:20] in text
    assert "prefers-color-scheme: dark" in text
    assert [element.get("fill") for element in root.iter() if element.get("fill") == "url(#hatch)"]


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.svg")), ids=lambda path: path.name)
def test_a_picture_has_a_ground_of_its_own(path: Path) -> None:
    """A page that is light where the system is dark shows its letters all the same: what is drawn first covers all of it."""
    root = ElementTree.parse(path).getroot()
    drawn = next(element for element in root if element.tag.endswith(("rect", "}g", "text", "path")))
    assert drawn.get("class") == "page"
    assert [drawn.get("width"), drawn.get("height")] == (root.get("viewBox") or "").split()[2:]
    style = "".join(element.text or "" for element in root if element.tag.endswith("style"))
    assert len(re.findall(r"\.page \{ fill: #\w{6}", style)) == 2  # light, and dark


# The command.


def test_the_page_of_all_releases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "abi.html"
    assert main(["report", "-o", str(output)]) == 0
    assert "over 207 releases" in capsys.readouterr().out
    text = output.read_text()
    assert len(text.encode()) < 1_300_000
    document = Document(text)
    assert "by nvproxy-model" in document.text
    refs = facts_of(document)["refs"]
    assert (refs["580.65.06"], refs["610.57.04"][:12]) == ("580.65.06", "e4a5faa2567f")
    row = re.search(r'<tr data-n="NV_CHANNEL_ALLOC_PARAMS".*?</tr>', text[text.index('class="map"') :], re.DOTALL)
    assert row
    letters = "".join(re.findall(r"<td class=\"l\d\">(\w)</td>", row[0]))
    assert text.index("First breaking release") < text.index('class="map"')
    assert re.fullmatch("a+b+a+b+c+d+", letters)  # the layout of 535.43.02 returns at 535.54.03
    assert list(tmp_path.iterdir()) == [output]


def test_the_picture_in_the_docs_is_current(tmp_path: Path) -> None:
    committed = ROOT / "docs" / "release-heat-map.svg"
    output = tmp_path / "map.svg"
    assert main(["report", "-o", str(output)]) == 0
    assert output.read_bytes() == committed.read_bytes(), "nvproxy-differ report -o docs/release-heat-map.svg"


def test_made_again_it_is_the_same_byte_for_byte(tmp_path: Path) -> None:
    """In processes whose sets have other orders, too."""
    for seed in ("0", "2"):
        command = [sys.executable, "-m", "nvproxy_model.tools.driver_differ", "report", "NVOS64_PARAMETERS"]
        environment = {**os.environ, "PYTHONHASHSEED": seed, "SOURCE_DATE_EPOCH": "1700000000"}
        subprocess.run([*command, "-o", tmp_path / f"{seed}.html"], env=environment, cwd=ROOT, check=True, capture_output=True)
    assert (tmp_path / "0.html").read_bytes() == (tmp_path / "2.html").read_bytes()


def test_a_few_structs_over_some_releases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "few.html"
    some = ["--since", "535.43.02", "--branch", "545", "--branch", "550"]
    assert main(["report", "-o", str(output), "UVM_MIGRATE_*", "NVOS64_PARAMETERS", *some]) == 0
    text = output.read_text()
    assert 'data-n="UVM_MIGRATE_PARAMS"' in text
    assert "515.43.04" not in text
    assert main(["report", "-o", str(output), "NVOS64_PARAMETERS", "--branch", "570"]) == 0
    assert "0 structs change" in capsys.readouterr().out


def test_sources_of_ones_own_without_ancestry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder of trees: what nobody recorded is taken in the order of names, so that a change is a change."""
    bodies = {"1.9": "NvU32 a;", "1.10": "NvU32 a; NvU32 b;", "2.0": "NvU32 a; NvU32 b;"}
    for version, body in bodies.items():
        driver_world.write(tmp_path / "trees" / version, driver_world.tree(f"typedef struct {{ {body} }} S;", version))
    output = tmp_path / "s.html"
    assert main(["report", "-o", str(output), "--source", str(tmp_path / "trees"), "S"]) == 0
    assert "1 structs change, 1 of them break" in capsys.readouterr().out
    assert "#at=S.a-b" in output.read_text()
    assert "1.10, 2.0" in output.read_text()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["-o", "x.pdf"], "x.pdf: -o wants a name that ends in .html or .svg"),
        (["-o", "/nonexistent/x.html"], "/nonexistent/x.html: No such file or directory"),
        (["-o", "{tmp}/x.html", "NVOS64_PARAMETER"], "did you mean NVOS64_PARAMETERS?"),
        (["-o", "{tmp}/x.html", "NO_SUCH_*"], "NO_SUCH_*: none of the releases has such a struct"),
        (["-o", "{tmp}/x.html", "NV2080*"], "name fewer structs"),
    ],
)
def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["report", *(argument.format(tmp=tmp_path) for argument in arguments)])
    assert ended.value.code == 2
    captured = capsys.readouterr()
    assert complaint in captured.err
    assert captured.err.count("\n") == 1
    assert not list(tmp_path.iterdir())
