"""class/cl00fd.h: multicast fabric memory."""

from nvproxy_model.fields import CStruct, Fd, NvP64, NvU16, NvU32, NvU64, since, until
from nvproxy_model.structs.cl00e0 import NV_EXPORT_MEM_PACKET

NV00FD_ALLOCATION_PARAMETERS = CStruct(
    "NV00FD_ALLOCATION_PARAMETERS",
    since("545.23.06", "expPacket" / NV_EXPORT_MEM_PACKET, "index" / NvU16),
    "alignment" / NvU64,
    "allocSize" / NvU64,
    until("590.44.01", "pageSize" / NvU32),
    since("590.44.01", "pageSize" / NvU64),
    "allocFlags" / NvU32,
    "numGpus" / NvU32,
    "pOsEvent" / Fd(NvP64, null=0),  # mem_multicast_fabric.c => osUserHandleToKernelPtr()
)
