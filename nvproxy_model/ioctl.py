"""ioctl request numbers as asm-generic/ioctl.h builds them: direction, size of the argument, magic letter, number."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

__all__ = [
    "FOREIGN",
    "MAX_SIZE",
    "NV_IOCTL_MAGIC",
    "encode",
    "foreign",
    "magic",
    "number",
    "parse_request",
    "request",
    "size",
]

NV_IOCTL_MAGIC: Final = ord("F")
"""nv-ioctl-numbers.h. linux/fb.h has the same letter: its requests have other directions and lower numbers."""
FOREIGN: Final[Mapping[int, str]] = {0x6D: "NVKMS", 0x64: "DRM", 0x47: "WSL"}
"""Letters of the requests of other drivers of a GPU: nvidia-modeset (nvkms-ioctl.h), the kernel's DRM (drm.h), Windows'
dxgkrnl (d3dkmthk.h)."""
MAX_SIZE: Final = 0x3FFF
"""The largest argument that a request can encode, in bytes."""

_DIRECTIONS: Final = {"_IOC_NONE": 0, "_IOC_WRITE": 1, "_IOC_READ": 2}
_MACROS: Final = {"_IO": 0, "_IOW": 1, "_IOR": 2, "_IOWR": 3}
_NUMBER: Final = r"0[xX][0-9a-fA-F]{1,8}|\d{1,10}"
_IOC: Final = re.compile(
    rf"_IOC\(\s*(?P<dir>[A-Z_|0-9a-fx]{{1,40}})\s*,\s*(?P<type>'.'|{_NUMBER})\s*,\s*(?P<nr>{_NUMBER})\s*,\s*(?P<size>{_NUMBER})\s*\)"
)
_MACRO: Final = re.compile(
    rf"(?P<name>_IO(?:|R|W|WR))\(\s*(?P<type>'.'|{_NUMBER})\s*,\s*(?P<nr>{_NUMBER})"
    rf"\s*(?:,\s*(?P<size>{_NUMBER}|[A-Za-z_]\w{{0,80}})\s*)?\)"
)


def number(request: int) -> int:
    """_IOC_NR: all that nvproxy's frontend dispatch looks at."""
    return request & 0xFF


def size(request: int) -> int:
    """_IOC_SIZE, in bytes."""
    return request >> 16 & MAX_SIZE


def magic(request: int) -> int:
    """_IOC_TYPE: the letter of the driver that the request is for."""
    return request >> 8 & 0xFF


def foreign(request: int) -> str | None:
    """Which other driver of a GPU a request is for (`FOREIGN`), or None. UVM's commands have no letter."""
    return FOREIGN.get(magic(request)) if request > 0xFFFF else None


def encode(direction: int, letter: int, nr: int, size: int) -> int:
    """_IOC(direction, letter, nr, size); each must fit its field."""
    return direction << 30 | size << 16 | letter << 8 | nr


def request(nr: int, size: int = 0) -> int:
    """A frontend request: ``_IOWR('F', nr, size)``. A size over MAX_SIZE keeps its low 14 bits, as in C."""
    return encode(3, NV_IOCTL_MAGIC, nr & 0xFF, size & MAX_SIZE)


def parse_request(text: str, size_of: Callable[[str], int | None] | None = None) -> int | None:
    """The number behind ``0xc020462a``, ``3223340586``, ``_IOC(_IOC_READ|_IOC_WRITE, 0x46, 0x2a, 0x20)`` or
    ``_IOWR('F', 0x2a, 32)``; None for another text.

    ``size_of`` gives the bytes of a struct that stands for the size, as in ``_IOWR('F', 0x2a, NVOS54_PARAMETERS)``.
    """
    match = _IOC.fullmatch(text)
    if match is not None:
        direction = _direction(match["dir"])
        length: int | None = _integer(match["size"])
    else:
        match = _MACRO.fullmatch(text)
        if match is None:
            value = _integer(text)
            return value if value is not None and 0 <= value <= 0xFFFFFFFF else None
        direction = _MACROS[match["name"]]
        length = _length(match["size"] or "0", size_of)
    letter = ord(match["type"][1]) if match["type"].startswith("'") else _integer(match["type"])
    nr = _integer(match["nr"])
    if direction is None or length is None or letter is None or nr is None:
        return None
    if direction > 3 or letter > 0xFF or nr > 0xFF or length > MAX_SIZE:
        return None
    return encode(direction, letter, nr, length)


def _direction(text: str) -> int | None:
    bits = 0
    for word in text.split("|"):
        bit = _DIRECTIONS.get(word, _integer(word))
        if bit is None:
            return None
        bits |= bit
    return bits


def _length(text: str, size_of: Callable[[str], int | None] | None) -> int | None:
    value = _integer(text)
    return size_of(text) if value is None and size_of is not None else value


def _integer(text: str) -> int | None:
    if not re.fullmatch(_NUMBER, text):
        return None
    try:
        return int(text, 0)
    except ValueError:  # 089, which C would not take either
        return None
