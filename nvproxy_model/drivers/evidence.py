"""The second grade of evidence: sizes from tables that other projects made of releases whose trees are not recorded.

Agreement with such a table is weaker than agreement with headers: it knows numbers and sizes, no fields, and nobody here
compiled what it was made of. It is therefore never called ``same``.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from nvproxy_model import versions
from nvproxy_model.abi import TABLES
from nvproxy_model.drivers.compare import model
from nvproxy_model.drivers.compare.check import CheckedRelease, Status
from nvproxy_model.drivers.compare.findings import Finding
from nvproxy_model.drivers.release import Release
from nvproxy_model.errors import SourceError
from nvproxy_model.fields import CStruct, Scalar
from nvproxy_model.rules import Rule, active

__all__ = ["Independent", "check_independent", "independent"]

FILE = Path(__file__).parent / "facts" / "independent.json.xz"
SCHEMA = "nvproxy-model/independent/1"


class Independent(NamedTuple):
    """One release's table. ``model``: the listed release that it is compared with. Sizes are in bytes.

    ``sizes``: table name (``control``, ``alloc``, ``uvm``) -> number -> size of its parameters. ``structs``: of escapes, by name.
    """

    version: str
    model: str
    sources: tuple[str, ...]
    sizes: Mapping[str, Mapping[int, int]]
    structs: Mapping[str, int]


@cache
def independent() -> Mapping[str, Independent]:
    """Every table that is shipped, by release. Raises SourceError if the file cannot be read."""
    try:
        document = json.loads(lzma.decompress(FILE.read_bytes()))
        if document["schema"] != SCHEMA:
            raise ValueError("not of this version")
        return {version: _table(version, table) for version, table in document["releases"].items()}
    except (OSError, EOFError, lzma.LZMAError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(f"not a file of independent tables: {error}", FILE) from None


def _table(version: str, table: Mapping[str, Any]) -> Independent:
    kinds = {"control": "controls", "alloc": "classes", "uvm": "uvm"}
    sizes = {
        kind: {int(number, 16): size for number, size in table.get(name, {}).items()} for kind, name in kinds.items()
    }
    return Independent(version, table["model"], tuple(table["sources"]), sizes, table.get("structs", {}))


def check_independent(table: Independent, before: Release | None) -> CheckedRelease:
    """The model at the release that the table is compared with, against the table.

    ``agrees``: no size differs. A row that the model passes on by name has no size of its own: its size is compared with that
    in ``before``, the nearest recorded ancestor, and where that is another one the table's is all that is known of it.
    """
    findings: list[Finding] = []
    counts: dict[str, int] = {}
    alone: list[str] = []
    for kind, rule, size in _rows(table):
        ours = _size(rule, table.model)
        if ours is not None:
            counts[kind] = counts.get(kind, 0) + 1
            if ours != size:
                detail = f"the model's parameters have {ours} bytes, the table's {size}"
                findings.append(
                    Finding("size-changed", rule.name, detail, ours, size, "grew" if size > ours else "shrank")
                )
            continue
        recorded = _recorded(rule, table.model, before)
        if recorded == size:
            counts[kind] = counts.get(kind, 0) + 1
        else:
            alone.append(f"{rule.name} {size}" + (f" ({recorded} in {before.version})" if recorded and before else ""))
    structs = model.used_structs(table.model)
    for name, size in table.structs.items():
        if name in structs:
            counts["escape"] = counts.get("escape", 0) + 1
            if structs[name].size != size:
                detail = f"the model's struct has {structs[name].size} bytes, the table's {size}"
                findings.append(Finding("size-changed", name, detail, structs[name].size, size, "resized-in-place"))
    words = {"control": "controls", "alloc": "classes", "uvm": "UVM commands", "escape": "escape structs"}
    compared = ", ".join(f"{counts[kind]} {word}" for kind, word in words.items() if kind in counts)
    reason = f"{compared} of {', '.join(table.sources)}"
    if alone:
        reason += f"; a size and no layout is known of {len(alone)}: {', '.join(alone)}"
    status: Status = "different" if findings else "agrees"
    return CheckedRelease(
        table.version, table.model, status, reason, 0, len(structs), sum(counts.values()), tuple(findings)
    )


def _rows(table: Independent) -> Iterator[tuple[str, Rule, int]]:
    node = versions.load()[table.model]
    for kind, sizes in table.sizes.items():
        for number, rule in active(TABLES[kind], node).items():  # type: ignore[index]
            if number in sizes:
                yield kind, rule, sizes[number]


def _size(rule: Rule, version: str) -> int | None:
    params = rule.params_at(versions.load()[version])
    if isinstance(params, (CStruct, Scalar)):
        return int(params.sizeof())
    return 0 if params is None and rule.struct is None else None


def _recorded(rule: Rule, version: str, before: Release | None) -> int | None:
    name = rule.struct_at(versions.load()[version])
    layout = None if before is None or name is None else before.structs.get(name)
    return None if layout is None else layout.size
