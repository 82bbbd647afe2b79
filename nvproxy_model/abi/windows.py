"""The two bypass windows: controls that nvproxy passes on as raw bytes, whatever their number.

pkg/sentry/devices/nvproxy/frontend.go: rmControl. Bit 15 is tested before the class.
"""

from __future__ import annotations

from typing import Final

__all__ = ["NV2081_BINAPI", "RM_GSS_LEGACY_MASK", "WINDOWS", "window", "windows"]

RM_GSS_LEGACY_MASK: Final = 0x8000
"""src/nvidia/interface/deprecated/rmapi_deprecated.h: a command with this bit belongs to the legacy GSS interface."""
NV2081_BINAPI: Final = 0x2081
"""class/cl2081.h: commands of this class are opaque."""
WINDOWS: Final = ("RM_GSS_LEGACY_MASK", "NV2081_BINAPI")
"""The windows' names, in the order in which nvproxy tests them."""


def windows(control: int) -> tuple[str, ...]:
    """Every window that a control command is in, in nvproxy's order; the first one decides."""
    if not 0 <= control <= 0xFFFFFFFF:
        return ()
    inside = (bool(control & RM_GSS_LEGACY_MASK), control >> 16 == NV2081_BINAPI)
    return tuple(name for name, there in zip(WINDOWS, inside, strict=True) if there)


def window(control: int) -> str | None:
    """The window that a control command goes through, or None."""
    return next(iter(windows(control)), None)
