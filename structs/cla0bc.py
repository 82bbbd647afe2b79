"""class/cla0bc.h: NVENC software sessions."""

from nvproxy_model.fields import CStruct, Handle, NvU32

NVA0BC_ALLOC_PARAMETERS = CStruct(
    "NVA0BC_ALLOC_PARAMETERS",
    "codecType" / NvU32,
    "hResolution" / NvU32,
    "vResolution" / NvU32,
    "version" / NvU32,
    "hMem" / Handle(),
    since="550.40.07",
)
