"""nvidia-uvm/uvm_linux_ioctl.h: the two commands of /dev/nvidia-uvm that only Linux has."""

from nvproxy_model.fields import CStruct, NvU64, Status
from nvproxy_model.structs.nvstatus import NV_STATUS

UVM_INITIALIZE_PARAMS = CStruct(
    "UVM_INITIALIZE_PARAMS",
    "flags" / NvU64,
    "rmStatus" / Status(NV_STATUS),
)
