"""class/clb1cc.h: profilers of one context."""

from nvproxy_model.fields import CStruct, Handle

NVB1CC_ALLOC_PARAMETERS = CStruct(
    "NVB1CC_ALLOC_PARAMETERS",
    "hSubDevice" / Handle(),
    since="565.57.01",
)
