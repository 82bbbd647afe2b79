"""Which state of gVisor's nvproxy this model follows."""

from __future__ import annotations

__all__ = ["CHANGE", "WHOLE", "WHOLE_DATE"]

WHOLE = "3c5eee17dc45659fb86843531074f38e78e0cc35"
"""The commit of google/gvisor whose tables are followed entry by entry."""
WHOLE_DATE = "2026-08-21"
CHANGE = "NV_EVENT_BUFFER, NV01_MEMORY_DEVICELESS and their controls, for the profiling capability"
"""What is followed beyond that commit: the change that registers event buffers."""
