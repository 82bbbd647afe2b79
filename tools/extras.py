"""What a command needs beyond the core, and which extra of the package brings it.

Such a module is imported where it is used, so that its absence is met by whom it concerns.
"""

from __future__ import annotations

from typing import Final

__all__ = ["MODULES", "missing"]

MODULES: Final = {
    "clang": ("libclang", "differ"),
    "libclang": ("libclang", "differ"),  # its metadata, asked for its version
    "tree_sitter": ("tree-sitter", "differ"),
    "tree_sitter_go": ("tree-sitter-go", "differ"),
    "orjson": ("orjson", "trace"),
    "zstandard": ("zstandard", "trace"),
    "matplotlib": ("matplotlib", "plot"),
}
"""Top-level module -> its distribution and the extra. rich is not here: without it there is no progress bar, and no more."""


def missing(error: ModuleNotFoundError) -> str | None:
    """What to install, in one line, where a module of an extra is what is absent; None for any other module."""
    name = (error.name or "").partition(".")[0]
    if name not in MODULES:
        return None
    distribution, extra = MODULES[name]
    return f"{distribution} is not installed; pip install 'nvproxy-model[{extra}]'"
