"""class/cl00da.h: semaphore surfaces."""

from nvproxy_model.fields import CStruct, Handle, NvU64

NV_SEMAPHORE_SURFACE_ALLOC_PARAMETERS = CStruct(
    "NV_SEMAPHORE_SURFACE_ALLOC_PARAMETERS",
    "hSemaphoreMem" / Handle(),
    "hMaxSubmittedMem" / Handle(),
    "flags" / NvU64,
)
