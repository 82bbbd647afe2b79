"""What a policy needs of one struct in one release: the fields with a role, where they are, and how their
bytes read."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from nvproxy_model.errors import DefinitionError
from nvproxy_model.fields import CStruct, Fd, Handle, Member, OpaquePointer, Role, Status, UserPointer

__all__ = ["Count", "Plan", "Step", "plan"]

RoleT = TypeVar("RoleT", bound=Role)

_FORMAT = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "s8": "b", "s16": "h", "s32": "i", "s64": "q", "ptr": "Q"}


@dataclass(frozen=True, slots=True)
class Step(Generic[RoleT]):
    """One field with a role: ``size`` bytes at ``offset`` of the struct, read by the struct-module
    ``format``."""

    struct: str
    path: str
    offset: int
    size: int
    format: str
    role: RoleT

    @property
    def name(self) -> str:
        """The field as messages name it: struct and dotted path."""
        return f"{self.struct}.{self.path}"


@dataclass(frozen=True, slots=True)
class Count:
    """The sibling field that counts a buffer's elements."""

    path: str
    offset: int
    format: str


@dataclass(frozen=True, slots=True)
class Plan:
    """One struct of one release, worked out once. Steps are in the order of the struct's members.

    ``buffers`` are the pointers that a proxy copies; ``opaque`` those that must be NULL, or that the host
    sees as NULL.
    """

    name: str
    size: int
    required: tuple[Step[Handle], ...]
    fds: tuple[Step[Fd], ...]
    buffers: tuple[Step[UserPointer], ...]
    opaque: tuple[Step[OpaquePointer], ...]
    counts: tuple[Count | None, ...]
    """For each of ``buffers``, the field that counts its elements; None where the number is fixed."""
    depends: tuple[Step[Handle], ...]
    status: Step[Status] | None
    restore: tuple[tuple[int, int], ...]
    """(offset, size) of what the guest must see unchanged after the host call."""
    roles: bool
    """Whether there is anything to translate, copy or refuse."""

    @property
    def pointers(self) -> tuple[Step[UserPointer] | Step[OpaquePointer], ...]:
        """Every pointer that is not simply passed on."""
        return (*self.buffers, *self.opaque)


@functools.cache
def plan(of: CStruct) -> Plan:
    """The plan of a resolved struct (`CStruct.at`). Raises DefinitionError for what no decider is made for."""
    name = of.ctype or ""

    def steps(kind: type[RoleT]) -> Iterator[Step[RoleT]]:
        for path, offset, member in of.walk():
            if isinstance(member.role, kind) and not member.dims:
                yield Step(name, path, offset, member.size, _FORMAT[member.element.base], member.role)

    handles, fds, pointers = tuple(steps(Handle)), tuple(steps(Fd)), tuple(steps(UserPointer))
    buffers = tuple(step for step in pointers if step.role.to is not None)
    opaque = tuple(step for step in steps(OpaquePointer) if step.role.null_only or step.role.cleared)
    required = tuple(step for step in handles if step.role.required)
    replaced: tuple[Step[Any], ...] = (*fds, *pointers)
    if fds and (buffers or opaque):
        raise DefinitionError(f"{of.ctype}: fds and buffers in one struct")
    return Plan(
        name,
        of.sizeof(),
        required,
        fds,
        buffers,
        opaque,
        tuple(_count(of, step) for step in buffers),
        tuple(step for step in handles if step.role.depends),
        next(steps(Status), None),
        tuple((step.offset, step.size) for step in replaced),
        bool(required or fds or buffers or opaque),
    )


def _count(of: CStruct, step: Step[UserPointer]) -> Count | None:
    count = step.role.count
    if isinstance(count, int):
        return None
    sibling = count[1] if isinstance(count, tuple) else count
    record = step.path.rpartition(".")[0]
    path = f"{record}.{sibling}" if record else sibling
    members: dict[str, tuple[int, Member]] = {at: (offset, member) for at, offset, member in of.walk()}
    if path not in members:
        raise DefinitionError(f"{step.name}: no field {path!r} counts its elements")
    offset, member = members[path]
    return Count(path, offset, _FORMAT[member.element.base])
