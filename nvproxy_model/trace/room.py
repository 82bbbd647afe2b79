"""How much may be remembered of a trace, so that a hostile one cannot fill memory with it."""

from __future__ import annotations

from typing import Final

__all__ = ["Room"]

_ENTRY: Final = 512
"""About as many bytes as an entry of a table takes besides what is in it."""


class Room:
    """Bytes that the tables of one owner may take together."""

    __slots__ = ("_left", "_size")

    def __init__(self, size: int) -> None:
        self._size = self._left = size

    def take(self, size: int) -> bool:
        """Whether an entry with so many bytes in it may be added. If not, all is free again: its owner empties the tables."""
        self._left -= size + _ENTRY
        if self._left >= 0:
            return True
        self._left = self._size
        return False

    def clear(self) -> None:
        """All is free again, for an owner that has emptied the tables."""
        self._left = self._size
