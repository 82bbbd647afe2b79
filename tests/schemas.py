"""The schema files that ship, and every document of a command held to them."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema

import cuinterpose
import nvproxy_model

__all__ = ["FILES", "document", "load", "objects", "validate"]

FILES = {
    str(json.loads(path.read_bytes())["$id"]).removeprefix("urn:nvproxy-model:schema:"): path
    for package in (nvproxy_model, cuinterpose)
    for path in sorted(Path(str(package.__file__)).with_name("schemas").iterdir())
}
"""Schema name to its file, as the installed packages have them."""


def load(name: str) -> dict[str, Any]:
    """The schema of that name."""
    schema: dict[str, Any] = json.loads(FILES[name].read_bytes())
    return schema


def document(text: str) -> Any:
    """A document that a command printed, which is what its schema says."""
    found = json.loads(text)
    validate(found)
    return found


def validate(document: Any, name: str | None = None) -> None:
    """Raises jsonschema.ValidationError for a document that is not what its schema says, or has a property that it lacks.

    ``name`` is for a line of JSON Lines, which does not name its schema.
    """
    _validator(name or document["schema"]).validate(document)


def objects(schema: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every subschema that lists properties, with where it stands."""
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict):
            yield path, schema
        for key, value in schema.items():
            yield from objects(value, f"{path}/{key}")
    elif isinstance(schema, list):
        for index, value in enumerate(schema):
            yield from objects(value, f"{path}/{index}")


@functools.cache
def _validator(name: str) -> Any:
    schema = load(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    # A reader must accept properties that are new to it; a command must not print one that nobody described.
    for _, of in objects(schema):
        of.setdefault("additionalProperties", False)
    return jsonschema.Draft202012Validator(schema)
