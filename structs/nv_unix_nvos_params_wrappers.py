"""nv-unix-nvos-params-wrappers.h: RM escapes that carry a descriptor."""

from nvproxy_model.fields import CStruct, Fd, c_int
from nvproxy_model.structs.nvos import NVOS02_PARAMETERS, NVOS33_PARAMETERS

nv_ioctl_nvos02_parameters_with_fd = CStruct(
    "nv_ioctl_nvos02_parameters_with_fd",
    "params" / NVOS02_PARAMETERS,
    "fd" / Fd(c_int),  # of the file to map; -1 for the driver where nothing is. gVisor: rmAllocMemory
)

nv_ioctl_nvos33_parameters_with_fd = CStruct(
    "nv_ioctl_nvos33_parameters_with_fd",
    "params" / NVOS33_PARAMETERS,
    "fd" / Fd(c_int),
)
