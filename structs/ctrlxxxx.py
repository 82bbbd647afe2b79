"""ctrl/ctrlxxxx.h: what controls of several classes share, and the shapes of list that nvproxy treats alike."""

from nvproxy_model.fields import CStruct, NvU8, NvU32, UserPointer
from nvproxy_model.structs.nvstatuscodes import NV_ERR_INVALID_ARGUMENT

NVXXXX_CTRL_XXX_INFO = CStruct(
    "NVXXXX_CTRL_XXX_INFO",
    "index" / NvU32,
    "data" / NvU32,
)


def info_list(of: CStruct, count: str) -> UserPointer:
    """A list of indices that the driver answers with data; with no elements the driver is shown NULL.

    gVisor: frontend.go, ctrlIoctlHasInfoList.
    """
    return UserPointer(of, count, empty="forward", refuse=NV_ERR_INVALID_ARGUMENT)


def u32_list(count: str) -> UserPointer:
    """A list of numbers; with NULL the driver only counts them, and the count is not judged.

    gVisor: frontend.go, ctrlGetNvU32List.
    """
    return UserPointer(NvU32, count, null="forward", refuse=NV_ERR_INVALID_ARGUMENT)


def caps_table(count: str) -> UserPointer:
    """A table of capability bits that the driver fills; NULL faults only when the table is copied out.

    gVisor: frontend.go, ctrlDevGetCaps.
    """
    return UserPointer(NvU8, count, mode="out", refuse=NV_ERR_INVALID_ARGUMENT)
