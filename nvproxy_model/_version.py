"""The version of the installed package; a checkout that was never installed has that of a tree without a tag."""

from __future__ import annotations

import os
import sys

__all__ = ["UNTAGGED", "__version__"]

UNTAGGED = "0.1.0"
"""What setup.py calls a tree that has no tag of its own."""

_BEFORE, _AFTER = "nvproxy_model-", ".dist-info"


def _installed() -> str | None:
    """The version that the name of the installed metadata's folder has, as `importlib.metadata` would find it, whose own
    import takes longer than all else that ``--version`` does."""
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            if name.startswith(_BEFORE) and name.endswith(_AFTER):
                return name[len(_BEFORE) : -len(_AFTER)]
    return None


__version__ = _installed() or UNTAGGED
