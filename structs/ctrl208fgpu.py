"""ctrl/ctrl208f/ctrl208fgpu.h: diagnostics."""

from nvproxy_model.fields import CStruct, NvU32

NV208F_CTRL_GPU_VERIFY_INFOROM_PARAMS = CStruct(
    "NV208F_CTRL_GPU_VERIFY_INFOROM_PARAMS",
    "result" / NvU32,
    "checksum" / NvU32,
)
