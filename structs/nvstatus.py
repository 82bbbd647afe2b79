"""nvstatus.h: the type of an NV status."""

from nvproxy_model.fields import NvU32, typedef

NV_STATUS = typedef("NV_STATUS", NvU32)
