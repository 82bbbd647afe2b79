"""class/clb2cc.h: profilers."""

from nvproxy_model.fields import CStruct, Handle

NVB2CC_ALLOC_PARAMETERS = CStruct(
    "NVB2CC_ALLOC_PARAMETERS",
    "hClientTarget" / Handle(),
    "hContextTarget" / Handle(),
)
