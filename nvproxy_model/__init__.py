"""A model of the NVIDIA driver ABI that gVisor's nvproxy filters: which call is allowed, why, and what is translated."""

from typing import TYPE_CHECKING

from nvproxy_model.lazy import lazy

if TYPE_CHECKING:
    from nvproxy_model._version import __version__
    from nvproxy_model.caps import Caps
    from nvproxy_model.errors import (
        DefinitionError,
        HostError,
        MemoryFault,
        NvproxyError,
        SourceError,
        UnknownDriverVersion,
        UnsupportedDriverVersion,
    )
    from nvproxy_model.policy.decision import Copy, Decision, Verdict, Why
    from nvproxy_model.policy.policy import Policy
    from nvproxy_model.session.ports import Buffer, FdTable, File, Files, GuestMemory, Host, Result
    from nvproxy_model.session.session import Session
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "_version": ("__version__",),
            "errors": (
                "DefinitionError",
                "HostError",
                "MemoryFault",
                "NvproxyError",
                "SourceError",
                "UnknownDriverVersion",
                "UnsupportedDriverVersion",
            ),
            "caps": ("Caps",),
            "policy.decision": ("Copy", "Decision", "Verdict", "Why"),
            "policy.policy": ("Policy",),
            "session.ports": ("Buffer", "FdTable", "File", "Files", "GuestMemory", "Host", "Result"),
            "session.session": ("Session",),
        },
    )

__all__ = [
    "Buffer",
    "Caps",
    "Copy",
    "Decision",
    "DefinitionError",
    "FdTable",
    "File",
    "Files",
    "GuestMemory",
    "Host",
    "HostError",
    "MemoryFault",
    "NvproxyError",
    "Policy",
    "Result",
    "Session",
    "SourceError",
    "UnknownDriverVersion",
    "UnsupportedDriverVersion",
    "Verdict",
    "Why",
    "__version__",
]
