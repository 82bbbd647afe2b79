"""This model's side of a comparison: the structs, numbers and names that its tables use in one release."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from nvproxy_model import fields, structs, versions
from nvproxy_model.abi import ALLOC, CONTROL, FRONTEND, UNPUBLISHED, UVM, constants
from nvproxy_model.drivers.release import Wanted
from nvproxy_model.fields import CStruct, CUnion, Member
from nvproxy_model.layout import Layout
from nvproxy_model.rules import Rule
from nvproxy_model.structs import nvstatuscodes
from nvproxy_model.versions import DriverVersion

__all__ = [
    "SCALARS",
    "Row",
    "calls",
    "named_constants",
    "names",
    "record_at",
    "roles",
    "rows",
    "used_constants",
    "used_structs",
]


SCALARS = {value.ctype for value in vars(fields).values() if isinstance(value, fields.Scalar)}
"""The names of the scalar types that definitions use."""


class Row(NamedTuple):
    """A rule as it holds in one release. ``struct`` names its parameter struct; None where it takes none, or a number."""

    rule: Rule
    struct: str | None


def _resolve(rule: Rule, version: DriverVersion) -> Row:
    name = rule.struct_at(version)
    scalar = isinstance(rule.params, fields.Scalar) or name in SCALARS
    return Row(rule, None if scalar else name)


@cache
def _layout(record: CStruct | CUnion) -> Layout:
    """``record.layout()``; variants are interned, so that equal structs of many releases are one object."""
    return record.layout()


def rows(version: str) -> Iterator[Row]:
    """The rows of all four tables that hold in a release of driver_versions.yaml, but for numbers that no header has."""
    node = versions.load()[version]
    for table in (FRONTEND, UVM, CONTROL, ALLOC):
        for rule in table:
            if rule.active(node) and rule.number not in UNPUBLISHED:
                yield _resolve(rule, node)


@cache
def _records(version: str) -> dict[str, CStruct | CUnion]:
    node = versions.load()[version]
    resolved = (record.at(node) for record in structs.every() if record.exists(node))
    return {record.ctype: record for record in resolved}


def record_at(version: str, name: str) -> CStruct | CUnion | None:
    """The model's definition of a struct as it is in a release, or None."""
    return _records(version).get(name)


@cache
def used_structs(version: str) -> dict[str, Layout]:
    """Every struct that the model defines, as it is in a release, by NVIDIA's name there."""
    return {name: _layout(record) for name, record in sorted(_records(version).items())}


@cache
def named_constants(version: str) -> dict[str, int]:
    """The numbers that the model's code names and the ABI headers of a release should have.

    A class that rows name is there as long as one of them is. What no ABI header defines is left out: shifts and masks,
    which are ours for NVIDIA's bit ranges, `constants.ELSEWHERE`, and what is `constants.GONE`.
    """
    node = versions.load()[version]
    active = {row.name for row in ALLOC if row.active(node)}
    lives = {row.name: row.name in active for row in ALLOC}
    lives |= {name: not node.descends_from(until) for name, until in constants.GONE.items()}
    return {
        name: value
        for name, value in sorted(_constants().items())
        if lives.get(name, True) and not name.endswith(("_SHIFT", "_MASK")) and name not in constants.ELSEWHERE
    }


@cache
def used_constants(version: str) -> dict[str, int]:
    """Every named number that the model uses in a release: the rows' and those that its code names."""
    named = _constants() | {row.rule.name: row.rule.number for row in rows(version)}
    return dict(sorted(named.items()))


@cache
def _constants() -> dict[str, int]:
    return {
        name: value
        for module in (constants, nvstatuscodes)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, int)
    }


@cache
def names() -> Wanted:
    """Every struct and constant that the model names in any release: what a source must be asked for."""
    wanted = {name for record in structs.every() for name in record.ctypes if name}
    numbers: set[str] = set()
    for table in (FRONTEND, UVM, CONTROL, ALLOC):
        for rule in table:
            numbers.add(rule.name)
            if isinstance(rule.params, CStruct):
                wanted.update(name for name in rule.params.ctypes if name)
            elif rule.struct and rule.params is None and rule.struct not in SCALARS:
                wanted.add(rule.struct)
    for module in (constants, nvstatuscodes):
        numbers.update(name for name, value in vars(module).items() if name.isupper() and isinstance(value, int))
    return Wanted(frozenset(wanted), frozenset(numbers))


def calls() -> dict[str, list[tuple[str, int, str]]]:
    """Struct -> (table, number, name) of every row whose argument it is in some release, in the order of the tables."""
    found: dict[str, list[tuple[str, int, str]]] = {}
    for table in (FRONTEND, UVM, CONTROL, ALLOC):
        for rule in table:
            named = rule.params.ctypes if isinstance(rule.params, CStruct) else (rule.struct,)
            for name in {name: None for name in named if name}:
                there = found.setdefault(name, [])
                if (rule.table, rule.number, rule.name) not in there:
                    there.append((rule.table, rule.number, rule.name))
    return found


def roles(record: CStruct | CUnion) -> Iterator[tuple[str, Member]]:
    """(dotted path, member) of every leaf."""
    for path, _, member in record.walk():
        yield path, member
