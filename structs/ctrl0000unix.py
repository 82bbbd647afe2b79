"""ctrl/ctrl0000/ctrl0000unix.h: objects exported to, and imported from, descriptors."""

from nvproxy_model.fields import CStruct, CUnion, Fd, Handle, NvU8, NvU16, NvU32, enum, since

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
