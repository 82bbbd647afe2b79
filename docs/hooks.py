"""What the documentation site has beside the pages of docs/: the repository's files that pages link to, the schemas, and the
README's table of roles.

A link such as ``../examples/run.py`` leads out of docs/. On the site it leads to a page that shows the file.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parent.parent
SCHEMAS = sorted([*ROOT.glob("nvproxy_model/schemas/*.json"), *ROOT.glob("cuinterpose/schemas/*.json")])
LINK = re.compile(r"(?<=\]\()(\.\./[^)#\s]+)")
LANGUAGES = {".py": "python", ".c": "c", ".h": "c", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".sh": "sh"}
ROLES = "<!-- the table of roles in README.md -->"
EACH_SCHEMA = "<!-- all files of nvproxy_model/schemas and cuinterpose/schemas -->"


def _linked(page: str, target: str) -> Path | None:
    """The file of the repository that a link of a page leads to, if it is none of docs/. Raises ValueError outside it."""
    path = Path(posixpath.normpath(ROOT / "docs" / posixpath.dirname(page) / target))
    inside = path.relative_to(ROOT)
    return None if inside.parts[:1] == ("docs",) or not path.is_file() else inside


def _shown(path: Path) -> str:
    """The file of the site that shows a file of the repository: a schema is served as it is."""
    if path.parent.name == "schemas":
        return f"schemas/{path.name}"
    return f"files/{path}" if path.suffix == ".md" else f"files/{path}.md"


def _page(path: Path) -> str:
    text = (ROOT / path).read_text("utf-8")
    if path.suffix == ".md":
        return text
    return f"# {path}\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{text}````\n"


def _roles() -> str:
    """The rows of the README that begin with the header of its table of roles, with links as docs/ has them."""
    _, _, rest = (ROOT / "README.md").read_text("utf-8").partition("\n| you are |")
    table = ("| you are |" + rest).partition("\n\n")[0]
    return table.replace("](docs/", "](")


def _schemas() -> str:
    rows = []
    for path in SCHEMAS:
        schema = json.loads(path.read_text("utf-8"))
        name = schema["$id"].rpartition(":")[2]
        rows.append(f"| [`{name}`](schemas/{path.name}) | {schema['title']} |")
    return "\n".join(["| schema | what it is |", "| --- | --- |", *rows])


def on_files(files: Files, config: Any) -> Files:
    """Adds the linked files of the repository as pages, and the schemas as they are."""
    linked = {
        path
        for page in list(files.documentation_pages())
        for target in LINK.findall(page.content_string)
        if (path := _linked(page.src_uri, target)) is not None and path.parent.name != "schemas"
    }
    for path in sorted(linked):
        files.append(File.generated(config, _shown(path), content=_page(path), inclusion=InclusionLevel.NOT_IN_NAV))
    for path in SCHEMAS:
        files.append(File.generated(config, f"schemas/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The tables are filled in; links to files of the repository lead to what shows them, and a shown file has none."""
    source = page.file.src_uri
    markdown = markdown.replace(ROLES, _roles()).replace(EACH_SCHEMA, _schemas())
    if source.startswith("files/"):
        return re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?:)[^)]*\)", r"\1", markdown)

    def led(match: re.Match[str]) -> str:
        path = _linked(source, match[1])
        return match[1] if path is None else posixpath.relpath(_shown(path), posixpath.dirname(source) or ".")

    return LINK.sub(led, markdown)


def on_post_page(output: str, **_: Any) -> str:
    """The theme gives the dialog of its search no name, which a screen reader says."""
    return output.replace('role="dialog">', 'role="dialog" aria-label="Search">')
