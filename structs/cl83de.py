"""class/cl83de.h: debugger sessions."""

from nvproxy_model.fields import CStruct, Handle

NV83DE_ALLOC_PARAMETERS = CStruct(
    "NV83DE_ALLOC_PARAMETERS",
    "hDebuggerClient_Obsolete" / Handle(),
    "hAppClient" / Handle(),
    "hClass3dObject" / Handle(depends=True),
)
