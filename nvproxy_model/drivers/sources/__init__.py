"""Where driver sources come from: git repositories, directories and archives."""

from typing import TYPE_CHECKING

from nvproxy_model.lazy import lazy

if TYPE_CHECKING:
    from nvproxy_model.drivers.sources.opening import open_source
    from nvproxy_model.drivers.sources.source import Source
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "opening": ("open_source",),
            "source": ("Source",),
        },
    )

__all__ = ["Source", "open_source"]
