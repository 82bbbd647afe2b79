"""A running program's driver calls through a Session: what gVisor's nvproxy does, around an unmodified program, without gVisor."""

from nvproxy_model.live.broker import Broker
from nvproxy_model.live.guardian import StartError
from nvproxy_model.live.nodes import DeviceNodes, DirectoryNodes, Node
from nvproxy_model.live.report import Report
from nvproxy_model.notification import NotifyError

__all__ = ["Broker", "DeviceNodes", "DirectoryNodes", "Node", "NotifyError", "Report", "StartError"]
