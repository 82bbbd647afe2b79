"""Fields that name another client, or that carry what identifies a GPU, with their offsets in any release.

A client's handle in a field is one that the driver looks up for the caller: the resource manager separates processes, and in a
sandbox, as behind any proxy, every client is the sentry's (rmapi: sharing.c, serverInitGlobalSharePolicies();
client_resource.c, cliresShareCallback()). What identifies a GPU (its id, UUID, instance, PCI address) is another after a
restore on other GPUs, so a checkpoint has to translate it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from nvproxy_model.drivers.compare import model
from nvproxy_model.drivers.compare.findings import entries
from nvproxy_model.drivers.release import Release

__all__ = ["CLIENT", "KINDS", "Named", "named_fields"]

CLIENT: Final = "client"
GPU_ID, GPU_UUID, INSTANCE, PCI = "gpu-id", "gpu-uuid", "gpu-instance", "pci-address"
KINDS: Final = (CLIENT, GPU_ID, GPU_UUID, INSTANCE, PCI)
"""What a field names: another client, or a GPU in one of four ways."""

_CLIENT_NAME: Final = re.compile(r"ph?h\w*Client\w*|h\w*Client\w*")
_NAMES: Final = (
    (
        GPU_ID,
        re.compile(
            r"gpuIds?|gpuIdGrp[AB]|excludedGpuIds|gpu_id|failedId|attachedIds|probedIds|gpuIdTarget|remoteGpuId"
        ),
    ),
    (GPU_UUID, re.compile(r"gpu_?[uU]uid[AB]?|deviceUUID")),
    (INSTANCE, re.compile(r"deviceInstance|subDeviceInstance|gpuInstance(?:Id)?|deviceIds|minor_number")),
    (PCI, re.compile(r"(?:pci)?(?:domain|bus|slot|Domain|Bus|Slot)(?:Id|Number)?")),
)
# What no name says. The last two are lists of (index, data): the index says which of them carry an address.
_CURATED: Final = {
    ("NV0080_ALLOC_PARAMETERS", "deviceId"): (INSTANCE, "the GPU's device instance"),
    ("NV2080_ALLOC_PARAMETERS", "subDeviceId"): (INSTANCE, "an instance below the device"),
    ("NV2080_CTRL_GPU_GET_GID_INFO_PARAMS", "data"): (GPU_UUID, "text or binary, by a bit of flags"),
    ("NV2080_CTRL_BUS_GET_INFO_V2_PARAMS", "busInfoList[].data"): (PCI, "at index 0xf bus, 0x10 device, 0x2c domain"),
    ("NV2080_CTRL_GPU_GET_ID_PARAMS", "gpuId"): (GPU_ID, ""),
}


@dataclass(frozen=True, slots=True)
class Named:
    """One field. ``note`` says what its name does not; ``admitted`` whether a row of the tables uses the struct."""

    struct: str
    path: str
    offset: int
    size: int
    type: str
    what: str
    note: str
    admitted: bool


def named_fields(release: Release, listed: str, everything: bool = False) -> Iterator[Named]:
    """The fields of the structs that the tables of ``listed`` use, or of every struct, by struct and offset."""
    used = {row.struct for row in model.rows(listed) if row.struct is not None and not row.rule.rejected}
    for name in sorted(used | set(release.structs) if everything else used):
        layout = release.structs.get(name)
        if layout is None:
            continue
        for entry in entries(layout):
            found = _what(name, entry.path, entry.key, entry.field.name, entry.field.base)
            if found is not None:
                what, note = found
                yield Named(
                    name, entry.path, entry.offset, entry.field.size, entry.field.type, what, note, name in used
                )


def _what(struct: str, path: str, key: str, name: str, base: str) -> tuple[str, str] | None:
    for where in (path, key):
        if (struct, where) in _CURATED:
            return _CURATED[struct, where]
    if base in {"record", "ptr"}:
        return None
    if name == "uuid" and struct.startswith("UVM_"):
        return GPU_UUID, "an NvProcessorUuid"
    if _CLIENT_NAME.fullmatch(name) and base == "u32":
        return CLIENT, ""
    for what, pattern in _NAMES:
        if pattern.fullmatch(name):
            return what, ""
    return None
