"""nvCpuUuid.h: UUIDs."""

from nvproxy_model.fields import CStruct, NvU8

NvProcessorUuid = CStruct(
    "NvProcessorUuid",
    "uuid" / NvU8[16],
)
