"""Where a new release belongs in the tree of releases, and what the tables need for it, as text to paste."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from nvproxy_model import versions
from nvproxy_model.caps import Caps
from nvproxy_model.drivers.compare import model
from nvproxy_model.drivers.compare.check import CheckedRelease, model_release
from nvproxy_model.drivers.compare.findings import Finding
from nvproxy_model.drivers.compare.history import find_entry
from nvproxy_model.drivers.release import Release
from nvproxy_model.layout import Field, Layout
from nvproxy_model.rules import Rule

__all__ = ["adopted", "node_line", "row_edits", "struct_edits"]


def node_line(version: str, parent: str) -> str:
    """The release's line in driver_versions.yaml."""
    return f'  "{version}": {{parent: "{parent}", supported: false}}'


def adopted(version: str, listed_parent: str, parent: Callable[[str], str | None]) -> list[str]:
    """Listed releases that descend from the new one and now hang below its parent: they become its children."""
    found = []
    for name, node in versions.load().items():
        if node.parent is None or node.parent.name != listed_parent or name == version:
            continue
        at = parent(name)
        while at is not None and at != version and model_release(at, lambda _: None) is None:
            at = parent(at)
        if at == version:
            found.append(name)
    return found


def struct_edits(version: str, checked: CheckedRelease, release: Release) -> Iterator[str]:
    """For each struct that differs, its new or changed members as ``since`` and ``until`` members of a CStruct."""
    by_struct: dict[str, list[Finding]] = {}
    for finding in checked.findings:
        if finding.struct is not None:
            by_struct.setdefault(finding.struct, []).append(finding)
    ours = model.used_structs(checked.model)
    for name, findings in by_struct.items():
        old, new = ours.get(name), release.structs.get(name)
        if old is None or new is None:
            yield f"# {name}: {findings[0].detail}"
            continue
        yield f"{name}: {old.size} -> {new.size} bytes"
        members = dict.fromkeys(f.field for f in findings if f.field and f.kind != "field-moved")
        for path in members:
            yield from _member_edit(version, path, old, new)
        if not members:
            yield "    # only offsets or alignment changed: a member before them is aligned otherwise"


def _member_edit(version: str, path: str, old: Layout, new: Layout) -> Iterator[str]:
    before, after = find_entry(old, path), find_entry(new, path)
    where = f"  # {path}" if "." in path else ""
    if before is not None:
        yield f'    until("{version}", {_member(before.field)}),{where}'
    if after is not None:
        yield f'    since("{version}", {_member(after.field)}),{where}  # at {after.offset}'


def _member(field: Field) -> str:
    dims = "".join(f"[{length}]" for length in reversed(field.dims))
    return f'"{field.name}" / {field.type.removeprefix("struct ")}{dims}'


def row_edits(version: str, findings: Iterable[Finding], listed: str) -> Iterator[str]:
    """For each row whose number or name differs: the row it ends with, and the row that begins."""
    rules = {row.rule.name: row.rule for row in model.rows(listed)}
    for finding in findings:
        rule = rules.get(finding.name)
        if not finding.kind.startswith("constant-") or rule is None:
            continue
        yield f'# {finding.detail}; the present row ends: until="{version}"'
        if isinstance(finding.next, int):
            yield _row(rule, finding.next, version)


def _row(rule: Rule, number: int, version: str) -> str:
    caps = " | ".join(flag.name or "" for flag in Caps if flag & rule.caps) or "Caps(0)"
    width = 4 if rule.table == "alloc" else 2 if rule.table == "frontend" else 8
    return f'{rule.table}({number:#0{width + 2}x}, "{rule.name}", {caps}, {rule.struct}, since="{version}"),'
