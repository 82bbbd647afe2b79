"""The exceptions that a caller's own mistakes raise. Guest bytes never do: a refusal is an answer."""

from __future__ import annotations

__all__ = [
    "DefinitionError",
    "HostError",
    "MemoryFault",
    "NvproxyError",
    "SourceError",
    "UnknownDriverVersion",
    "UnsupportedDriverVersion",
]


class NvproxyError(Exception):
    """The root of this package's exceptions."""


class UnknownDriverVersion(NvproxyError, LookupError):
    """No node of driver_versions.yaml has this name; the message names the nearest known ones."""


class UnsupportedDriverVersion(NvproxyError, LookupError):
    """The release is known but not supported; the caller must opt in."""


class DefinitionError(NvproxyError, ValueError):
    """A struct, row or table of the model contradicts itself."""


class SourceError(NvproxyError):
    """A driver source (repository, directory or archive) could not be read or holds no release of that name.

    ``what``: the reason. ``where``: the file, folder or repository, None if it is not known yet.
    """

    def __init__(self, what: str, where: object = None) -> None:
        """``where`` is put before ``what`` in the message."""
        super().__init__(what, where)
        self.what = what
        self.where = where

    def __str__(self) -> str:
        return self.what if self.where is None else f"{self.where}: {self.what}"

    def at(self, where: object) -> SourceError:
        """This error if it says where it happened, otherwise one that names ``where``."""
        return self if self.where is not None else SourceError(self.what, where)


class HostError(NvproxyError):
    """A session's Host broke its contract: it raised OSError, answered something that is not an errno, or
    resized a buffer.

    The message says which. Nothing of the call was written to guest memory.
    """


class MemoryFault(NvproxyError):
    """Raised by a GuestMemory for an address the guest does not have; a session answers it with EFAULT."""
