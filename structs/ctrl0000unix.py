"""ctrl/ctrl0000/ctrl0000unix.h: objects exported to, and imported from, descriptors; limits of memory accounting."""

from nvproxy_model.fields import CStruct, CUnion, Fd, Handle, NvS32, NvU8, NvU16, NvU32, NvU64, enum, since

_rmObject = CStruct(
    None,
    "hDevice" / Handle(),
    "hParent" / Handle(),
    "hObject" / Handle(),
)

_data = CUnion(
    None,
    "rmObject" / _rmObject,
)

NV0000_CTRL_OS_UNIX_EXPORT_OBJECT = CStruct(
    "NV0000_CTRL_OS_UNIX_EXPORT_OBJECT",
    "type" / enum("NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TYPE"),
    "data" / _data,
)

NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS = CStruct(
    "NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS",
    "object" / NV0000_CTRL_OS_UNIX_EXPORT_OBJECT,
    "fd" / Fd(),
    "flags" / NvU32,
)

NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS = CStruct(
    "NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS",
    "fd" / Fd(),
    "object" / NV0000_CTRL_OS_UNIX_EXPORT_OBJECT,
)

NV0000_CTRL_OS_UNIX_GET_EXPORT_OBJECT_INFO_PARAMS = CStruct(
    "NV0000_CTRL_OS_UNIX_GET_EXPORT_OBJECT_INFO_PARAMS",
    "fd" / Fd(),
    "deviceInstance" / NvU32,
    since("545.23.06", "gpuInstanceId" / NvU32),
    "maxObjects" / NvU16,
    "metadata" / NvU8[64],
)

NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_PARAMS = CStruct(
    "NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_PARAMS",
    "fd" / Fd(),
    "hDevice" / Handle(),
    "maxObjects" / NvU16,
    "metadata" / NvU8[64],
    "objects" / Handle()[512],
    "numObjects" / NvU16,
    "index" / NvU16,
)

NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS = CStruct(
    "NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS",
    "fd" / Fd(),
    "hParent" / Handle(),
    "objects" / Handle()[128],
    "objectTypes" / NvU8[128],
    "numObjects" / NvU16,
    "index" / NvU16,
)

NV0000_CTRL_OS_UNIX_MEMACCT_LIMITS = CStruct(
    "NV0000_CTRL_OS_UNIX_MEMACCT_LIMITS",
    "gpuId" / NvU32,
    "soft" / NvU64,
    "hard" / NvU64,
    "current" / NvU64,
    since="610.43.02",
)

NV0000_CTRL_OS_UNIX_MEMACCT_GET_LIMITS_PARAMS = CStruct(
    "NV0000_CTRL_OS_UNIX_MEMACCT_GET_LIMITS_PARAMS",
    # NV0000_CTRL_OS_UNIX_MEMACCT_CURRENT_PROCESS, which asks for the caller's cgroup: the sandbox's own, for a sentry.
    "cgroupFd" / Fd(NvS32, null=-1, file="cgroup", host=-1),
    "count" / NvU32,
    "limits" / NV0000_CTRL_OS_UNIX_MEMACCT_LIMITS[32],
    since="610.43.02",
)
