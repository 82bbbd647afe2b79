"""Names: of nvproxy's tables, and NVIDIA's rules, which link numbers with the structs that they take."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final, Literal, get_args

__all__ = ["TABLES", "Table", "control_struct", "natural", "params_name"]

Table = Literal["frontend", "uvm", "control", "alloc"]
"""One of `TABLES`."""
TABLES: Final[tuple[Table, ...]] = get_args(Table)
"""nvproxy's four tables: escapes of the frontend devices, UVM commands, RM controls, RM classes."""


def params_name(command: str) -> str:
    """The parameter struct of a control command by the rule: ``_CTRL_CMD_`` becomes ``_CTRL_``, ``_PARAMS`` follows."""
    return command.replace("_CTRL_CMD_", "_CTRL_", 1) + "_PARAMS"


def control_struct(command: str, message_ids: Mapping[str, str], structs: Collection[str]) -> str | None:
    """The parameter struct of a control command, or None: by its header's MESSAGE_ID define, else by the rule.

    ``message_ids`` maps commands to the structs that the headers' ``..._PARAMS_MESSAGE_ID`` defines name; ``structs``
    are the structs that there are.
    """
    named = message_ids.get(command)
    if named:
        return named
    ruled = params_name(command)
    return ruled if ruled in structs else None


def natural(version: str) -> tuple[tuple[int, str], ...]:
    """A sort key for printing lists of names like 570.86.15; ancestry, never this, says which release came after which."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"[.\-_]", version))
