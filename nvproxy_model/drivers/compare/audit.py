"""Which fields carry descriptors, pointers, pids and host addresses, how that is known, and whether the model handles it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

from nvproxy_model.drivers.compare import model
from nvproxy_model.drivers.compare.carriers import CURATED_STRUCTS, What, found_by_shape, known
from nvproxy_model.drivers.compare.findings import entries
from nvproxy_model.drivers.release import Release, control_struct
from nvproxy_model.fields import CStruct, CUnion, Fd, OpaquePointer, Role, UserPointer

__all__ = ["Audited", "Problem", "audit_release"]

Problem = Literal["", "unclassified", "unhandled"]


@dataclass(frozen=True, slots=True)
class Audited:
    """One field. ``how`` lists how it was found; ``handled`` says what the model does with it."""

    struct: str
    path: str
    offset: int
    type: str
    what: What
    how: tuple[str, ...]
    handled: str
    admitted: bool
    problem: Problem = ""
    """``unclassified``: nobody said what it is; ``unhandled``: it is a descriptor or pointer, and the model lets it pass."""
    shown: bool = False
    """Whether the driver returns a value of the host in it."""


def audit_release(release: Release, listed: str, everything: bool = False) -> Iterator[Audited]:
    """The fields of every struct in the tables of ``listed``, or of every struct of the release, by struct and offset."""
    admitted: set[str] = set()
    refused: set[str] = set()
    for row in model.rows(listed):
        if row.struct is not None:
            (refused if row.rule.rejected else admitted).add(row.struct)
    defined = set(model.used_structs(listed))
    embedded = {
        struct: paths for control, paths in release.embedded.items() if (struct := control_struct(release, control))
    }
    names: Iterable[str] = admitted | refused | defined
    if everything:
        names = set(release.structs) | set(names)
    for name in sorted(names):
        record = model.record_at(listed, name) if name in defined else None
        where = (
            "admitted" if name in admitted else "refused" if name in refused else "defined" if name in defined else ""
        )
        yield from _audit(release, name, record, embedded.get(name, ()), where)


def _audit(
    release: Release, name: str, record: CStruct | CUnion | None, embedded: tuple[str, ...], where: str
) -> Iterator[Audited]:
    layout = release.structs.get(name)
    if layout is None:
        return
    roles = {} if record is None else _roles(record)
    shapes = {carrier.path: carrier for carrier in found_by_shape(layout)}
    if not shapes and not embedded and name not in CURATED_STRUCTS and not any(map(_carries, roles.values())):
        return
    for entry in entries(layout):
        path, role = entry.key, roles.get(entry.key)
        shape, curated = shapes.get(path), known(name, path)
        copied = path in embedded
        if shape is None and curated is None and not copied and not _carries(role):
            continue
        how = []
        if role is not None:
            how.append(f"role {type(role).__name__}")
        if shape is not None and shape.how == "type":
            how.append(f"type {entry.field.type}")
        if curated is not None:
            how.append(f"curated: {curated.function}" + (f" ({curated.note})" if curated.note else ""))
        if copied:
            how.append("embeddedParamCopyIn()")
        if shape is not None and shape.how == "name":
            how.append("name")
        what = curated.what if curated else "fd" if isinstance(role, Fd) else shape.what if shape else "pointer"
        handled, problem = _handling(role, curated is not None, curated is not None and curated.translate, where)
        yield Audited(
            name,
            entry.path,
            entry.offset,
            entry.field.type,
            what,
            tuple(how),
            handled,
            where == "admitted",
            problem,
            curated is not None and curated.shown,
        )


def _handling(role: Role | None, explained: bool, translate: bool, where: str) -> tuple[str, Problem]:
    """What the model does with a field, and what is wrong with that."""
    if where == "":
        return "not in the tables", ""
    if where == "refused":
        return "the call is refused", ""
    if isinstance(role, Fd):
        return "translated and restored", "" if explained else "unclassified"
    if isinstance(role, UserPointer):
        return "copied", ""
    if isinstance(role, OpaquePointer):
        how = "refused unless NULL" if role.null_only else "cleared" if role.cleared else "passed, never followed"
        return how, ""
    if explained:
        return ("passed", "unhandled") if translate else ("passed", "")
    return "passed", "unclassified"


@cache
def _roles(record: CStruct | CUnion) -> dict[str, Role | None]:
    return {_key(path): member.role for path, member in model.roles(record)}


def _carries(role: Role | None) -> bool:
    return isinstance(role, (Fd, UserPointer, OpaquePointer))


def _key(path: str) -> str:
    return re.sub(r"<\w+@\d+>\.", "", path)
