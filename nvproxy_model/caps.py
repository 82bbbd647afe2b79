"""Driver capabilities, as NVIDIA_DRIVER_CAPABILITIES and nvproxy name them."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Literal, get_args

__all__ = [
    "ALL_CONTAINER",
    "DEFAULT",
    "PROFILES",
    "SUPPORTED",
    "Caps",
    "Profile",
    "container_flags",
    "from_string",
    "grant",
    "resolve",
]


class Caps(enum.IntFlag):
    """A set of capabilities. A rule is met by any one of its own (pkg/sentry/devices/nvproxy/nvconf/caps.go)."""

    COMPUTE = 1
    DISPLAY = 2
    GRAPHICS = 4
    NGX = 8
    UTILITY = 16
    VIDEO = 32
    COMPAT32 = 64
    FABRIC_IMEX_MGMT = 128
    PROFILING = 256
    RDMA = 512

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the set's members, in bit order."""
        return tuple(_NAME[cap] for cap in _NAME if cap & self)

    def __str__(self) -> str:
        return ",".join(self.names)


_SPACE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
"""What Go's strings.TrimSpace strips (unicode.IsSpace); str.strip would also take the separators 0x1c to 0x1f."""

_NAME = {cap: (cap.name or "").lower().replace("_", "-") for cap in Caps}
_CAP = {name: cap for cap, name in _NAME.items()}
_VALID = sum(_NAME)

DEFAULT = Caps.COMPUTE | Caps.UTILITY
"""What a sandbox has if nothing else is said."""
ALL_CONTAINER = Caps.COMPUTE | Caps.GRAPHICS | Caps.UTILITY | Caps.VIDEO
"""What ``all`` grants: never a capability that only the sandbox knows."""
SUPPORTED = ALL_CONTAINER | Caps.FABRIC_IMEX_MGMT | Caps.PROFILING | Caps.RDMA
"""The ones that nvproxy implements; display, ngx and compat32 are valid names only."""
Profile = Literal["gvisor", "hardened"]
"""The name of a profile."""
PROFILES: tuple[Profile, ...] = get_args(Profile)
"""What a policy is held to: nvproxy's own rules, or stricter ones beside them."""
_CONTAINER_FLAGS = [cap for cap in Caps if cap < Caps.FABRIC_IMEX_MGMT]


def from_string(text: str) -> tuple[Caps, bool]:
    """The set that a comma-separated list names, and whether ``all`` stood in it (which adds no bit itself).

    White space around a name and empty items are ignored; names are case sensitive. Raises ValueError naming the
    first unknown one.
    """
    caps, everything = Caps(0), False
    for name in filter(None, (item.strip(_SPACE) for item in text.split(","))):
        if name == "all":
            everything = True
        elif name in _CAP:
            caps |= _CAP[name]
        else:
            raise ValueError(f"{name!r} is not a driver capability; known: all, {', '.join(_CAP)}")
    return caps, everything


def resolve(wanted: str | Caps | Iterable[str | Caps]) -> Caps:
    """The capabilities of a policy: names as in NVIDIA_DRIVER_CAPABILITIES, a Caps, or a list or set of either.

    ``all`` stands for ALL_CONTAINER. Raises ValueError for a name that is unknown or that nvproxy does not support,
    TypeError for anything else.
    """
    caps, everything = Caps(0), False
    for item in (wanted,) if isinstance(wanted, (str, int)) else _items(wanted):
        if isinstance(item, str):
            named, every = from_string(item)
            caps, everything = caps | named, everything or every
        elif isinstance(item, int) and not isinstance(item, bool):
            if item & ~_VALID:
                raise ValueError(f"{item & ~_VALID:#x} has no driver capability; known: {Caps(_VALID)}")
            caps |= Caps(item)
        else:
            raise _no_caps(item)
    if caps & ~SUPPORTED:
        raise ValueError(f"nvproxy does not support {Caps(caps & ~SUPPORTED)}; supported: {SUPPORTED}")
    return caps | (ALL_CONTAINER if everything else Caps(0))


def _items(wanted: Iterable[str | Caps]) -> Iterable[str | Caps]:
    if not isinstance(wanted, Iterable) or isinstance(wanted, (bytes, bytearray, memoryview)):
        raise _no_caps(wanted)
    return wanted


def _no_caps(wanted: object) -> TypeError:
    return TypeError(
        f"caps: {wanted!r} is of type {type(wanted).__name__}; want names ({', '.join(_CAP)}), Caps, or a list or set of them"
    )


def grant(requested: str | None, allowed: str = "utility,compute") -> Caps:
    """What a container gets that asks with NVIDIA_DRIVER_CAPABILITIES=``requested`` (None: unset) under runsc's
    --nvproxy-allowed-driver-capabilities=``allowed``. Raises ValueError when it asks for more than is allowed.
    """
    ceiling = resolve(allowed)
    if not requested:
        return DEFAULT & ceiling
    caps, everything = from_string(requested)
    if everything:
        return ceiling
    if caps & ~ceiling:
        raise ValueError(f"{Caps(caps & ~ceiling)} is not allowed here; allowed: {ceiling}")
    return caps


def container_flags(caps: Caps) -> tuple[str, ...]:
    """The flags for nvidia-container-cli: capabilities that only the sandbox knows have none."""
    return tuple(f"--{_NAME[cap]}" for cap in _CONTAINER_FLAGS if cap & caps)
