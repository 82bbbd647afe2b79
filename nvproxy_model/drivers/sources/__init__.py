"""Where driver sources come from: git repositories, directories and archives."""

from nvproxy_model.drivers.sources.opening import open_source
from nvproxy_model.drivers.sources.source import Source

__all__ = ["Source", "open_source"]
