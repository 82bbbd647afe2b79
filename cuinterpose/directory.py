"""The directory that the processes of one user share: it holds endpoints, and links to the shim."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def directory() -> Path:
    """$CUINTERPOSE_DIR, else $XDG_RUNTIME_DIR/cuinterpose, made if it is missing. FileNotFoundError if neither is set."""
    if chosen := os.environ.get("CUINTERPOSE_DIR"):
        return Path(chosen)
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        path = Path(runtime) / "cuinterpose"
        path.mkdir(mode=0o700, exist_ok=True)
        return path
    raise FileNotFoundError("neither CUINTERPOSE_DIR nor XDG_RUNTIME_DIR is set")


def open_directory(path: Path) -> int:
    """An O_PATH descriptor of a directory of endpoints; the caller closes it.

    PermissionError unless the path is absolute and the directory is the caller's, closed to group and others. OSError if
    it is a link, or not a directory.
    """
    if not path.is_absolute():
        raise PermissionError(f"{path}: not absolute")
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    status = os.fstat(fd)
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        os.close(fd)
        raise PermissionError(
            f"{path}: it must belong to uid {os.geteuid()} and be closed to others (chmod 700); "
            f"it belongs to uid {status.st_uid} with mode {stat.S_IMODE(status.st_mode):04o}"
        )
    return fd
