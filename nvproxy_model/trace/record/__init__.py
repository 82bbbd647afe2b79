"""Recorders: a preloaded library, and seccomp user notification."""

from typing import Final

__all__ = ["CANNOT_SEE"]

CANNOT_SEE: Final = "raw system calls; static, setuid and 32-bit programs; programs started without our environment"
"""What the preloaded recorder cannot see."""
