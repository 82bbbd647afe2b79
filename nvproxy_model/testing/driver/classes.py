"""The driver's resource list: under which parents a class may be allocated, with or without parameters, since when.

src/nvidia/src/kernel/rmapi/resource_list.h of 36 releases, 535.104.05 to 610.57.04. Neither parents nor the need for parameters
ever changed; classes only came. A release after those has what they have, and the video engines that nvproxy lists for it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from nvproxy_model import abi
from nvproxy_model.abi.constants import NV01_EVENT, NV01_MEMORY_SYSTEM_OS_DESCRIPTOR
from nvproxy_model.versions import DriverVersion

__all__ = ["ANY", "Kind", "Resource", "at"]

Kind = Literal["client", "device", "subdevice", "channel", "group", "leaf"]
"""What a class is to those below it."""

ANY = ("any",)
_CLIENT, _DEVICE, _SUBDEVICE, _CHANNEL, _GROUP = ("client",), ("device",), ("subdevice",), ("channel",), ("group",)


@dataclass(frozen=True, slots=True)
class Resource:
    """One class: ``params`` is required, optional or none; ``parents`` are kinds, of which ``kind`` is this class's own."""

    name: str
    params: str
    parents: tuple[str, ...]
    since: tuple[str, ...]

    @property
    def kind(self) -> Kind:
        """What the class is to those below it."""
        return _KINDS.get(self.name, "channel" if "_CHANNEL_GPFIFO_" in self.name else "leaf")


_KINDS: Mapping[str, Kind] = {
    "NV01_ROOT": "client",
    "NV01_ROOT_NON_PRIV": "client",
    "NV01_ROOT_CLIENT": "client",
    "NV01_DEVICE_0": "device",
    "NV20_SUBDEVICE_0": "subdevice",
    "KEPLER_CHANNEL_GROUP_A": "group",
}

_ROWS: tuple[tuple[tuple[str, ...], str, tuple[str, ...], str], ...] = (
    ((), "optional", (), "NV01_ROOT NV01_ROOT_NON_PRIV NV01_ROOT_CLIENT"),
    (ANY, "required", (), "NV01_CONTEXT_DMA NV01_EVENT NV01_EVENT_OS_EVENT"),
    (_CLIENT, "none", (), "MPS_COMPUTE"),
    (_CLIENT, "optional", (), "NV01_DEVICE_0 NV_CONFIDENTIAL_COMPUTE"),
    (_CLIENT, "required", (), "NV_EVENT_BUFFER NV50_P2P NV01_MEMORY_DEVICELESS NV_MEMORY_MULTICAST_FABRIC"),
    (_CLIENT, "required", ("550.40.07",), "NV_IMEX_SESSION NV_MEMORY_EXPORT NV_MEMORY_FABRIC_IMPORTED_REF"),
    (_DEVICE, "none", (), "NV04_DISPLAY_COMMON"),
    (_DEVICE, "optional", (), "NV20_SUBDEVICE_0"),
    (
        _DEVICE,
        "required",
        (),
        "GT200_DEBUGGER KEPLER_CHANNEL_GROUP_A NV50_MEMORY_VIRTUAL NV01_MEMORY_SYSTEM NV01_MEMORY_VIRTUAL "
        "NV01_MEMORY_SYSTEM_OS_DESCRIPTOR",
    ),
    (_DEVICE + _SUBDEVICE, "required", (), "NV01_MEMORY_LOCAL_USER FERMI_VASPACE_A"),
    (_DEVICE + _GROUP, "required", (), "TURING_CHANNEL_GPFIFO_A AMPERE_CHANNEL_GPFIFO_A HOPPER_CHANNEL_GPFIFO_A"),
    (_DEVICE + _GROUP, "required", ("560.28.03",), "BLACKWELL_CHANNEL_GPFIFO_A"),
    (_DEVICE + _GROUP, "required", ("570.86.15",), "BLACKWELL_CHANNEL_GPFIFO_B"),
    (
        _SUBDEVICE,
        "none",
        (),
        "GF100_SUBDEVICE_MASTER NV20_SUBDEVICE_DIAG GF100_ZBC_CLEAR VOLTA_USERMODE_A TURING_USERMODE_A "
        "NV_COUNTER_COLLECTION_UNIT",
    ),
    (_SUBDEVICE, "none", ("535.129.03", "545.23.06"), "GF100_SUBDEVICE_INFOROM"),
    (_SUBDEVICE, "optional", (), "NV2081_BINAPI NV50_THIRD_PARTY_P2P HOPPER_USERMODE_A"),
    (_SUBDEVICE, "optional", ("570.86.15",), "BLACKWELL_USERMODE_A"),
    (
        _SUBDEVICE,
        "required",
        (),
        "NV_SEMAPHORE_SURFACE MAXWELL_PROFILER_DEVICE NV_MEMORY_MAPPER NV_MEMORY_FABRIC RM_USER_SHARED_DATA",
    ),
    (_SUBDEVICE, "required", ("550.40.07",), "NVENC_SW_SESSION"),
    (_SUBDEVICE + _CHANNEL + _GROUP, "none", (), "GF100_PROFILER"),
    (_CHANNEL + _GROUP, "required", ("565.57.01",), "MAXWELL_PROFILER_CONTEXT"),
    (_GROUP, "required", (), "FERMI_CONTEXT_SHARE_A"),
    (_CHANNEL, "required", (), "GF100_DISP_SW"),
    (_CHANNEL, "none", (), "HOPPER_SEC2_WORK_LAUNCH_A"),
    (
        _CHANNEL,
        "optional",
        (),
        "TURING_DMA_COPY_A AMPERE_DMA_COPY_A AMPERE_DMA_COPY_B HOPPER_DMA_COPY_A NVB8B0_VIDEO_DECODER NVC4B0_VIDEO_DECODER "
        "NVC6B0_VIDEO_DECODER NVC7B0_VIDEO_DECODER NVC9B0_VIDEO_DECODER NVB8D1_VIDEO_NVJPG NVC4D1_VIDEO_NVJPG "
        "NVC9D1_VIDEO_NVJPG NVB8FA_VIDEO_OFA NVC6FA_VIDEO_OFA NVC7FA_VIDEO_OFA NVC9FA_VIDEO_OFA NVC4B7_VIDEO_ENCODER "
        "NVC7B7_VIDEO_ENCODER NVC9B7_VIDEO_ENCODER AMPERE_A AMPERE_COMPUTE_A AMPERE_COMPUTE_B ADA_A ADA_COMPUTE_A HOPPER_A "
        "HOPPER_COMPUTE_A AMPERE_B FERMI_TWOD_A KEPLER_INLINE_TO_MEMORY_B TURING_A TURING_COMPUTE_A",
    ),
    (
        _CHANNEL,
        "optional",
        ("560.28.03",),
        "BLACKWELL_DMA_COPY_A NVCDB0_VIDEO_DECODER NVCDD1_VIDEO_NVJPG NVCDFA_VIDEO_OFA BLACKWELL_A BLACKWELL_COMPUTE_A "
        "BLACKWELL_INLINE_TO_MEMORY_A",
    ),
    (
        _CHANNEL,
        "optional",
        ("570.86.15",),
        "BLACKWELL_DMA_COPY_B NVCFB0_VIDEO_DECODER NVCFD1_VIDEO_NVJPG NVCFFA_VIDEO_OFA NVCFB7_VIDEO_ENCODER BLACKWELL_B "
        "BLACKWELL_COMPUTE_B",
    ),
    (
        _CHANNEL,
        "optional",
        ("580.65.06",),
        "NVCEB0_VIDEO_DECODER NVD1B0_VIDEO_DECODER NVCEFA_VIDEO_OFA NVD1FA_VIDEO_OFA NVD1B7_VIDEO_ENCODER NVCEB7_VIDEO_ENCODER",
    ),
    (_CHANNEL, "optional", ("610.43.02",), "NVD2B0_VIDEO_DECODER NVD2D1_VIDEO_NVJPG NVD2FA_VIDEO_OFA"),
)


@functools.cache
def _numbers() -> Mapping[str, int]:
    numbers = {rule.name: rule.number for rule in abi.ALLOC}
    return {
        **numbers,
        "NV01_EVENT": NV01_EVENT,
        "NV01_MEMORY_SYSTEM_OS_DESCRIPTOR": NV01_MEMORY_SYSTEM_OS_DESCRIPTOR,
    }


@functools.cache
def at(version: DriverVersion) -> Mapping[int, Resource]:
    """The resource list of one release, by class number."""
    return {
        _numbers()[name]: Resource(name, params, parents, since)
        for parents, params, since, names in _ROWS
        for name in names.split()
        if not since or any(map(version.descends_from, since))
    }
