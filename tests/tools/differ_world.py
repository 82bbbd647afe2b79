"""The small driver trees of tests/drivers, for the command line's tests."""

from __future__ import annotations

import sys
from pathlib import Path

_DRIVERS = str(Path(__file__).parents[1] / "drivers")
if _DRIVERS not in sys.path:
    sys.path.append(_DRIVERS)

from driver_world import git, repository, tree, write  # noqa: E402

__all__ = ["ENVIRONMENT", "git", "repository", "tree", "write"]

ENVIRONMENT = {"NVPROXY_CACHE_DIR": "", "PYTHONPATH": str(Path(__file__).parents[2])}
