"""The heat map and its page, without a browser."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvproxy_model.drivers.render import html
from nvproxy_model.drivers.render.heatmap import ABSENT, build
from nvproxy_model.drivers.render.heatmap import UNCHECKED as NOT_CHECKED
from nvproxy_model.errors import NvproxyError
from nvproxy_model.layout import Field, Layout
from nvproxy_model.tools.driver_differ import main
from tests import ROOT
from tests.drivers import driver_world
from tests.drivers.render.heatmap_samples import HOSTILE, NEW, OLD, PARENTS, UNCHECKED, releases, sample

VOID = {"meta", "input", "col", "br"}


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
    return html.page(sample(), "A sample", UNCHECKED)


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
    first = grid.first_break("S")
    assert first is not None
    assert first.version == "2.0"
    assert {f.class_ for f in first.findings} >= {"pointer-gained", "grew"}
    assert grid.first_break("U") is None


def test_what_a_layout_came_from() -> None:
    grid = sample()
    row = next(row for row in grid.rows if row.name == "S")
    assert [grid.origin(row, run) for run in (0, 2, 3)] == [ABSENT, 0, 1]


def test_a_release_between_two_that_are_not_shown() -> None:
    """2.1 descends from 1.1 through releases that nobody read."""
    read = {version: release for version, release in releases().items() if version in ("1.1", "2.1")}
    grid = build(read, PARENTS.get, ["S"])
    assert [(run.first, run.parent) for run in grid.runs] == [("1.1", None), ("2.1", 0)]


# Side by side.


def test_members_moved_added_and_holes() -> None:
    rows = [(row.mark, row.left and row.left.path, row.right and row.right.path) for row in html.side_by_side(OLD, NEW)]
    assert rows == [
        ("same", "a", "a"),
        ("hole", "hole", "hole"),
        ("added", None, "n"),
        ("moved", "b", "b"),
    ]


def test_one_layout_alone() -> None:
    assert [(row.mark, row.left) for row in html.side_by_side(None, OLD)] == [
        ("same", None),
        ("hole", None),
        ("same", None),
    ]


def test_a_rename_stays_on_one_line() -> None:
    other = Layout("S", "struct", 16, 8, (OLD.fields[0], Field("z", 8, 8, "NvU64", "u64")))
    assert [(r.mark, r.left and r.left.path, r.right and r.right.path) for r in html.side_by_side(OLD, other)][-1] == (
        "renamed",
        "b",
        "z",
    )


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


@given(_layouts, _layouts)
def test_every_byte_of_both_sides_is_shown_once(
    left: list[tuple[str, int, int]], right: list[tuple[str, int, int]]
) -> None:
    old, new = _layout(left), _layout(right)
    rows = html.side_by_side(old, new)
    for layout, sides in (
        (old, [row.left for row in rows if row.left]),
        (new, [row.right for row in rows if row.right]),
    ):
        covered = sorted((side.offset, side.size) for side in sides)
        assert sum(size for _, size in covered) == layout.size
        end = 0
        for offset, size in covered:
            assert offset == end
            end += size
    assert all(row.mark == "same" for row in rows if row.left == row.right and row.left is not None and row.left.type)


# The page.


def test_every_cell_links_to_a_panel(document: Document) -> None:
    ids = {attrs["id"] for _, attrs in document.elements if attrs.get("id")}
    links = [unquote(attrs["href"] or "").removeprefix("#") for attrs in document.find("a")]
    assert links
    assert set(links) <= ids
    assert {"S.a", "S.a-b", "S.b-a", "T.a", "U.a", f"{HOSTILE}.a-b"} <= set(links)


def test_ids_are_unique(document: Document) -> None:
    ids = [attrs["id"] for _, attrs in document.elements if attrs.get("id")]
    assert len(ids) == len(set(ids))


def test_what_is_not_checkable_is_hatched_and_never_a_colour(document: Document) -> None:
    cells = [attrs for attrs in document.find("td") if attrs.get("data-r") == "1"]
    assert len(cells) == 3
    assert all(attrs["class"] == "u" for attrs in cells)
    style = re.sub(r"\s+", " ", html._asset("report.css"))
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
    assert "html.js .panel { display: none; }" in page  # without the class every panel is shown
    assert document.find("section", id="S.a-b")


def test_names_from_other_peoples_trees_are_text(page: str, document: Document) -> None:
    assert HOSTILE not in page
    assert len(document.scripts) == 1
    assert "alert(1)" not in document.scripts[0]
    assert HOSTILE in document.text
    assert [attrs["data-n"] for attrs in document.find("tr", **{"data-n": HOSTILE})]
    assert "49" not in document.text.split("{{7*7}}")[1][:10]


def test_it_needs_nothing_from_outside(page: str, document: Document) -> None:
    policy = document.find("meta", **{"http-equiv": "Content-Security-Policy"})[0]["content"] or ""
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert not re.findall(r"(?:src|href)=\"(?!#)", page)
    assert "url(" not in page
    assert "http" not in re.sub(r"http-equiv", "", page)


def test_a_page_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "MAX_PAGE", 1000)
    with pytest.raises(NvproxyError, match="name fewer structs"):
        html.page(sample(), "A sample", {})


def test_the_picture_is_xml(tmp_path: Path) -> None:
    root = ElementTree.fromstring(html.picture(sample()))
    text = "".join(root.itertext())
    assert "S" in text
    assert HOSTILE[:20] in text
    assert "prefers-color-scheme: dark" in text
    assert [element.get("fill") for element in root.iter() if element.get("fill") == "url(#hatch)"]


# The command.


def test_the_page_of_all_releases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "abi.html"
    assert main(["report", "-o", str(output)]) == 0
    assert "over 207 releases" in capsys.readouterr().out
    text = output.read_text()
    assert len(text.encode()) < 5_000_000
    document = Document(text)
    ids = {attrs["id"] for _, attrs in document.elements if attrs.get("id")}
    assert {unquote(attrs["href"] or "")[1:] for attrs in document.find("a")} <= ids
    row = re.search(r'<tr data-n="NV_CHANNEL_ALLOC_PARAMS".*?</tr>', text[text.index('class="map"') :], re.DOTALL)
    assert row
    letters = "".join(re.findall(r"<a [^>]*>(\w)</a>", row[0]))
    assert text.index("First breaking release") < text.index('class="map"')
    assert re.fullmatch("a+b+a+b+c+d+", letters)  # the layout of 535.43.02 returns at 535.54.03
    assert list(tmp_path.iterdir()) == [output]


def test_the_picture_in_the_docs_is_current(tmp_path: Path) -> None:
    committed = ROOT / "docs" / "release-heat-map.svg"
    output = tmp_path / "map.svg"
    assert main(["report", "-o", str(output)]) == 0
    assert output.read_bytes() == committed.read_bytes(), "nvproxy-differ report -o docs/release-heat-map.svg"


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
    assert 'id="S.a-b"' in output.read_text()
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
