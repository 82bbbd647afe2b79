"""The groups into which a check sorts a trace's calls, in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

__all__ = ["GROUPS", "MISSING", "QUIET", "Group"]

Group = Literal[
    "unknown",
    "capability",
    "device",
    "argument",
    "contradiction",
    "permission",
    "cannot-tell",
    "harmless",
    "always-refused",
    "refused-outside-too",
    "foreign",
    "window",
    "admitted",
]
GROUPS: Final[Mapping[Group, str]] = {
    "unknown": "refused: nvproxy has no rule for this number in this release",
    "capability": "refused: a capability is missing",
    "device": "refused: nvproxy does not give a sandbox this device",
    "argument": "refused: nvproxy admits the number, but not these arguments",
    "contradiction": "refused in this log by nvproxy, although these rules admit it",
    "permission": "the open failed where this was recorded: file mode, cgroup, security module, or no such node",
    "cannot-tell": "cannot tell from this log: it does not hold what decides",
    "harmless": "refused, known to be harmless: the programs that were measured do without it",
    "always-refused": "always refused, harmless: nvproxy gives every program the same answer",
    "refused-outside-too": "refused outside too: the host's driver gave the same kind of answer",
    "foreign": "not judged: another driver's device or request",
    "window": "admitted unexamined, through a bypass window",
    "admitted": "admitted",
}
"""Group -> what it means; from what needs doing to what does not."""

MISSING: Final[tuple[Group, ...]] = ("unknown", "capability", "device", "argument", "contradiction")
"""The groups of refusals by nvproxy that a program notices. They make the verdict "refused"."""

QUIET: Final[tuple[Group, ...]] = ("window", "admitted")
"""The groups that are listed only when asked for."""
