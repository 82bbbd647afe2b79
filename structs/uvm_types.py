"""nvidia-uvm/uvm_types.h: types of the UVM interface."""

from nvproxy_model.fields import CStruct, NvU32
from nvproxy_model.structs.nvCpuUuid import NvProcessorUuid

UvmGpuMappingAttributes = CStruct(
    "UvmGpuMappingAttributes",
    "gpuUuid" / NvProcessorUuid,
    "gpuMappingType" / NvU32,
    "gpuCachingType" / NvU32,
    "gpuFormatType" / NvU32,
    "gpuElementBits" / NvU32,
    "gpuCompressionType" / NvU32,
)
