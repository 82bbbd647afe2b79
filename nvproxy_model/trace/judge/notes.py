"""What is known about single refusals: which of them a program survives, which cost it something it does not
mention. With the source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["DEVICES", "DONE_WITHOUT", "HARMLESS", "MEASURED", "NOTES"]

_SILENT_MEMORY: Final = (
    "nsys profile --gpuctxsw=true goes on without it, exits 0, and its report has no GPU context switches: nothing says so "
    "(H200, 580.159.04, all capabilities, this class alone refused)"
)
_SILENT_EVENTS: Final = (
    "the GPU context switches of nsys profile --gpuctxsw=true come through it; refused, their rows are empty and nothing says so "
    "(google/gvisor pull request 14005)"
)
_SMC: Final = (
    "a MIG session that CUDA, NVML and the profilers ask for and do without: torch, cupy, a VMM program, nvidia-smi and "
    "nvidia-smi -q ran to exit 0 with it refused (H200, 580.159.04)"
)
_DISPLAY: Final = (
    "NVML's and nsys's question for a display engine. A datacenter GPU's own driver answers NV_ERR_NOT_SUPPORTED: nothing "
    "is lost there"
)
_CORE_DUMP: Final = (
    "cuda-gdb and GPU core dumps read device memory with the 0x83de commands; without them a core dump is empty and nothing "
    "says so (google/gvisor pull request 13644)"
)
_NCU: Final = "ncu needs profiling: without it, exit 9 (H200, 580.159.04)"
_UVM_TOOLS: Final = (
    "unified-memory events (page faults, migrations) for nsys and ncu. An nsys run without it wrote its report (H200, "
    "580.159.04); whether the report of a program with managed memory would lack rows was not measured"
)
_ONE_STATUS: Final = "a profiler's runs in and outside a sandbox differed in this status alone: 0x56 inside, 0 outside"
_NUMA: Final = (
    "nvproxy always answers EINVAL, since a sandbox's CPU topology is not the host's (frontend.go: rmNumaInfo): every CUDA "
    "program in gVisor lives with it"
)

NOTES: Final[Mapping[tuple[str, int], str]] = {
    ("alloc", 0x90CD): _SILENT_EVENTS,
    ("alloc", 0x90CE): _SILENT_MEMORY,
    ("control", 0x20801231): _SILENT_EVENTS,
    ("alloc", 0xC639): _SMC,
    ("alloc", 0xC640): _SMC,
    ("alloc", 0x73): _DISPLAY,
    ("alloc", 0x90CC): _NCU,
    ("alloc", 0xB2CC): _NCU,
    ("control", 0x83DE0307): _CORE_DUMP,
    ("control", 0x83DE0315): _CORE_DUMP,
    ("control", 0x83DE0317): _CORE_DUMP,
    ("control", 0x83DE0318): _CORE_DUMP,
    ("control", 0x83DE031F): _CORE_DUMP,
    ("control", 0x2080206F): _ONE_STATUS,
    ("uvm", 57): _UVM_TOOLS,
    ("uvm", 58): _UVM_TOOLS,
    ("uvm", 76): _UVM_TOOLS,
    ("uvm", 77): _UVM_TOOLS,
    ("fe", 0xD7): _NUMA,
}
"""(kind, number) -> one sentence."""

DEVICES: Final[Mapping[str, str]] = {
    "/dev/nvidia-uvm-tools": _UVM_TOOLS,
    "/dev/nvidia-caps": "opened for MIG sessions (classes 0xc639, 0xc640), which programs do without: see there",
    "/dev/nvidia-modeset": "display mode setting; nsys tries it and goes on",
}
"""Path, or the folder it is in -> one sentence."""

HARMLESS: Final[frozenset[tuple[str, int | str]]] = frozenset(
    {
        ("alloc", 0xC639),
        ("alloc", 0xC640),
        ("open", "/dev/nvidia-caps/nvidia-cap1"),
        ("open", "/dev/nvidia-caps/nvidia-cap2"),
    }
)
"""(kind, number), or an open and its path: refusals that are known to be harmless (`MEASURED`).

The nodes are MIG's configuration and monitoring (nv-caps.c), opened for the two classes.
"""

MEASURED: Final = "seen on one H200 without MIG, driver 580.159.04"
"""Where it was seen that these are harmless."""

DONE_WITHOUT: Final[frozenset[tuple[str, int | str]]] = HARMLESS | {
    ("alloc", 0x73),
    ("fe", 0xD7),
    ("open", "/dev/nvidia-caps"),
    ("open", "/dev/nvidia-modeset"),
}
"""All refusals, or opens of a folder, after which every program measured went on and lost nothing: what is harmless, what nvproxy
refuses to everybody, and what a datacenter GPU's own driver refuses."""
