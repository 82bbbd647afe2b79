"""A running program's driver calls through a Session: what gVisor's nvproxy does, around an unmodified program, without gVisor."""

from typing import TYPE_CHECKING

from nvproxy_model.lazy import lazy

if TYPE_CHECKING:
    from nvproxy_model.live.broker import Broker, Recorder
    from nvproxy_model.live.guardian import StartError, Tree
    from nvproxy_model.live.nodes import DeviceNodes, DirectoryNodes, Node
    from nvproxy_model.live.report import Report
    from nvproxy_model.notification import NotifyError
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "broker": ("Broker", "Recorder"),
            "guardian": ("NotifyError", "StartError", "Tree"),
            "nodes": ("DeviceNodes", "DirectoryNodes", "Node"),
            "report": ("Report",),
        },
    )

__all__ = [
    "Broker",
    "DeviceNodes",
    "DirectoryNodes",
    "Node",
    "NotifyError",
    "Recorder",
    "Report",
    "StartError",
    "Tree",
]
