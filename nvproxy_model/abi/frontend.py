"""Escapes of /dev/nvidiactl and /dev/nvidiaN, by ioctl number. gVisor: version.go, frontendIoctl."""

from nvproxy_model.abi import escapes
from nvproxy_model.caps import Caps
from nvproxy_model.rules import Rule, frontend, reject

COMPUTE, GRAPHICS, UTILITY, VIDEO, RDMA = Caps.COMPUTE, Caps.GRAPHICS, Caps.UTILITY, Caps.VIDEO, Caps.RDMA

FRONTEND: tuple[Rule, ...] = (
    frontend(
        escapes.NV_ESC_RM_ALLOC_MEMORY,
        "NV_ESC_RM_ALLOC_MEMORY",
        COMPUTE | GRAPHICS | UTILITY,
        "nv_unix_nvos_params_wrappers.nv_ioctl_nvos02_parameters_with_fd",
        handler="alloc_memory",
    ),
    frontend(escapes.NV_ESC_RM_FREE, "NV_ESC_RM_FREE", COMPUTE | UTILITY, "nvos.NVOS00_PARAMETERS", handler="free"),
    frontend(
        escapes.NV_ESC_RM_CONTROL, "NV_ESC_RM_CONTROL", COMPUTE | UTILITY, "nvos.NVOS54_PARAMETERS", handler="control"
    ),
    frontend(escapes.NV_ESC_RM_ALLOC, "NV_ESC_RM_ALLOC", COMPUTE | UTILITY, "nvos.NVOS64_PARAMETERS", handler="alloc"),
    frontend(
        escapes.NV_ESC_RM_DUP_OBJECT,
        "NV_ESC_RM_DUP_OBJECT",
        COMPUTE | UTILITY,
        "nvos.NVOS55_PARAMETERS",
        handler="dup_object",
    ),
    frontend(escapes.NV_ESC_RM_SHARE, "NV_ESC_RM_SHARE", COMPUTE | UTILITY, "nvos.NVOS57_PARAMETERS"),
    frontend(escapes.NV_ESC_RM_IDLE_CHANNELS, "NV_ESC_RM_IDLE_CHANNELS", GRAPHICS, "nvos.NVOS30_PARAMETERS"),
    frontend(
        escapes.NV_ESC_RM_VID_HEAP_CONTROL,
        "NV_ESC_RM_VID_HEAP_CONTROL",
        COMPUTE | UTILITY,
        "nvos.NVOS32_PARAMETERS",
        handler="vid_heap_control",
    ),
    frontend(
        escapes.NV_ESC_RM_MAP_MEMORY,
        "NV_ESC_RM_MAP_MEMORY",
        COMPUTE | UTILITY,
        "nv_unix_nvos_params_wrappers.nv_ioctl_nvos33_parameters_with_fd",
        handler="map_memory",
    ),
    frontend(escapes.NV_ESC_RM_UNMAP_MEMORY, "NV_ESC_RM_UNMAP_MEMORY", COMPUTE | UTILITY, "nvos.NVOS34_PARAMETERS"),
    frontend(
        escapes.NV_ESC_RM_ALLOC_CONTEXT_DMA2,
        "NV_ESC_RM_ALLOC_CONTEXT_DMA2",
        GRAPHICS,
        "nvos.NVOS39_PARAMETERS",
        handler="alloc_context_dma2",
    ),
    frontend(escapes.NV_ESC_RM_MAP_MEMORY_DMA, "NV_ESC_RM_MAP_MEMORY_DMA", GRAPHICS | VIDEO, "nvos.NVOS46_PARAMETERS"),
    frontend(
        escapes.NV_ESC_RM_UNMAP_MEMORY_DMA, "NV_ESC_RM_UNMAP_MEMORY_DMA", GRAPHICS | VIDEO, "nvos.NVOS47_PARAMETERS"
    ),
    frontend(
        escapes.NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO,
        "NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO",
        COMPUTE | UTILITY,
        "nvos.NVOS56_PARAMETERS",
    ),
    frontend(escapes.NV_ESC_CARD_INFO, "NV_ESC_CARD_INFO", COMPUTE | UTILITY, "nv_ioctl_card_info_t"),
    frontend(
        escapes.NV_ESC_REGISTER_FD,
        "NV_ESC_REGISTER_FD",
        COMPUTE | UTILITY,
        "nv_ioctl.nv_ioctl_register_fd_t",
        handler="in_only",
    ),
    frontend(
        escapes.NV_ESC_ALLOC_OS_EVENT,
        "NV_ESC_ALLOC_OS_EVENT",
        COMPUTE | UTILITY,
        "nv_ioctl.nv_ioctl_alloc_os_event_t",
        handler="os_event",
    ),
    frontend(
        escapes.NV_ESC_FREE_OS_EVENT,
        "NV_ESC_FREE_OS_EVENT",
        COMPUTE | UTILITY,
        "nv_ioctl.nv_ioctl_free_os_event_t",
        handler="os_event",
    ),
    frontend(
        escapes.NV_ESC_CHECK_VERSION_STR,
        "NV_ESC_CHECK_VERSION_STR",
        COMPUTE | UTILITY,
        "nv_ioctl.nv_ioctl_rm_api_version_t",
    ),
    frontend(escapes.NV_ESC_ATTACH_GPUS_TO_FD, "NV_ESC_ATTACH_GPUS_TO_FD", COMPUTE | UTILITY, "NvU32"),
    frontend(escapes.NV_ESC_SYS_PARAMS, "NV_ESC_SYS_PARAMS", COMPUTE | UTILITY, "nv_ioctl.nv_ioctl_sys_params_t"),
    reject(
        "frontend",
        escapes.NV_ESC_NUMA_INFO,
        "NV_ESC_NUMA_INFO",
        None,
        status=None,
        why="a sandbox has no use for the host's NUMA topology",
        caps=COMPUTE | UTILITY,
    ),
    frontend(
        escapes.NV_ESC_EXPORT_TO_DMABUF_FD,
        "NV_ESC_EXPORT_TO_DMABUF_FD",
        RDMA,
        "nv_ioctl.nv_ioctl_export_to_dma_buf_fd_t",
        handler="export_to_dmabuf_fd",
    ),
    frontend(
        escapes.NV_ESC_WAIT_OPEN_COMPLETE,
        "NV_ESC_WAIT_OPEN_COMPLETE",
        COMPUTE | UTILITY,
        "nv_ioctl.nv_ioctl_wait_open_complete_t",
        since="550.40.07",
    ),
)
