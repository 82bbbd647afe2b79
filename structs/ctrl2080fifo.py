"""ctrl/ctrl2080/ctrl2080fifo.h: channels of a subdevice."""

from nvproxy_model.fields import CStruct, Handle, NvBool, NvU32, OpaquePointer

NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS = CStruct(
    "NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS",
    "bDisable" / NvBool,
    "numChannels" / NvU32,
    "bOnlyDisableScheduling" / NvBool,
    "bRewindGpPut" / NvBool,
    "pRunlistPreemptEvent"
    / OpaquePointer(null_only=True),  # an event of kernel clients. gVisor: ctrlSubdevFIFODisableChannels
    "hClientList" / Handle()[64],
    "hChannelList" / Handle()[64],
)
