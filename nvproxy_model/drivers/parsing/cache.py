"""Parsed releases on disk, keyed by the content of their headers.

``$NVPROXY_CACHE_DIR`` names the directory, by default ``$XDG_CACHE_HOME/nvproxy-model`` or ``~/.cache/nvproxy-model``;
empty turns the cache off. An entry carries its own digest: one that does not match is removed and made anew. Entries
are written beside their place and moved there, so that two processes may share the directory.

The digest finds damage, not forgery: anyone who can write the directory can write entries that match. It is the user's own,
and one that a build service restored proves what it was made from only as far as that service does; ``--no-cache`` reads
the headers themselves.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import tempfile
from pathlib import Path

__all__ = ["MAX_CACHE", "Cache", "cache_directory"]

MAX_CACHE = 256 << 20
"""Bytes of all entries; the least recently written go first."""

_MAGIC = b"nvproxy-model cache 1 "
_KEY = re.compile(r"[0-9a-f]{64}")


def cache_directory() -> Path | None:
    """Where entries are kept, or None if the cache is off."""
    named = os.environ.get("NVPROXY_CACHE_DIR")
    if named is not None:
        return Path(named) if named else None
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base, "nvproxy-model") if os.path.isabs(base) else None


class Cache:
    """Bytes by a SHA-256 key. If the directory is unusable or owned by someone else, caching is off."""

    def __init__(self, directory: Path | None = None, limit: int = MAX_CACHE) -> None:
        self._limit = limit
        self._written = False
        self._directory = cache_directory() if directory is None else directory
        if self._directory is not None:
            try:
                self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                status = self._directory.lstat()
                usable = self._directory.is_dir() and not self._directory.is_symlink() and status.st_uid == os.getuid()
                if not usable or status.st_mode & 0o022:
                    self._directory = None
            except OSError:
                self._directory = None

    def get(self, key: str) -> bytes | None:
        """An entry's bytes, or None."""
        if self._directory is None:
            return None
        path = self._directory / key
        try:
            # A fifo would block the open, and a link may lead to a device that never ends.
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(descriptor, "rb") as file:
                regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
                head, _, body = (file.read(self._limit) if regular else b"").partition(b"\n")
        except FileNotFoundError:
            return None
        except OSError:
            head = body = b""
        if head != _MAGIC + hashlib.sha256(key.encode() + body).hexdigest().encode():
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        return body

    def put(self, key: str, body: bytes) -> None:
        """Store an entry; a full or read-only disk is not an error."""
        if self._directory is None or len(body) > self._limit // 4:
            return
        try:
            fd, name = tempfile.mkstemp(prefix=".", dir=self._directory)
            try:
                with open(fd, "wb") as file:
                    file.write(_MAGIC + hashlib.sha256(key.encode() + body).hexdigest().encode() + b"\n" + body)
                os.replace(name, self._directory / key)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(name)
                raise
        except OSError:
            return
        self._written = True

    def trim(self) -> None:
        """Remove the oldest entries beyond the limit, if this object wrote any."""
        if self._directory is None or not self._written:
            return
        self._written = False
        with contextlib.suppress(OSError):
            entries = []
            for entry in os.scandir(self._directory):
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    entries.append((status.st_mtime_ns, status.st_size, entry.path, bool(_KEY.fullmatch(entry.name))))
            total = sum(size for _, size, _, _ in entries)
            newest = max((when for when, *_ in entries), default=0)
            for when, size, path, ours in sorted(entries):
                stale = not ours and when < newest - 3600 * 10**9 and os.path.basename(path).startswith(".")
                if (total > self._limit and ours) or stale:
                    with contextlib.suppress(OSError):
                        os.unlink(path)
                    total -= size
