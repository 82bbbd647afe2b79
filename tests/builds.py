"""What is compiled once for a whole run of the tests, whichever of its processes needs it first."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path

__all__ = ["made_once"]


def made_once(target: Path, make: Callable[[Path], object]) -> Path:
    """``target``, a file or a folder that ``make(target)`` writes unless another process of this run has written it.

    Others wait meanwhile. Where ``make`` raises, or its process is killed, the next that needs it begins from nothing.
    """
    done = target.with_name(target.name + ".made")
    with target.with_name(target.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            # In its own place, and not renamed: what is linked holds the paths of what it was linked with.
            if target.is_dir():
                shutil.rmtree(target)
            else:
                target.unlink(missing_ok=True)
            make(target)
            done.touch()
    return target
