"""What a decision is: the verdict, its cause, and what the host and the guest are given."""

from __future__ import annotations

import enum
import errno
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from nvproxy_model.rules import Rule

__all__ = ["DUTIES", "Call", "Copy", "Decision", "FdLookup", "GuestFile", "Verdict", "Why", "int32"]


class GuestFile(Protocol):
    """What an fd of the guest's stands for: ``kind`` is frontend, uvm, open-only, dma-buf or other."""

    @property
    def kind(self) -> str: ...
    @property
    def host_fd(self) -> int: ...


class FdLookup(Protocol):
    """The guest's fd table, as far as a decision needs it; a plain dict of GuestFile will do."""

    def get(self, fd: int, /) -> GuestFile | None: ...


class Verdict(enum.Enum):
    """ALLOW: the host may have the bytes as they are. TRANSLATE: it gets ``params`` and ``copies``. REJECT: it gets nothing."""

    ALLOW = "allow"
    TRANSLATE = "translate"
    REJECT = "reject"


class Why(enum.Enum):
    """What decided."""

    RULE = "a rule admits it"
    WINDOW = "a bypass window passes it unexamined"
    UNKNOWN = "no rule has this number"
    VERSION = "other releases have this number, this one has not"
    CAPABILITY = "a capability is missing, any of"
    REFUSED = "a rule refuses it"
    OPT_IN = "the rule needs an opt-in"
    SIZE = "the size is wrong"
    NULL = "the parameters are NULL"
    FD = "a descriptor is not acceptable"
    REQUIRED = "a handle is required"
    POINTER = "a pointer is not acceptable"
    COUNT = "a count is out of bounds"
    VALUE = "a value is not acceptable"
    CLIENT = "the client is unknown"
    IN_USE = "the file is in use"
    HARDENED = "the hardened profile refuses it"


class Call(NamedTuple):
    """The question that a decision answers."""

    version: str
    table: str
    number: int
    rule: Rule | None

    def __str__(self) -> str:
        name = f" {self.rule.name}" if self.rule else ""
        return f"{self.version} {self.table} {self.number:#x}{name}"


class Copy(NamedTuple):
    """A buffer that the host needs in place of a guest pointer.

    ``size`` bytes at guest ``address``, for the pointer at ``offset`` of the struct; ``copy_in`` or zeroed; copied out
    after the struct when ``late``, before it otherwise. ``pinned``: the guest's own pages, ``writable`` or not,
    held for as long as the object lives; nothing is copied.
    """

    offset: int
    address: int
    size: int
    copy_in: bool = True
    late: bool = False
    pinned: bool = False
    writable: bool = True


DUTIES: Mapping[str, str] = {
    "alloc_memory": "NV01_MEMORY_SYSTEM: on NV_OK the named file may be mapped once, limit + 1 bytes, unless the flags say "
    "otherwise; OS descriptors: pin the guest's pages until the object is freed",
    "export_to_dmabuf_fd": "on NV_OK with a fresh fd: wrap the host's dma-buf in a new guest file, close-on-exec",
    "map_memory": "on NV_OK the named file may be mapped once, params.length bytes, as the returned caching type says",
    "uvm_initialize": "map UVM ranges of the guest at the same address for the host: offset == address",
}
"""What an embedder must do for a call beyond forwarding it, by the rule's handler."""


class Decision(NamedTuple):
    """An immutable answer for one call."""

    verdict: Verdict
    why: Why
    call: Call
    errno: int = 0
    """For the guest, Linux numbers; 0 when the answer is a status, or the call is admitted."""
    status: int | None = None
    """The NV status for the guest when the call is refused with one; ioctl(2) then returns 0."""
    params: bytes | None = None
    """What the host is given, with fds replaced and copied pointers zero; None: the guest's bytes, unchanged."""
    depends: tuple[int, ...] = ()
    """Handles, besides the parent, that an allocated object depends on."""
    copies: tuple[Copy, ...] = ()
    detail: tuple[Any, ...] = ()

    @property
    def allowed(self) -> bool:
        return self.verdict is not Verdict.REJECT

    @property
    def rule(self) -> Rule | None:
        return self.call.rule

    @property
    def duty(self) -> str | None:
        """What the embedder must do beyond forwarding the call; a session does all of it but the mapping and the pinning."""
        return DUTIES.get(self.call.rule.handler or "") if self.allowed and self.call.rule is not None else None

    @property
    def version(self) -> str:
        return self.call.version

    @property
    def number(self) -> int:
        return self.call.number

    @property
    def reason(self) -> str:
        """One line: version, table, number, name, struct and field, and the rule that decided."""
        said = [str(self.call), self.why.value, *map(str, self.detail)]
        if not self.detail and self.call.rule is not None and self.call.rule.why:
            said.append(self.call.rule.why)
        answer = (
            "admitted" if self.allowed else _errno(self.errno) if self.status is None else f"status {self.status:#x}"
        )
        return f"{': '.join(said)} ({answer})"


def _errno(number: int) -> str:
    return errno.errorcode.get(number, str(number))


def int32(value: int) -> int:
    """The low 32 bits, signed: how nvproxy and the driver read an fd out of any field."""
    value &= 0xFFFFFFFF
    return value - 0x100000000 if value > 0x7FFFFFFF else value
