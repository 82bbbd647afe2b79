"""ctrl/ctrl503c.h: third-party peer-to-peer objects."""

from nvproxy_model.fields import CStruct, Handle, NvU64

NV503C_CTRL_REGISTER_VA_SPACE_PARAMS = CStruct(
    "NV503C_CTRL_REGISTER_VA_SPACE_PARAMS",
    "hVASpace" / Handle(depends=True),
    "vaSpaceToken" / NvU64,
)
