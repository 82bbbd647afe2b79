"""The escapes of /dev/nvidiactl and /dev/nvidiaN by name, and the structs that the driver gives them.

Numbers: nv_escape.h, nv-ioctl-numbers.h. Structs: the type that each case of escape.c:RmIoctl() and nv.c:nvidia_ioctl()
gives its data; no header says it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["ARGUMENTS", "NAMES", "NUMBERS"]

NV_ESC_RM_ALLOC_MEMORY: Final = 0x27
NV_ESC_RM_ALLOC_OBJECT: Final = 0x28
NV_ESC_RM_FREE: Final = 0x29
NV_ESC_RM_CONTROL: Final = 0x2A
NV_ESC_RM_ALLOC: Final = 0x2B
NV_ESC_RM_CONFIG_GET: Final = 0x32
NV_ESC_RM_CONFIG_SET: Final = 0x33
NV_ESC_RM_DUP_OBJECT: Final = 0x34
NV_ESC_RM_SHARE: Final = 0x35
NV_ESC_RM_CONFIG_GET_EX: Final = 0x37
NV_ESC_RM_CONFIG_SET_EX: Final = 0x38
NV_ESC_RM_I2C_ACCESS: Final = 0x39
NV_ESC_RM_IDLE_CHANNELS: Final = 0x41
NV_ESC_RM_VID_HEAP_CONTROL: Final = 0x4A
NV_ESC_RM_ACCESS_REGISTRY: Final = 0x4D
NV_ESC_RM_MAP_MEMORY: Final = 0x4E
NV_ESC_RM_UNMAP_MEMORY: Final = 0x4F
NV_ESC_RM_GET_EVENT_DATA: Final = 0x52
NV_ESC_RM_ALLOC_CONTEXT_DMA2: Final = 0x54
NV_ESC_RM_ADD_VBLANK_CALLBACK: Final = 0x56
NV_ESC_RM_MAP_MEMORY_DMA: Final = 0x57
NV_ESC_RM_UNMAP_MEMORY_DMA: Final = 0x58
NV_ESC_RM_BIND_CONTEXT_DMA: Final = 0x59
NV_ESC_RM_EXPORT_OBJECT_TO_FD: Final = 0x5C
NV_ESC_RM_IMPORT_OBJECT_FROM_FD: Final = 0x5D
NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO: Final = 0x5E
NV_ESC_RM_NVLOG_CTRL: Final = 0x5F
"""The next one's name before 545.23.06."""
NV_ESC_RM_LOCKLESS_DIAGNOSTIC: Final = 0x5F
NV_ESC_CARD_INFO: Final = 0xC8
NV_ESC_REGISTER_FD: Final = 0xC9
NV_ESC_ALLOC_OS_EVENT: Final = 0xCE
NV_ESC_FREE_OS_EVENT: Final = 0xCF
NV_ESC_STATUS_CODE: Final = 0xD1
NV_ESC_CHECK_VERSION_STR: Final = 0xD2
NV_ESC_IOCTL_XFER_CMD: Final = 0xD3
NV_ESC_ATTACH_GPUS_TO_FD: Final = 0xD4
NV_ESC_QUERY_DEVICE_INTR: Final = 0xD5
NV_ESC_SYS_PARAMS: Final = 0xD6
NV_ESC_NUMA_INFO: Final = 0xD7
NV_ESC_SET_NUMA_STATUS: Final = 0xD8
NV_ESC_EXPORT_TO_DMABUF_FD: Final = 0xD9
NV_ESC_WAIT_OPEN_COMPLETE: Final = 0xDA

NUMBERS: Final[Mapping[str, int]] = {
    name: value for name, value in tuple(globals().items()) if name.startswith("NV_ESC_")
}
"""Name -> number, of every escape above."""
NAMES: Final[Mapping[int, str]] = {value: name for name, value in NUMBERS.items()}
"""Number -> newest name."""
__all__ += list(NUMBERS)

ARGUMENTS: Final[Mapping[int, tuple[str, ...]]] = {
    NV_ESC_RM_ALLOC_MEMORY: ("nv_ioctl_nvos02_parameters_with_fd",),
    NV_ESC_RM_ALLOC_OBJECT: ("NVOS05_PARAMETERS",),
    NV_ESC_RM_FREE: ("NVOS00_PARAMETERS",),
    NV_ESC_RM_CONTROL: ("NVOS54_PARAMETERS",),
    NV_ESC_RM_ALLOC: ("NVOS64_PARAMETERS", "NVOS21_PARAMETERS"),
    NV_ESC_RM_DUP_OBJECT: ("NVOS55_PARAMETERS",),
    NV_ESC_RM_SHARE: ("NVOS57_PARAMETERS",),
    NV_ESC_RM_I2C_ACCESS: ("NVOS_I2C_ACCESS_PARAMS",),
    NV_ESC_RM_IDLE_CHANNELS: ("NVOS30_PARAMETERS",),
    NV_ESC_RM_VID_HEAP_CONTROL: ("NVOS32_PARAMETERS",),
    NV_ESC_RM_ACCESS_REGISTRY: ("NVOS38_PARAMETERS",),
    NV_ESC_RM_MAP_MEMORY: ("nv_ioctl_nvos33_parameters_with_fd",),
    NV_ESC_RM_UNMAP_MEMORY: ("NVOS34_PARAMETERS",),
    NV_ESC_RM_GET_EVENT_DATA: ("NVOS41_PARAMETERS",),
    NV_ESC_RM_ALLOC_CONTEXT_DMA2: ("NVOS39_PARAMETERS",),
    NV_ESC_RM_MAP_MEMORY_DMA: ("NVOS46_PARAMETERS",),
    NV_ESC_RM_UNMAP_MEMORY_DMA: ("NVOS47_PARAMETERS",),
    NV_ESC_RM_BIND_CONTEXT_DMA: ("NVOS49_PARAMETERS",),
    NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO: ("NVOS56_PARAMETERS",),
    NV_ESC_CARD_INFO: ("nv_ioctl_card_info_t",),
    NV_ESC_REGISTER_FD: ("nv_ioctl_register_fd_t",),
    NV_ESC_ALLOC_OS_EVENT: ("nv_ioctl_alloc_os_event_t",),
    NV_ESC_FREE_OS_EVENT: ("nv_ioctl_free_os_event_t",),
    NV_ESC_STATUS_CODE: ("nv_ioctl_status_code_t",),
    NV_ESC_CHECK_VERSION_STR: ("nv_ioctl_rm_api_version_t",),
    NV_ESC_IOCTL_XFER_CMD: ("nv_ioctl_xfer_t",),
    NV_ESC_QUERY_DEVICE_INTR: ("nv_ioctl_query_device_intr",),
    NV_ESC_SYS_PARAMS: ("nv_ioctl_sys_params_t",),
    NV_ESC_NUMA_INFO: ("nv_ioctl_numa_info_t",),
    NV_ESC_SET_NUMA_STATUS: ("nv_ioctl_set_numa_status_t",),
    NV_ESC_EXPORT_TO_DMABUF_FD: ("nv_ioctl_export_to_dma_buf_fd_t",),
    NV_ESC_WAIT_OPEN_COMPLETE: ("nv_ioctl_wait_open_complete_t",),
}
"""Number -> the structs that it takes, the newest form first. NV_ESC_ATTACH_GPUS_TO_FD takes an array of NvU32."""
