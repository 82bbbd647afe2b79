"""nv-ioctl.h: the escapes that the kernel module answers itself."""

from nvproxy_model.fields import CStruct, Fd, Handle, NvBool, NvU8, NvU16, NvU32, NvU64, Status, c_int, char, since

nv_pci_info_t = CStruct(
    "nv_pci_info_t",
    "domain" / NvU32,
    "bus" / NvU8,
    "slot" / NvU8,
    "function" / NvU8,
    "vendor_id" / NvU16,
    "device_id" / NvU16,
)

nv_ioctl_card_info_t = CStruct(
    "nv_ioctl_card_info_t",
    "valid" / NvBool,
    "pci_info" / nv_pci_info_t,
    "gpu_id" / NvU32,
    "interrupt_line" / NvU16,
    "reg_address" / NvU64,
    "reg_size" / NvU64,
    "fb_address" / NvU64,
    "fb_size" / NvU64,
    "minor_number" / NvU32,
    "dev_name" / NvU8[10],
)

nv_ioctl_alloc_os_event_t = CStruct(
    "nv_ioctl_alloc_os_event_t",
    "hClient" / Handle(),
    "hDevice" / Handle(),
    "fd" / Fd(NvU32),
    "Status" / Status(),
)

nv_ioctl_free_os_event_t = CStruct(
    "nv_ioctl_free_os_event_t",
    "hClient" / Handle(),
    "hDevice" / Handle(),
    "fd" / Fd(NvU32),
    "Status" / Status(),
)

nv_ioctl_rm_api_version_t = CStruct(
    "nv_ioctl_rm_api_version_t",
    "cmd" / NvU32,
    "reply" / NvU32,
    "versionString" / char[64],
)

nv_ioctl_sys_params_t = CStruct(
    "nv_ioctl_sys_params_t",
    "memblock_size" / NvU64,
)

nv_ioctl_register_fd_t = CStruct(
    "nv_ioctl_register_fd_t",
    "ctl_fd" / Fd(c_int),
)

nv_ioctl_export_to_dma_buf_fd_t = CStruct(
    "nv_ioctl_export_to_dma_buf_fd_t",
    "fd" / Fd(c_int, file="dma-buf", negative=True),  # negative: the driver makes a new file
    "hClient" / Handle(),
    "totalObjects" / NvU32,
    "numObjects" / NvU32,
    "index" / NvU32,
    "totalSize" / NvU64,
    since("570.86.15", "mappingType" / NvU8),
    since("580.65.06", "bAllowMmap" / NvBool),
    "handles" / Handle()[128],
    "offsets" / NvU64[128],
    "sizes" / NvU64[128],
    "status" / Status(),
)

nv_ioctl_wait_open_complete_t = CStruct(
    "nv_ioctl_wait_open_complete_t",
    "rc" / c_int,
    "adapterStatus" / Status(),
    since="550.40.07",
)
