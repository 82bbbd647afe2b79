"""The ports of a session, under the name that embedders import; they live in `nvproxy_model.session.ports`."""

from nvproxy_model.session.ports import (
    Buffer,
    FdTable,
    File,
    Files,
    GuestMemory,
    Host,
    MapContext,
    MemoryType,
    Pages,
    PinningMemory,
    Process,
    Result,
)

__all__ = [
    "Buffer",
    "FdTable",
    "File",
    "Files",
    "GuestMemory",
    "Host",
    "MapContext",
    "MemoryType",
    "Pages",
    "PinningMemory",
    "Process",
    "Result",
]
