"""Which calls run in the program itself, and why: they bind to the process, or to its address space, that makes them.

They are decided first, then let through with SECCOMP_USER_NOTIF_FLAG_CONTINUE. That is advice and no more: another thread of the
program can change the arguments after they were read.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from nvproxy_model.abi import constants as nv
from nvproxy_model.policy.handlers import offset
from nvproxy_model.session.ports import Buffer, Pages
from nvproxy_model.structs.nvos import NVOS54_PARAMETERS, NVOS64_PARAMETERS

__all__ = ["IN_PLACE", "Place", "find", "looks_at_descriptors"]


class Place(NamedTuple):
    """One call, or with ``number`` None a whole table of them, that must run where it was made."""

    table: str
    number: int | None
    why: str


_CLIENT: Final = (
    "the client keeps the process that made it, and a UVM GPU VA space is shared with that process alone "
    "(client.c: ProcID; client_resource.c); elsewhere UVM_REGISTER_GPU_VASPACE fails with 0x1b"
)
_MAPPING: Final = (
    "the client's process is compared with the caller's (osapi.c: RmCreateMmapContextLocked; rs_utils.c; mapping_cpu.c); "
    "elsewhere 0x23"
)
_SPACE: Final = "the file belongs to the address space of UVM_INITIALIZE (uvm.c: uvm_initialize)"
_P2P: Final = "it records the caller's process (third_party_p2p.c), which nvidia_p2p_get_pages looks up (p2p.c)"

IN_PLACE: Final = (
    Place("alloc", nv.NV01_ROOT, _CLIENT),
    Place("alloc", nv.NV01_ROOT_NON_PRIV, _CLIENT),
    Place("alloc", nv.NV01_ROOT_CLIENT, _CLIENT),
    Place("alloc", 0x503C, _P2P),  # NV50_THIRD_PARTY_P2P; its command REGISTER_PID has no row in any release
    Place("frontend", 0x4E, _MAPPING),  # NV_ESC_RM_MAP_MEMORY
    Place("frontend", 0x4F, _MAPPING),  # NV_ESC_RM_UNMAP_MEMORY
    Place("frontend", 0x5E, _MAPPING),  # NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO
    Place(
        "uvm", 0x30000001, f"{_SPACE}; nvproxy would have set UVM_INIT_FLAGS_MULTI_PROCESS_SHARING_MODE"
    ),  # UVM_INITIALIZE
    Place("uvm", None, _SPACE),
    Place("pages", None, "the pages that the driver pins are the program's own (NV01_MEMORY_SYSTEM_OS_DESCRIPTOR)"),
)
"""Measured with 580.159.04 on an H200; everything else was performed from another process with the same answers."""


def looks_at_descriptors(request: int, arg: Buffer | None) -> bool:
    """Whether the driver looks for a GPU's device node among the open files of whichever process makes the call.

    It does for a new device alone (device.c: deviceConstruct_IMPL => osIsGpuAccessible; nv.c: nv_is_gpu_accessible): without one
    the answer is NV_ERR_INSUFFICIENT_PERMISSIONS.
    """
    return request & 0xFF == 0x2B and arg is not None and arg.data[_HCLASS : _HCLASS + 4] == _DEVICE


_DEVICE: Final = nv.NV01_DEVICE_0.to_bytes(4, "little")
_CMD, _HCLASS = offset(NVOS54_PARAMETERS, "cmd"), offset(NVOS64_PARAMETERS, "hClass")
_INNER: Final = {0x2A: ("control", _CMD), 0x2B: ("alloc", _HCLASS)}


def find(places: tuple[Place, ...], kind: str, request: int, arg: Buffer | None) -> Place | None:
    """The entry for a call that the host is about to be given; ``kind`` is its file's."""
    table, number = ("uvm", request) if kind == "uvm" else ("frontend", request & 0xFF)
    if table == "frontend" and arg is not None and number in _INNER:
        table, at = _INNER[number]
        number = int.from_bytes(arg.data[at : at + 4], "little")
    pages = arg is not None and any(isinstance(behind, Pages) for behind in arg.pointers.values())
    for place in places:
        if place.table == table and place.number in (None, number):
            return place
        if place.table == "pages" and pages:
            return place
    return None
