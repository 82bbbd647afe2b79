"""What is known about single refusals: which of them a program survives, which cost it something it does not mention. With the source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["DEVICES", "NOTES"]

_SILENT_EVENTS: Final = (
    "nsys profile --gpuctxsw=true goes on without it, exits 0, and its report has no GPU context switches: nothing says so "
    "(H200, 580.159.04, the call refused while all others passed)"
)
_SMC: Final = (
    "a MIG session that CUDA, NVML and the profilers ask for and do without: torch, cupy, a VMM program, nvidia-smi and "
    "nvidia-smi -q ran to exit 0 with it refused (H200, 580.159.04)"
)
_DISPLAY: Final = (
    "NVML's and nsys's question for a display engine. A datacenter GPU's own driver answers NV_ERR_NOT_SUPPORTED: nothing is lost there"
)
_CORE_DUMP: Final = "cuda-gdb and GPU core dumps read device memory with the 0x83de commands; without them a core dump is empty and nothing says so"
_UVM_TOOLS: Final = (
    "unified-memory events (page faults, migrations) for nsys and ncu. An nsys run without it wrote its report (H200, 580.159.04) and "
    "did not use managed memory: what such a program's report would lack was not measured"
)

NOTES: Final[Mapping[tuple[str, int], str]] = {
    ("alloc", 0x90CD): _SILENT_EVENTS,
    ("alloc", 0x90CE): _SILENT_EVENTS,
    ("control", 0x20801231): _SILENT_EVENTS,
    ("alloc", 0xC639): _SMC,
    ("alloc", 0xC640): _SMC,
    ("alloc", 0x73): _DISPLAY,
    ("alloc", 0x90CC): "ncu needs profiling: without it, exit 9 (H200, 580.159.04)",
    ("alloc", 0xB2CC): "ncu needs profiling: without it, exit 9 (H200, 580.159.04)",
    ("control", 0x83DE0307): _CORE_DUMP,
    ("control", 0x83DE0315): _CORE_DUMP,
    ("control", 0x83DE0317): _CORE_DUMP,
    ("control", 0x83DE0318): _CORE_DUMP,
    ("control", 0x83DE031F): _CORE_DUMP,
    ("control", 0x2080206F): "one profiler's calls in and outside a sandbox differed in this status alone (0x56 inside, 0 outside)",
    ("uvm", 57): _UVM_TOOLS,
    ("uvm", 58): _UVM_TOOLS,
    ("uvm", 76): _UVM_TOOLS,
    ("uvm", 77): _UVM_TOOLS,
    ("fe", 0xD7): "nvproxy always answers EINVAL: a sandbox's CPU topology is not the host's. CUDA goes on (frontend.go: rmNumaInfo)",
}
"""(kind, number) -> one sentence."""

DEVICES: Final[Mapping[str, str]] = {
    "/dev/nvidia-uvm-tools": _UVM_TOOLS,
    "/dev/nvidia-caps": "opened for MIG sessions (classes 0xc639, 0xc640), which programs do without: see there",
    "/dev/nvidia-modeset": "display mode setting; nsys tries it and goes on",
}
"""Path, or the folder it is in -> one sentence."""
