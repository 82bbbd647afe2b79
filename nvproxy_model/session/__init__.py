"""One guest process: its calls through a policy to a host, and the objects that live between the calls."""

from typing import TYPE_CHECKING

from nvproxy_model.lazy import lazy

if TYPE_CHECKING:
    from nvproxy_model.session.ports import Buffer, FdTable, File, Files, GuestMemory, Host, MapContext, Pages, Result
    from nvproxy_model.session.session import Session
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "ports": (
                "Buffer",
                "FdTable",
                "File",
                "Files",
                "GuestMemory",
                "Host",
                "MapContext",
                "Pages",
                "Result",
            ),
            "session": ("Session",),
        },
    )

__all__ = ["Buffer", "FdTable", "File", "Files", "GuestMemory", "Host", "MapContext", "Pages", "Result", "Session"]
