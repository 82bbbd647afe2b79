"""class/clcb33.h: confidential computing."""

from nvproxy_model.fields import CStruct, Handle

NV_CONFIDENTIAL_COMPUTE_ALLOC_PARAMS = CStruct(
    "NV_CONFIDENTIAL_COMPUTE_ALLOC_PARAMS",
    "hClient" / Handle(),
)
