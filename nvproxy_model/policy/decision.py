"""What a decision is: the verdict, its cause, and what the host and the guest are given."""

from __future__ import annotations

import enum
import errno
from typing import Literal, NamedTuple, Protocol

from nvproxy_model.caps import Caps
from nvproxy_model.fields import FileKind
from nvproxy_model.rules import Rule, Table

__all__ = ["Call", "Copy", "Decision", "Facts", "FdLookup", "GuestFile", "Verdict", "Why", "int32"]


class GuestFile(Protocol):
    """What a descriptor of the guest stands for: ``kind`` of file, and ``host_fd``, the host's descriptor for
    it."""

    @property
    def kind(self) -> FileKind:
        """What the open file is."""
        ...

    @property
    def host_fd(self) -> int:
        """The host's descriptor, which the host is given in place of the guest's."""
        ...


class FdLookup(Protocol):
    """The guest's descriptor table, as far as a decision needs it. A plain dict of GuestFile will do."""

    def get(self, fd: int, /) -> GuestFile | None:
        """The file behind a descriptor, None if it is not open."""
        ...


class Verdict(enum.Enum):
    """What becomes of a call.

    ALLOW: the host is given the guest's bytes as they are. TRANSLATE: it is given the decision's ``params``
    and ``copies``. REJECT: it is not called.
    """

    _value_: Literal["allow", "translate", "reject"]

    ALLOW = "allow"
    TRANSLATE = "translate"
    REJECT = "reject"


class Why(enum.Enum):
    """What decided.

    RULE, WINDOW: the call is admitted by a row, or because its number lies in a bypass window (a refusal with
    WINDOW: the policy closes that window). UNKNOWN: no row of any release has the number. VERSION: only rows
    of other releases have it. CAPABILITY: none of the capabilities that would admit it is there. REFUSED: the
    row refuses every call. OPT_IN: the row admits only what the embedder asked for. PENDING: the row was seen
    in gVisor, and nobody has confirmed that gVisor took it. SIZE, NULL, FD, REQUIRED,
    POINTER, COUNT, VALUE: the argument or one of its fields is not acceptable. CLIENT: the client is not
    alive. IN_USE: the file already has a map context. PIN: guest pages cannot be pinned. HARDENED: a rule of
    the hardened profile alone.
    """

    RULE = "a rule admits it"
    WINDOW = "a bypass window passes it unexamined"
    UNKNOWN = "no rule has this number"
    VERSION = "other releases have this number, this one has not"
    CAPABILITY = "a capability is missing, any of"
    REFUSED = "a rule refuses it"
    OPT_IN = "the rule needs an opt-in"
    PENDING = "the rule is pending in gVisor"
    SIZE = "the size is wrong"
    NULL = "the parameters are NULL"
    FD = "a descriptor is not acceptable"
    REQUIRED = "a handle is required"
    POINTER = "a pointer is not acceptable"
    COUNT = "a count is out of bounds"
    VALUE = "a value is not acceptable"
    CLIENT = "the client is unknown"
    IN_USE = "the file is in use"
    PIN = "the pages cannot be pinned"
    HARDENED = "the hardened profile refuses it"


class Facts(NamedTuple):
    """What a decision turned on.

    ``field``: a struct's field by its dotted path, a struct, a name. ``value``: what the guest put there.
    ``want`` and ``found`` depend on the decision's ``why``: for SIZE bytes, for COUNT the most bytes that are
    accepted and those that were asked for, for CAPABILITY the capabilities of which any one would do;
    otherwise a number, or words. For FD ``file`` is the kind of file that is accepted, and ``found`` the kind
    that is there; None: the descriptor is not open.
    """

    field: str = ""
    value: int | None = None
    want: Caps | int | str | None = None
    found: int | str | None = None
    file: FileKind | None = None


class Call(NamedTuple):
    """The question that a decision answers: a number of one table, at a release. ``rule`` is None where no
    row has it.

    ``duty`` is what remains for the embedder when such a call is admitted.
    """

    version: str
    table: Table
    number: int
    rule: Rule | None
    duty: str | None = None

    def __str__(self) -> str:
        name = f" {self.rule.name}" if self.rule else ""
        return f"{self.version} {self.table} {self.number:#x}{name}"


class Copy(NamedTuple):
    """A buffer that the host needs in place of a guest pointer.

    ``size`` bytes at guest ``address``, for the pointer at ``offset`` of the struct. ``copy_in``: the host
    sees the guest's bytes, otherwise zeros. ``late``: copied out after the struct, otherwise before it.
    ``pinned``: the guest's own pages, ``writable`` or not, which stay pinned for as long as the object lives;
    nothing is copied.
    """

    offset: int
    address: int
    size: int
    copy_in: bool = True
    late: bool = False
    pinned: bool = False
    writable: bool = True


class Decision(NamedTuple):
    """An immutable answer for one call.

    ``verdict``, ``why``: what becomes of the call, and what decided. ``call``: the question. ``errno``: for
    the guest, a Linux number; 0 when the answer is a status, or the call is admitted. ``status``: the NV
    status for the guest when the call is refused with one; ioctl(2) then returns 0. ``params``: what the host
    is given, with descriptors replaced and copied pointers zero; None: the guest's bytes, unchanged.
    ``depends``: handles, besides the parent, that an allocated object depends on. ``copies``: the buffers
    behind the pointers. ``facts``: the field and values that decided, None where the number alone did.
    """

    verdict: Verdict
    why: Why
    call: Call
    errno: int = 0
    status: int | None = None
    params: bytes | None = None
    depends: tuple[int, ...] = ()
    copies: tuple[Copy, ...] = ()
    facts: Facts | None = None

    @property
    def allowed(self) -> bool:
        """Whether the host may be called."""
        return self.verdict is not Verdict.REJECT

    @property
    def rule(self) -> Rule | None:
        """The row that has the call's number, if any."""
        return self.call.rule

    @property
    def duty(self) -> str | None:
        """What the embedder must do beyond forwarding the call; a session does all of it but the mapping and
        the pinning."""
        return self.call.duty if self.allowed else None

    @property
    def version(self) -> str:
        """The driver release."""
        return self.call.version

    @property
    def number(self) -> int:
        """The escape's, command's or class's number."""
        return self.call.number

    @property
    def detail(self) -> str:
        """The facts in words: the field, its value, what was wanted and what was found; "" if there are none."""
        return "" if self.facts is None else _words_of(self.why, self.facts)

    @property
    def reason(self) -> str:
        """One line: version, table, number, name, struct and field, and the rule that decided."""
        parts = [str(self.call), self.why.value]
        if self.facts is not None:
            parts.append(self.detail)
        elif self.call.rule is not None and self.call.rule.why:
            parts.append(self.call.rule.why)
        answer = (
            "admitted" if self.allowed else _errno(self.errno) if self.status is None else f"status {self.status:#x}"
        )
        return f"{': '.join(parts)} ({answer})"


_WANT = {Why.SIZE: "{} bytes", Why.COUNT: "1 to {} bytes"}
"""How ``want`` reads; a plain number is hexadecimal."""
_FOUND = {Why.SIZE: "{} bytes", Why.COUNT: "{} bytes"}


def _words_of(why: Why, facts: Facts) -> str:
    field, value, want, found, file = facts
    head = field if value is None else f"{field} = {value:#x}"
    rest = [] if want is None else [f"want {_words(want, _WANT.get(why))}"]
    if file is not None:
        rest = [f"want a {file} file", "found no open file" if found is None else f"found a {found} file"]
    elif found is not None:
        rest.append(f"found {_words(found, _FOUND.get(why))}")
    return ": ".join(filter(None, (head, ", ".join(rest))))


def _words(value: object, unit: str | None) -> str:
    if unit is not None:
        return unit.format(value)
    return f"{value:#x}" if isinstance(value, int) and not isinstance(value, Caps) else str(value)


def _errno(number: int) -> str:
    return errno.errorcode.get(number, str(number))


def int32(value: int) -> int:
    """The low 32 bits, signed: how nvproxy and the driver read a descriptor out of any field."""
    value &= 0xFFFFFFFF
    return value - 0x100000000 if value > 0x7FFFFFFF else value
