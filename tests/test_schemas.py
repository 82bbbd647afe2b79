"""One schema file for each name that a command puts on a document, whole, described and in the wheel's folder."""

from __future__ import annotations

import gzip
import json
import re

import jsonschema
import pytest

from nvproxy_model.drivers.compare.findings import CLASSES, KINDS
from nvproxy_model.drivers.compare.scope import SCOPES
from nvproxy_model.tools import pages
from nvproxy_model.tools.command import programs
from tests import ROOT, TRACES
from tests.schemas import FILES, load, objects, validate

NAME = re.compile(
    r'"((?:nvproxy-(?:differ|policy|trace)/[a-z-]+|nvproxy-trace|nvproxy-model/[a-z]+|cuinterpose\.[a-z]+)/\d+)"'
)
NO_DOCUMENTS = {
    "nvproxy-trace/0": "what a reader calls a trace without a header",
    "nvproxy-model/facts/3": "the recorded facts, which nvproxy_model.drivers.facts alone reads and writes",
    "nvproxy-model/independent/1": "a file of the package",
    "cuinterpose.process/1": "what a process tells a coordinator of the same version",
}
"""Names of what no command prints."""


def _named() -> set[str]:
    """Every name that stands in the code as a string of its own."""
    files = (path for folder in ("nvproxy_model", "cuinterpose", "tools") for path in (ROOT / folder).rglob("*.py"))
    return {name for path in files for name in NAME.findall(path.read_text())}


def test_every_name_has_a_file_and_every_file_a_name() -> None:
    declared = {name for program in programs() for command in program.commands for name in command.schemas}
    named = _named()
    assert declared <= named
    assert named - set(NO_DOCUMENTS) == set(FILES)
    assert set(NO_DOCUMENTS) <= named
    written = {"nvproxy-trace/1"} | {name for name in FILES if name.startswith("cuinterpose.")}
    assert set(FILES) - written == declared


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_described_to_its_last_property(name: str) -> None:
    schema = load(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"] == f"urn:nvproxy-model:schema:{name}"
    assert schema["title"]
    assert FILES[name].name == f"{name.replace('/', '.')}.json"
    each = [(f"{path}/{key}", value) for path, of in objects(schema) for key, value in of["properties"].items()]
    bare = [path for path, value in each if not value.get("description")]
    assert bare == []
    lost = [f"{path}/{key}" for path, of in objects(schema) for key in of["required"] if key not in of["properties"]]
    assert lost == []
    named = [of["properties"]["schema"] for _, of in objects(schema) if "schema" in of["properties"]]
    assert [of["const"] for of in named] == [name]


def test_a_part_that_several_files_have_is_one() -> None:
    parts: dict[str, set[str]] = {}
    for name in FILES:
        for part, schema in load(name).get("$defs", {}).items():
            parts.setdefault(part, set()).add(json.dumps(schema))
    assert {part for part, texts in parts.items() if len(texts) > 1} == set()
    assert "produced_by" in parts


def test_a_property_that_nobody_described_is_found() -> None:
    document = {"schema": "cuinterpose.peers/1", "directory": "/run", "members": []}
    validate(document)
    with pytest.raises(jsonschema.ValidationError, match="new"):
        validate({**document, "new": 1})
    with pytest.raises(jsonschema.ValidationError, match="directory"):
        validate({"schema": "cuinterpose.peers/1", "members": []})


def test_the_words_of_findings_are_documented() -> None:
    text = (ROOT / "docs/differ.md").read_text()
    assert [word for word in (*KINDS, *CLASSES) if word not in text] == []
    scope = load("nvproxy-differ/diff/2")["$defs"]["finding"]["properties"]["scope"]
    assert scope["enum"] == list(SCOPES)


def test_the_tables_of_the_documents_link_the_files() -> None:
    for program in programs():
        text = pages.table(program)
        for command in program.commands:
            for name in command.schemas:
                assert f"[`{name}`](../{FILES[name].relative_to(FILES[name].parents[2])})" in text


@pytest.mark.parametrize("trace", ["event-buffer-chain", "nvidia-smi"])
def test_a_trace_is_what_its_schema_says(trace: str) -> None:
    lines = gzip.decompress((TRACES / f"{trace}.jsonl.gz").read_bytes()).splitlines()
    for line in lines:
        validate(json.loads(line), "nvproxy-trace/1")
    assert len(lines) > 50
