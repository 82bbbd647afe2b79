"""class/cl00de.h: RM_USER_SHARED_DATA."""

from nvproxy_model.fields import CStruct, NvU32, NvU64, since, until

NV00DE_ALLOC_PARAMETERS = CStruct(
    "NV00DE_ALLOC_PARAMETERS",
    until("545.23.06", "reserved" / NvU32),
    since("545.23.06", "polledDataMask" / NvU64),
)
