"""Two releases of driver_versions.yaml as far as the model goes: what is left to compare where a tree is not recorded."""

from __future__ import annotations

from collections.abc import Iterator

from nvproxy_model import versions
from nvproxy_model.abi import TABLES
from nvproxy_model.drivers.compare import model
from nvproxy_model.drivers.compare.carriers import fd_paths
from nvproxy_model.drivers.compare.findings import Finding, compare_layouts
from nvproxy_model.rules import active

__all__ = ["compare_nodes", "compared_nodes"]


def compare_nodes(base: str, following: str) -> list[Finding]:
    """What differs between the rows and the structs that hold at two listed releases, by name.

    nvproxy says that two releases are equal by giving one the other's tables; a size or a number that changed without a row
    of nvproxy's is not seen here.
    """
    one, other = versions.load()[base], versions.load()[following]
    found: list[Finding] = []
    for table, rules in TABLES.items():
        before, after = active(rules, one), active(rules, other)
        for number in sorted(before.keys() | after.keys()):
            old, new = before.get(number), after.get(number)
            if new is None and old is not None:
                detail = f"{table} {number:#x}: {following} has no row for it"
                found.append(Finding("constant-removed", old.name, detail, number, None, "removed"))
            elif old is None and new is not None:
                detail = f"{table} {number:#x}: {base} has no row for it"
                found.append(Finding("constant-added", new.name, detail, None, number, "added"))
            elif old is not None and new is not None and old is not new and old.name != new.name:
                detail = f"{table} {number:#x}: {old.name}, then {new.name}"
                found.append(Finding("constant-changed", new.name, detail, old.name, new.name, "number-reused"))
    found += _structs(base, following)
    return sorted(found, key=lambda finding: (finding.kind.startswith("constant-"), finding.name, finding.kind))


def _structs(base: str, following: str) -> Iterator[Finding]:
    before, after = model.used_structs(base), model.used_structs(following)
    fds = fd_paths()
    for name in sorted(before.keys() & after.keys()):
        if before[name] is not after[name]:
            yield from compare_layouts(name, before[name], after[name], fds.get(name, ()), spelling=False)


def compared_nodes(following: str) -> str:
    """How much ``compare_nodes`` looked at, in words."""
    node = versions.load()[following]
    rows = sum(len(active(rules, node)) for rules in TABLES.values())
    return f"{rows} rows and {len(model.used_structs(following))} structs of the model"
