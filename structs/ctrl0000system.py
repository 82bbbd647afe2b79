"""ctrl/ctrl0000/ctrl0000system.h: the system at large."""

from nvproxy_model.fields import CStruct, NvU8, NvU32, UserPointer, char, since
from nvproxy_model.structs.nvstatuscodes import NV_ERR_INVALID_ARGUMENT

# A NULL among the three asks for none; nvproxy_model.policy.handlers clamps the size and sees to that.
_STRING = UserPointer(char, "sizeOfStrings", mode="out", null="forward", late=True)

NV0000_CTRL_SYSTEM_GET_BUILD_VERSION_PARAMS = CStruct(
    "NV0000_CTRL_SYSTEM_GET_BUILD_VERSION_PARAMS",
    "sizeOfStrings" / NvU32,
    "pDriverVersionBuffer" / _STRING,
    "pVersionBuffer" / _STRING,
    "pTitleBuffer" / _STRING,
    "changelistNumber" / NvU32,
    "officialChangelistNumber" / NvU32,
)

# embedded_param_copy.c: a matrix of gpuCount rows and columns.
_PEER_IDS = UserPointer(NvU32, ("square", "gpuCount"), mode="out", null="forward", refuse=NV_ERR_INVALID_ARGUMENT)

NV0000_CTRL_SYSTEM_GET_P2P_CAPS_PARAMS = CStruct(
    "NV0000_CTRL_SYSTEM_GET_P2P_CAPS_PARAMS",
    "gpuIds" / NvU32[32],
    "gpuCount" / NvU32,
    "p2pCaps" / NvU32,
    "p2pOptimalReadCEs" / NvU32,
    "p2pOptimalWriteCEs" / NvU32,
    "p2pCapsStatus" / NvU8[9],
    "busPeerIds" / _PEER_IDS,
    since("550.40.07", "busEgmPeerIds" / _PEER_IDS),
)
