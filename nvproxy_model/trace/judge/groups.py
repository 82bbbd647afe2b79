"""The groups into which a check sorts a trace's calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["GROUPS", "MISSING"]

GROUPS: Final[Mapping[str, str]] = {
    "unknown": "no rule has this number in this release",
    "capability": "a capability is missing",
    "device": "the sandbox does not expose this device",
    "argument": "the number is admitted, these arguments are not",
    "untold": "could not tell: the trace does not hold what decides",
    "own": "nvproxy answers this itself, always with a refusal",
    "host-refused": "the host's driver refused it as well",
    "window": "a bypass window passes it unexamined",
    "admitted": "admitted",
}
"""Group -> what it means; from what needs doing to what does not."""

MISSING: Final = ("unknown", "capability", "device", "argument")
"""The groups that a program in the sandbox would notice: it got an answer outside and gets a refusal inside."""
