"""ctrl/ctrl00fd.h: multicast fabric memory."""

from nvproxy_model.fields import CStruct, Fd, Handle, NvU32, NvU64

NV00FD_CTRL_ATTACH_GPU_PARAMS = CStruct(
    "NV00FD_CTRL_ATTACH_GPU_PARAMS",
    "hSubdevice" / Handle(),
    "flags" / NvU32,
    "devDescriptor" / Fd(NvU64),  # gVisor: ctrlMemoryMulticastFabricAttachGPU
)
