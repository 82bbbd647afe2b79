"""The version of the installed package; a checkout that was never installed has that of a tree without a tag."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

__all__ = ["UNTAGGED", "__version__"]

UNTAGGED = "0.1.0"
"""What setup.py calls a tree that has no tag of its own."""

try:
    __version__ = version("nvproxy-model")
except PackageNotFoundError:
    __version__ = UNTAGGED
