"""Whether MIG was on while a trace was recorded, as far as its bytes show."""

from __future__ import annotations

import re
from typing import Final

from nvproxy_model.trace.format import Record

__all__ = ["SHOWING", "shows_mig"]

_CAP: Final = re.compile(r"/dev/nvidia-caps/nvidia-cap(\d+)")
_FIRST_INSTANCE: Final = 3
"""nv-caps.c: minors 1 and 2 are MIG's configuration and monitoring, those above belong to GPU and compute instances."""
_PARTITIONS: Final = (0xC637, 0xC638)
"""AMPERE_SMC_PARTITION_REF, AMPERE_SMC_EXEC_PARTITION_REF: a reference to an instance that exists."""
_GET_INFO_V2: Final = 0x20800102
_SMC_MODE, _ENABLED = 0x2A, 1
"""ctrl2080gpu.h: NV2080_CTRL_GPU_INFO_INDEX_GPU_SMC_MODE and NV2080_CTRL_GPU_INFO_GPU_SMC_MODE_ENABLED."""

SHOWING: Final = frozenset({*_PARTITIONS, _GET_INFO_V2})
"""The only numbers of calls that can be evidence."""


def shows_mig(rec: Record) -> bool:
    """Whether a record is evidence of MIG: an instance that is used, or the driver's own word."""
    if rec.err or rec.status:
        return False
    if rec.k == "open":
        match = _CAP.fullmatch(rec.dev or "")
        return match is not None and len(match[1]) < 10 and int(match[1]) >= _FIRST_INSTANCE
    if rec.kind == "alloc":
        return rec.key in _PARTITIONS and rec.status == 0
    if rec.kind == "control" and rec.key == _GET_INFO_V2 and rec.par is not None:
        # NV2080_CTRL_GPU_GET_INFO_V2_PARAMS: a count, then pairs of index and data.
        data = rec.par
        count = min(int.from_bytes(data[:4], "little"), (len(data) - 4) // 8)
        pairs = (data[4 + 8 * at : 12 + 8 * at] for at in range(count))
        return any(
            int.from_bytes(pair[:4], "little") == _SMC_MODE and int.from_bytes(pair[4:], "little") == _ENABLED
            for pair in pairs
        )
    return False
