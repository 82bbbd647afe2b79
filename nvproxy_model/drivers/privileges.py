"""Who may call what, as one release of the driver has it: exported controls, classes, chips."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

__all__ = [
    "ADMINISTRATOR",
    "INTERNAL",
    "KERNEL",
    "PRIVILEGES",
    "UNSAID",
    "USER",
    "ClassEntry",
    "Export",
    "Privilege",
    "Privileges",
]

Privilege = Literal["user", "administrator", "kernel", "internal", ""]

USER: Final = "user"
ADMINISTRATOR: Final = "administrator"
KERNEL: Final = "kernel"
INTERNAL: Final = "internal"
PRIVILEGES: Final = (USER, ADMINISTRATOR, KERNEL, INTERNAL)
"""Who may call: any user; CAP_SYS_ADMIN in the first user namespace (os-interface.c: os_is_administrator()); kernel
clients; nobody but the driver itself. From the least privilege to the most."""
UNSAID: Final = ""
"""The privilege of a class before 530.30.02, where each class's constructor decides and no table says it."""


class Export(NamedTuple):
    """A control that the driver's CPU side knows. ``struct`` is None where it takes no parameters.

    ``handle`` is the driver's internal class of the handle that the control is asked of, several joined with ``+``.
    """

    privilege: Privilege
    struct: str | None
    handle: str


class ClassEntry(NamedTuple):
    """A class of the driver's list. ``privilege`` is UNSAID where the release's list has no privileges.

    ``chips`` are those whose lists have the class, ``("all",)`` for a generic class; None where the release's lists hold
    only classes with an engine (before 580.65.06), so that absence means nothing.
    """

    name: str
    privilege: Privilege
    struct: str | None
    required: bool
    internal: str
    parents: tuple[str, ...]
    chips: tuple[str, ...] | None


class Privileges(NamedTuple):
    """The tables of one release."""

    flags: Mapping[str, int] = MappingProxyType({})
    """The bits of a control's flags that decide who may call it. They were renumbered at 555.42.02."""
    exports: Mapping[int, Export] = MappingProxyType({})
    deprecated: frozenset[str] = frozenset()
    """Controls that are converted to another form before the exported ones are looked up (RmDeprecatedGetControlHandler())."""
    classes: Mapping[int, ClassEntry] = MappingProxyType({})
    chips: tuple[str, ...] = ()
    """The chips that have a list of their own, where ``ClassEntry.chips`` means something."""
    copying: frozenset[str] = frozenset()
    """The driver's files that call a primitive which copies user memory."""
