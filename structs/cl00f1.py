"""class/cl00f1.h: IMEX sessions."""

from nvproxy_model.fields import CStruct, Fd, NvP64, NvU16, NvU32, NvU64

NV00F1_ALLOCATION_PARAMETERS = CStruct(
    "NV00F1_ALLOCATION_PARAMETERS",
    "capDescriptor" / Fd(NvU64, file="open-only"),  # a file of nvidia-caps or of an IMEX channel
    "flags" / NvU32,
    "pOsEvent" / Fd(NvP64),  # not optional: 0 is looked up as descriptor 0. gVisor: rmAllocIMEXSession
    "nodeId" / NvU16,
    since="550.40.07",
)
