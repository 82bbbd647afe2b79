"""ctrl/ctrl2080/ctrl2080gpu.h: register operations and engines."""

from nvproxy_model.fields import CStruct, Handle, NvU8, NvU32, UserPointer
from nvproxy_model.structs.ctrl2080gr import NV2080_CTRL_GR_ROUTE_INFO
from nvproxy_model.structs.ctrlxxxx import u32_list
from nvproxy_model.structs.nvstatuscodes import NV_ERR_INVALID_ARGUMENT

NV2080_CTRL_GPU_REG_OP = CStruct(
    "NV2080_CTRL_GPU_REG_OP",
    "regOp" / NvU8,
    "regType" / NvU8,
    "regStatus" / NvU8,
    "regQuad" / NvU8,
    "regGroupMask" / NvU32,
    "regSubGroupMask" / NvU32,
    "regOffset" / NvU32,
    "regValueHi" / NvU32,
    "regValueLo" / NvU32,
    "regAndNMaskHi" / NvU32,
    "regAndNMaskLo" / NvU32,
)

NV2080_CTRL_GPU_EXEC_REG_OPS_PARAMS = CStruct(
    "NV2080_CTRL_GPU_EXEC_REG_OPS_PARAMS",
    "hClientTarget" / Handle(),
    "hChannelTarget" / Handle(),
    "bNonTransactional" / NvU32,
    "reserved00" / NvU32[2],
    "regOpCount" / NvU32,
    "regOps" / UserPointer(NV2080_CTRL_GPU_REG_OP, "regOpCount", null="forward", refuse=NV_ERR_INVALID_ARGUMENT),
    "grRouteInfo" / NV2080_CTRL_GR_ROUTE_INFO,
)

NV2080_CTRL_GPU_GET_ENGINES_PARAMS = CStruct(
    "NV2080_CTRL_GPU_GET_ENGINES_PARAMS",
    "engineCount" / NvU32,
    "engineList" / u32_list("engineCount"),
)
