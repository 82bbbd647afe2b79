"""ctrl/ctrl83de/ctrl83dedebug.h: the debugger."""

from nvproxy_model.fields import CStruct, NvU8, NvU32, NvU64, UserPointer
from nvproxy_model.structs.nvstatuscodes import NV_ERR_INVALID_ARGUMENT

# The driver has no bound of its own; 1 GiB is gVisor's: frontend_unsafe.go, debugReadMemoryMaxLength.
_MEMORY = UserPointer(
    NvU8, "length", limit=1 << 30, mode="out", null="judge", empty="forward", refuse=NV_ERR_INVALID_ARGUMENT
)

NV83DE_CTRL_DEBUG_READ_MEMORY_PARAMS = CStruct(
    "NV83DE_CTRL_DEBUG_READ_MEMORY_PARAMS",
    "hMemory" / NvU32,
    "length" / NvU32,
    "offset" / NvU64,
    "buffer" / _MEMORY,
)
