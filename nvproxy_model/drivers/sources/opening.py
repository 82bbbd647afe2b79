"""Which kind of source a path is."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from nvproxy_model.drivers.sources.archives import ArchiveSource
from nvproxy_model.drivers.sources.repositories import RepositorySource, git_directory
from nvproxy_model.drivers.sources.source import DirectorySource, Source
from nvproxy_model.errors import SourceError

__all__ = ["open_source"]


def open_source(path: str | os.PathLike[str]) -> Source:
    """Open a git repository (bare or not), a directory (one tree, or one folder per version) or a tar archive.

    Raises SourceError, with one line that names the path, if it is none of these.
    """
    where = Path(path)
    try:
        mode = where.lstat().st_mode
    except (OSError, ValueError) as error:
        if "://" in str(path):
            raise SourceError("an address is not read; clone it, or download an archive, and name that", path) from None
        raise SourceError(f"{getattr(error, 'strerror', None) or error}", path) from None
    if stat.S_ISLNK(mode):
        raise SourceError(f"a symbolic link; name what it points to ({os.path.realpath(where)})", path)
    if stat.S_ISREG(mode):
        return ArchiveSource(where)
    if not stat.S_ISDIR(mode):
        raise SourceError("neither a directory nor a file", path)
    directory = git_directory(where)
    return DirectorySource(where) if directory is None else RepositorySource(where, directory)
