"""Read the struct tables that PyPI's tinygrad generates from driver headers, as data: the module is parsed, never imported."""

from __future__ import annotations

import ast
import json
import lzma
import sys
import zipfile
from pathlib import Path
from typing import Any

from tests import DATA

EXTRACT = DATA / "tinygrad_structs.json.xz"
RELEASES = {"nv_570": "570.86.16", "nv_580": "580.105.08", "nv_610": "610.43.03"}
"""Module -> the release whose headers it was generated from, by the archive that tinygrad/runtime/autogen names."""


def structs(source: str) -> dict[str, tuple[int, dict[str, int]]]:
    """Struct -> (size, member -> offset), by tag and by alias."""
    sizes: dict[str, int] = {}
    offsets: dict[str, dict[str, int]] = {}
    aliases: dict[str, str] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            for line in node.body:
                if (
                    isinstance(line, ast.Assign)
                    and isinstance(line.targets[0], ast.Name)
                    and line.targets[0].id == "SIZE"
                ):
                    sizes[node.name] = ast.literal_eval(line.value)
        elif (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Attribute)
        ):
            call = node.value
            if call.func.attr == "register_fields" and isinstance(call.func.value, ast.Name):  # type: ignore[attr-defined]
                rows = call.args[0]
                assert isinstance(rows, ast.List)
                found: dict[str, int] = {}
                for row in rows.elts:
                    assert isinstance(row, ast.Tuple)
                    found[ast.literal_eval(row.elts[0])] = ast.literal_eval(row.elts[2])
                offsets[call.func.value.id] = found  # type: ignore[attr-defined]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(node.value, ast.Name):
            aliases[node.target.id] = node.value.id
    tables = {name: (size, offsets.get(name, {})) for name, size in sizes.items()}
    for name, target in aliases.items():
        if target in tables:
            tables[name] = tables[target]
    return {name.removeprefix("struct_"): table for name, table in tables.items()}


def constants(source: str) -> dict[str, int]:
    """Names that are assigned an integer."""
    found: dict[str, int] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, int):
            name = node.targets[0]
            if isinstance(name, ast.Name):
                found[name.id] = node.value.value
    return found


def read(wheel: Path) -> dict[str, tuple[dict[str, tuple[int, dict[str, int]]], dict[str, int]]]:
    """Release -> (structs, constants) of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        texts = {
            release: archive.read(f"tinygrad/runtime/autogen/{module}.py").decode()
            for module, release in RELEASES.items()
        }
    return {release: (structs(text), constants(text)) for release, text in texts.items()}


def extract(wheel: Path) -> None:
    """Write the extract that the tests carry: what the model names, of each release."""
    from nvproxy_model.drivers.compare import model

    wanted = model.names()
    tables: dict[str, Any] = {}
    for release, (records, numbers) in read(wheel).items():
        tables[release] = {
            "structs": {name: records[name] for name in sorted(wanted.structs & records.keys())},
            "constants": {name: numbers[name] for name in sorted(wanted.constants & numbers.keys())},
        }
    EXTRACT.write_bytes(lzma.compress(json.dumps(tables, separators=(",", ":")).encode(), preset=9))


if __name__ == "__main__":
    extract(Path(sys.argv[1]))
