"""Recorded facts of driver releases: the shipped file, a user's own beside it, and the one form that both have."""

from typing import TYPE_CHECKING

from nvproxy_model.lazy import lazy

if TYPE_CHECKING:
    from nvproxy_model.drivers.facts.encoding import encode
    from nvproxy_model.drivers.facts.files import AS_OF, FACTS, newest, own_file
    from nvproxy_model.drivers.facts.recorded import Facts, load, nearest_names
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "encoding": ("encode",),
            "files": ("AS_OF", "FACTS", "newest", "own_file"),
            "recorded": ("Facts", "load", "nearest_names"),
        },
    )

__all__ = ["AS_OF", "FACTS", "Facts", "encode", "load", "nearest_names", "newest", "own_file"]
