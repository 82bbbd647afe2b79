"""A model of the NVIDIA driver ABI that gVisor's nvproxy filters: which call is allowed, why, and what is translated."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nvproxy_model.caps import Caps
    from nvproxy_model.errors import (
        DefinitionError,
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
]

# Looked up on first use: the commands that read driver sources or traces import this package without the policy.
_PLACES = ("errors", "caps", "policy", "session")


def __getattr__(name: str) -> object:
    if name in __all__:
        for place in _PLACES:
            module = import_module(f"{__name__}.{place}")
            if name in module.__all__:
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
