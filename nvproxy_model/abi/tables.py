"""The four tables together."""

from __future__ import annotations

import copyreg
from collections.abc import Mapping
from typing import Final

from nvproxy_model.abi.alloc import ALLOC
from nvproxy_model.abi.control_client import CLIENT
from nvproxy_model.abi.control_device import DEVICE
from nvproxy_model.abi.control_engine import ENGINE
from nvproxy_model.abi.control_memory import MEMORY
from nvproxy_model.abi.control_subdevice import SUBDEVICE
from nvproxy_model.abi.frontend import FRONTEND
from nvproxy_model.abi.uvm import UVM
from nvproxy_model.rules import Rule, Table

__all__ = ["ALLOC", "CONTROL", "FRONTEND", "TABLES", "UNPUBLISHED", "UVM"]

CONTROL: Final[tuple[Rule, ...]] = CLIENT + MEMORY + DEVICE + SUBDEVICE + ENGINE

TABLES: Final[Mapping[Table, tuple[Rule, ...]]] = {"frontend": FRONTEND, "uvm": UVM, "control": CONTROL, "alloc": ALLOC}
"""Every row of every release, by table; `nvproxy_model.rules.TABLES` are the names alone."""


def _row(table: Table, number: int, name: str, since: tuple[str, ...], until: tuple[str, ...]) -> Rule:
    """The row that a copied or pickled decision speaks of. Raises LookupError where this model has no such row."""
    for row in TABLES[table]:
        if (row.number, row.name, row.since, row.until) == (number, name, since, until):
            return row
    raise LookupError(f"{table} {number:#x} {name}: this model has no such row")


def _reduced(rule: Rule) -> tuple[object, ...]:
    return _row, (rule.table, rule.number, rule.name, rule.since, rule.until)


# Rows are compared by identity, and hold structs, which no pickle takes: a copy of a row is the row.
copyreg.pickle(Rule, _reduced)  # type: ignore[arg-type]

UNPUBLISHED: Final = frozenset({0x0080028B, 0x20800145, 0x20800146})
"""Controls that no public header defines, so that a header cannot confirm or refute their rows.

The driver's own table of subdevice controls (generated/g_subdevice_nvoc.c) has the latter two, without parameters; the
first has gVisor's name.
"""
