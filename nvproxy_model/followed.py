"""Which state of gVisor's nvproxy this model follows: the last whole revision, and what is known of later ones.

A row of `nvproxy_model.abi` and a node of driver_versions.yaml that the whole revision lacks names its entry of LATER.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

__all__ = ["CHANGE", "LATER", "STRUCTS", "WHOLE", "WHOLE_DATE", "Later", "described", "is_pending"]

WHOLE = "3c5eee17dc45659fb86843531074f38e78e0cc35"
"""The commit of google/gvisor whose tables are followed entry by entry."""
WHOLE_DATE = "2026-08-21"
CHANGE = "NV_EVENT_BUFFER, NV01_MEMORY_DEVICELESS and their controls, for the profiling capability"
"""What is followed beyond that commit: the change that registers event buffers."""


class Later(NamedTuple):
    """A change after WHOLE. ``state`` is ``merged``; ``seen`` where nobody has confirmed that gVisor took it; or ``needed``:
    seen, and admitted all the same, because what is merged is of no use without it.

    ``commit`` is the one whose file showed it, ``pull`` the pull request that brought it, where that is known.
    """

    state: Literal["merged", "seen", "needed"]
    commit: str
    date: str
    what: str
    pull: str = ""


_VERSION_GO = "58dbfe45cb416b5ade754c08ae50a4c32edb216b"

LATER: Mapping[str, Later] = {
    "14005": Later(
        "merged", _VERSION_GO, "2026-09-20", "NV_EVENT_BUFFER, its controls and binds (this model's CHANGE)", "#14005"
    ),
    "13994": Later("needed", _VERSION_GO, "2026-09-20", "NV01_MEMORY_DEVICELESS, which event buffers lie in", "#13994"),
    "58dbfe45": Later(
        "seen", _VERSION_GO, "2026-09-20", "version.go: nodes of 580 and 620, and rows from the root of the tree on"
    ),
    "58dbfe45-tools": Later(
        "seen", _VERSION_GO, "2026-09-20", "uvm_tools.go: /dev/nvidia-uvm-tools is a device of its own"
    ),
    "1117a51c": Later("seen", "1117a51c7176", "2026-09-20", "ctrl.go: GET_REMAP_TABLE_INFO_V2 has a struct, with alid"),
    "14069": Later("merged", _VERSION_GO, "2026-09-20", "MAXWELL_PROFILER_CONTEXT", "#14069"),
    "14751": Later(
        "merged", _VERSION_GO, "2026-09-14", "615.71.09 and its rows, 620.30.00, MEMACCT_GET_LIMITS", "#14751"
    ),
    "14850": Later("seen", _VERSION_GO, "2026-09-19", "FLA_GET_FABRIC_MEM_STATS", "#14850"),
}
"""What is newer than WHOLE, by the name that rows and nodes give."""


def is_pending(later: str | None) -> bool:
    """Whether an entry of LATER is only seen; what the whole revision has is not."""
    return later is not None and LATER[later].state == "seen"


def described(later: str) -> str:
    """An entry in words: its state, its pull request, the commit that showed it."""
    entry = LATER[later]
    return " ".join(filter(None, (entry.state, entry.pull, f"at {entry.commit[:12]}")))


STRUCTS: Mapping[str, str] = {
    "NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS": "14751",
    "NV2080_CTRL_NVLINK_GET_REMAP_TABLE_INFO_V2_PARAMS": "1117a51c",
}
"""Structs of older rows that an entry of LATER changed."""
