"""Where a new release belongs in the tree of releases, and what the tables need for it, as text to paste."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from nvproxy_model import structs, versions
from nvproxy_model.caps import Caps
from nvproxy_model.drivers.compare import model
from nvproxy_model.drivers.compare.check import CheckedRelease, model_release
from nvproxy_model.drivers.compare.findings import Finding
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
    """For each struct that differs: the file to edit, and its new or changed members as ``since`` and ``until`` members.

    A member is given whole: a record as a record, an array as an array. Records that the model lacks are defined first.
    """
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
        yield f"# {structs.home(name) or 'structs/'}: {name}, {old.size} -> {new.size} bytes"
        yield from _definitions(old, new)
        yield from _member_edits(version, old, new)


def _definitions(old: Layout, new: Layout) -> Iterator[str]:
    """The named records of new members that the model does not define."""
    known = {field.record.name for field in old.fields if field.record is not None}
    pending = [field.record for field in new.fields if field.record is not None]
    while pending:
        record = pending.pop(0)
        pending += [field.record for field in record.fields if field.record is not None]
        if record.name in known or record.name.startswith("<") or structs.home(record.name) is not None:
            continue
        known.add(record.name)
        yield f"{record.name} = {_record(record)}"


def _member_edits(version: str, old: Layout, new: Layout) -> Iterator[str]:
    before, after = {field.name: field for field in old.fields}, {field.name: field for field in new.fields}
    place = None
    edited = False
    for name in dict.fromkeys([*before, *after]):
        one, other = before.get(name), after.get(name)
        if one is None or other is None or not _alike(one, other):
            edited = True
            where = f"  # after {place}" if one is None and place is not None else ""
            if one is not None:
                yield f'    until("{version}", {_member(one)}),'
            if other is not None:
                yield f'    since("{version}", {_member(other)}),{where}'
        place = name
    if not edited:
        yield "    # only offsets or alignment changed: a member before them is aligned otherwise"


def _alike(one: Field, other: Field) -> bool:
    """Whether two members are the same but for their place and the spelling of a type."""
    if (one.size, one.base, one.dims) != (other.size, other.base, other.dims):
        return False
    if one.record is None or other.record is None:
        return one.record is other.record
    pairs = zip(one.record.fields, other.record.fields, strict=False)
    return len(one.record.fields) == len(other.record.fields) and all(
        a.name == b.name and a.offset == b.offset and _alike(a, b) for a, b in pairs
    )


def _member(field: Field) -> str:
    dims = "".join(f"[{length}]" for length in reversed(field.dims))
    if field.record is not None:
        kind = _record(field.record) if field.record.name.startswith("<") else field.record.name
    elif field.base == "ptr":
        kind = "OpaquePointer()"
    elif field.type == "NvHandle":
        kind = "Handle()"
    else:
        kind = field.type if field.type in model.SCALARS else f"Nv{field.base.upper()}"
    return f"{kind}{dims}" if field.name.startswith("<") else f'"{field.name}" / {kind}{dims}'


def _record(record: Layout) -> str:
    """A record as this model defines one; an anonymous one has no name."""
    kind = "CUnion" if record.kind == "union" else "CStruct"
    name = "None" if record.name.startswith("<") else f'"{record.name}"'
    return f"{kind}({', '.join([name, *map(_member, record.fields)])})"


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
    struct = None if rule.struct is None else f'"{rule.header}.{rule.struct}"' if rule.header else f'"{rule.struct}"'
    width = 4 if rule.table == "alloc" else 2 if rule.table == "frontend" else 8
    return f'{rule.table}({number:#0{width + 2}x}, "{rule.name}", {caps}, {struct}, since="{version}"),'
