"""A rule row: which number uses which struct, for whom, since which release. Rows are data; `policy` resolves
them.

A row names its struct: with its header's module (``"nvos.NVOS54_PARAMETERS"``) where this model defines it, which is
imported when the row is first asked for it, and alone (``"NV2080_CTRL_GPU_GET_ID_PARAMS"``) where it is only passed on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from nvproxy_model.caps import Caps
from nvproxy_model.errors import DefinitionError
from nvproxy_model.fields import CStruct, Scalar
from nvproxy_model.followed import LATER
from nvproxy_model.lifetime import Lineage, Releases, alive, releases
from nvproxy_model.naming import TABLES, Table, params_name
from nvproxy_model.structs import named

__all__ = ["BY_NAME", "TABLES", "Rule", "Table", "active", "alloc", "control", "frontend", "reject", "uvm"]

_NOBODY = Caps(0)

BY_NAME: Any = object()
"""A control's parameters when a row does not say: the struct that NVIDIA's naming rule gives, known by name
only."""


class Rule(NamedTuple):
    """One number of one table over one span of releases.

    ``table``, ``number``, ``name``: what is asked, as NVIDIA numbers and names it. ``caps``: any one of these
    admits the call. ``struct``: the argument or parameter struct as NVIDIA spells it, ``header``: the module of
    `nvproxy_model.structs` that defines it, None where the model only passes it on. ``handler``: the one escape hatch, for what
    roles cannot say: the name of a `nvproxy_model.policy.handlers.Handler`. ``since``, ``until``: the releases
    where the row begins and ends. ``rejected``: the row refuses every call, with the NV status ``status``, or
    EINVAL for None. ``why``: why it refuses, or what a reader should know; it becomes part of a decision's
    reason. ``opt_in``: admitted only when the embedder names the number in ``Policy.for_driver(..., extra=)``.
    ``restorable``, for a class: whether a checkpoint can replay the allocation. nvproxy keeps the parameters of
    most classes for that, and refuses to save while an object of another one lives (save_restore.go,
    miscObject). ``later``: the entry of `nvproxy_model.followed.LATER` that brought the row; None if the followed
    revision has it. A row that was only seen is admitted by ``Policy.for_driver(..., pending=True)``.
    """

    table: Table
    number: int
    name: str
    caps: Caps
    header: str | None = None
    struct: str | None = None
    handler: str | None = None
    since: tuple[str, ...] = ()
    until: tuple[str, ...] = ()
    rejected: bool = False
    status: int | None = None
    why: str | None = None
    opt_in: bool = False
    restorable: bool = True
    later: str | None = None

    def active(self, version: Lineage) -> bool:
        """Whether the row holds at that release."""
        return alive(self.since, self.until, version)

    @property
    def params(self) -> CStruct | Scalar | None:
        """The struct where this model defines it. Raises DefinitionError if it does not, although the row says so."""
        found: CStruct | Scalar | None = None if self.header is None else named(f"{self.header}.{self.struct}")
        return found

    def params_at(self, version: Lineage) -> CStruct | Scalar | None:
        """The parameter struct as it is in that release."""
        params = self.params
        return params.at(version) if isinstance(params, CStruct) else params

    def struct_at(self, version: Lineage) -> str | None:
        """The name of the parameter struct in that release."""
        params = self.params
        return params.ctype_at(version) if isinstance(params, CStruct) else self.struct


def _rule(
    table: Table,
    number: int,
    name: str,
    caps: Caps,
    params: str | None,
    since: Releases,
    until: Releases,
    **rest: Any,
) -> Rule:
    if params is BY_NAME:
        params = params_name(name)
    later = rest.get("later")
    if later is not None and later not in LATER:
        raise DefinitionError(f"{table} {number:#x} {name}: nvproxy_model/followed.py has no entry {later!r}")
    header, dot, struct = (None, "", None) if params is None else params.rpartition(".")
    return Rule(
        table, number, name, caps, header if dot else None, struct, since=releases(since), until=releases(until), **rest
    )


def frontend(
    number: int,
    name: str,
    caps: Caps,
    params: str | None,
    *,
    handler: str | None = None,
    since: Releases = (),
    until: Releases = (),
    later: str | None = None,
) -> Rule:
    """An escape of /dev/nvidiactl or /dev/nvidiaN, by its ioctl number (``nr``). A name for params means any
    size."""
    return _rule("frontend", number, name, caps, params, since, until, handler=handler, later=later)


def uvm(
    number: int,
    name: str,
    caps: Caps,
    params: str | None,
    *,
    handler: str | None = None,
    since: Releases = (),
    until: Releases = (),
    later: str | None = None,
) -> Rule:
    """A command of /dev/nvidia-uvm, by the whole request."""
    return _rule("uvm", number, name, caps, params, since, until, handler=handler, later=later)


def control(
    number: int,
    name: str,
    caps: Caps,
    params: str | None = BY_NAME,
    *,
    handler: str | None = None,
    since: Releases = (),
    until: Releases = (),
    later: str | None = None,
    opt_in: bool = False,
    why: str | None = None,
) -> Rule:
    """A control command of NV_ESC_RM_CONTROL. A struct with no fd and no buffer in it is passed through at
    any size."""
    return _rule(
        "control", number, name, caps, params, since, until, handler=handler, opt_in=opt_in, why=why, later=later
    )


def alloc(
    number: int,
    name: str,
    caps: Caps,
    params: str | None,
    *,
    handler: str | None = None,
    since: Releases = (),
    until: Releases = (),
    later: str | None = None,
    restorable: bool = True,
) -> Rule:
    """A class of NV_ESC_RM_ALLOC. ``None``: the class takes no parameters, and a pointer is not forwarded."""
    return _rule("alloc", number, name, caps, params, since, until, handler=handler, restorable=restorable, later=later)


def reject(
    table: Table,
    number: int,
    name: str,
    params: str | None = BY_NAME,
    *,
    status: int | None,
    why: str,
    caps: Caps = _NOBODY,
    since: Releases = (),
    until: Releases = (),
) -> Rule:
    """A number that is known, checked for parity, and refused with a reason of its own: an NV status, or
    EINVAL for None."""
    return _rule(table, number, name, caps, params, since, until, status=status, why=why, rejected=True)


def active(rows: Iterable[Rule], version: Lineage) -> Mapping[int, Rule]:
    """The rows of one table at one release, by number. Raises DefinitionError when two claim the same number."""
    table: dict[int, Rule] = {}
    for row in rows:
        if row.active(version):
            if row.number in table:
                raise DefinitionError(
                    f"{row.table} {row.number:#x} at {version}: both {table[row.number].name} and {row.name}"
                )
            table[row.number] = row
    return dict(sorted(table.items()))
