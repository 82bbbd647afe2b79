"""What an embedder gets wrong, said where it is done and by the name of the argument."""

from __future__ import annotations

__all__ = ["a", "blame", "descriptor", "file", "integer", "ports"]

_LAST_FD = 0x7FFFFFFF
_METHODS = {"memory": ("read", "write"), "fds": ("get", "install", "remove"), "host": ("ioctl",)}
"""What a session calls of each port."""


def a(thing: object) -> str:
    """What something is, for the end of a message."""
    return f"an object of type {type(thing).__name__}"


def integer(where: str, fd: object) -> None:
    """``where`` is the call, with {} for ``fd``. Raises TypeError if ``fd`` is not an int."""
    if not isinstance(fd, int) or isinstance(fd, bool):
        raise TypeError(f"{where.format(repr(fd))}: want a descriptor, an int; got {a(fd)}")


def descriptor(where: str, fd: object) -> None:
    """`integer`, and ValueError for a number that no process can have open."""
    integer(where, fd)
    if not 0 <= fd <= _LAST_FD:  # type: ignore[operator]
        raise ValueError(f"{where.format(fd)}: want a descriptor, 0 to {_LAST_FD}")


def file(where: str, found: object) -> None:
    """Raises TypeError for what a guest's file is looked for in and is none. An embedder's own class will do."""
    if not hasattr(found, "kind"):
        raise TypeError(f"{where}: want a File; got {found!r}, {a(found)}")


def ports(**given: object) -> None:
    """Whether these can be a session's ports. Raises TypeError, which names the port and the method that it lacks."""
    for name, port in given.items():
        for method in _METHODS[name]:
            if not callable(getattr(port, method, None)):
                want = ", ".join(f"{each}()" for each in _METHODS[name])
                raise TypeError(f"Session({name}=...): {a(port)} has no {method}(); want one with {want}")


def blame(fd: object, found: object) -> None:
    """Raises TypeError if a call failed because of ``fd``, or of what the table ``found`` for it."""
    integer("Session.ioctl({}, ...)", fd)
    if found is not None and not hasattr(found, "kind"):
        raise TypeError(f"fds.get({fd}) gave {found!r}: want a File, or None if it is not open; got {a(found)}")
