"""Where driver sources come from: a git repository, a directory or a tar archive, all of them untrusted.

A source knows names of releases and, for each, the ABI headers as ``path in the tree -> blob id`` (git's own, whatever
the kind of source, so that equal headers are equal across kinds). Nothing is checked out, executed or fetched, no
link is followed, and every size is bounded.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from nvproxy_model.drivers.parsing import scan
from nvproxy_model.drivers.parsing.reading import parse_releases
from nvproxy_model.drivers.release import LayoutTable, Provenance, Release, Wanted
from nvproxy_model.errors import SourceError
from nvproxy_model.naming import natural

__all__ = ["MAX_FILES", "MAX_HEADER", "MAX_HEADERS", "DirectorySource", "Source"]

MAX_HEADER = 4 << 20
"""Bytes in one header; the largest of any release has 436 thousand."""
MAX_FILES = 20_000
"""Entries in the ABI directories of one tree; the largest of any release has 1,400."""
MAX_HEADERS = 64 << 20
"""Bytes of all headers of one release; the largest of any release has 15 million."""
MAX_DEPTH = 8

T = TypeVar("T")

_VERSION = re.compile(r"\d+(?:\.\d+)+")
_VERSION_MK = re.compile(rb"^NVIDIA_VERSION[ \t]*=[ \t]*(\d[\w.]*)[ \t]*$", re.MULTILINE)


def blob_id(content: bytes) -> str:
    """The id that git gives to a file with this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


class Source(ABC):
    """Releases of the driver that can be parsed. Use it as a context manager, or call ``close``."""

    path: Path
    ancestry = False
    """Whether ``parent`` knows; a directory or an archive holds releases without their history."""
    versions: tuple[str, ...]
    """Every release here whose name is a version, oldest ancestors first where ancestry is known."""

    @abstractmethod
    def files(self, version: str) -> Mapping[str, str]:
        """Path -> blob id of what lies in the ABI directories. Raises SourceError if the source does not have the release."""

    def identities(self, versions: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Ids for each release, equal for two only if ``files`` is. Raises SourceError if the source does not have the release."""
        return {
            version: tuple(f"{p} {blob}" for p, blob in sorted(self.files(version).items())) for version in versions
        }

    @abstractmethod
    def read(self, blobs: Iterable[str]) -> dict[str, bytes]:
        """Contents by blob id, each verified to be what its id says."""

    @abstractmethod
    def select(self, version: str, places: Sequence[str], wanted: Callable[[str], bool]) -> Mapping[str, str]:
        """Path -> blob id of the wanted files at or below some places of a release's tree, for ``read``.

        Raises SourceError if the source does not have the release, or more of them than any driver has.
        """

    def provenance(self, version: str) -> Provenance:
        """How a release is known to the source. Raises SourceError if the source does not have the release."""
        return Provenance("tree")

    def parent(self, version: str) -> str | None:
        """The nearest release that this one descends from, or None where the source cannot tell."""
        return None

    def close(self) -> None:  # noqa: B027  # most sources hold nothing
        """Release processes and temporary files."""

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def release(self, version: str, wanted: Wanted | None = None, *, cache: bool = True) -> Release:
        """One release, parsed now or taken from the cache. Raises SourceError."""
        return next(self.releases([version], wanted, cache=cache))

    def releases(
        self, versions: Iterable[str], wanted: Wanted | None = None, *, cache: bool = True
    ) -> Iterator[Release]:
        """Releases in the order asked for, parsed by as many processes as there are processors. Raises SourceError."""
        return parse_releases(self, list(versions), wanted, cache)

    def closure(self, files: Mapping[str, str], modeset: bool) -> scan.Headers:
        """The headers that the ABI headers can include, and embedded_param_copy.c."""
        starts = scan.roots(files, modeset)
        if not any(path == f"{scan.SDK}/nvos.h" for path in starts):
            raise SourceError(f"no {scan.SDK}/nvos.h: not an open-gpu-kernel-modules tree")

        def includes(paths: list[str]) -> dict[str, list[tuple[bool, str]]]:
            said = self.said({path: files[path] for path in paths})
            return {path: each.includes for path, each in said.items()}

        closed = scan.closure(files, starts, includes)
        found = {path: files[path] for path in closed}
        if scan.EMBEDDED in files:
            found[scan.EMBEDDED] = files[scan.EMBEDDED]
        return scan.Headers(found, closed)

    def said(self, files: Mapping[str, str]) -> dict[str, scan.Said]:
        """What headers include and declare, by path; each blob is read once."""
        missing = {path: blob for path, blob in files.items() if (blob, scan.is_class(path)) not in self._said}
        content = self.read(set(missing.values()))
        for path, blob in missing.items():
            self._said[blob, scan.is_class(path)] = scan.said(path, content[blob])
        return {path: self._said[blob, scan.is_class(path)] for path, blob in files.items()}

    def __init__(self) -> None:
        self.table = LayoutTable()
        self._said: dict[tuple[str, bool], scan.Said] = {}


HEADER_PLACES = (*scan.ABI_DIRECTORIES, scan.EMBEDDED)
"""Where a tree has the files that ``wanted_file`` wants."""


def wanted_file(path: str) -> bool:
    """Whether a path in a tree is one that a source must know of."""
    if path == scan.EMBEDDED:
        return True
    if not path.endswith(".h"):
        return False
    folder = path.rpartition("/")[0]
    return folder in scan.ABI_DIRECTORIES or path.startswith(scan.SDK + "/")


def version_of(version_mk: bytes | None, name: str) -> str:
    """A tree's release: what its version.mk says, else the version in its name, else the name."""
    found = _VERSION_MK.search(version_mk or b"")
    if found is not None:
        return found[1].decode()
    in_name = _VERSION.search(name)
    return in_name[0] if in_name else name


class TreeSource(Source):
    """A source of plain files: the common part of directories and archives. Of a tree only ids are kept in memory."""

    def __init__(self, path: Path, versions: Iterable[str]) -> None:
        super().__init__()
        self.path = path
        self.versions = tuple(sorted(versions, key=natural))
        self._files: dict[str, dict[str, str]] = {}
        self._where: dict[str, tuple[str, str]] = {}

    @abstractmethod
    def tree(self, version: str, places: Sequence[str], wanted: Callable[[str], bool]) -> Mapping[str, bytes]:
        """The wanted files at or below some places of one tree."""

    @abstractmethod
    def content(self, version: str, path: str) -> bytes:
        """One file of a tree again."""

    def files(self, version: str) -> Mapping[str, str]:
        if version not in self._files:
            self._files[version] = self.select(version, HEADER_PLACES, wanted_file)
        return self._files[version]

    def select(self, version: str, places: Sequence[str], wanted: Callable[[str], bool]) -> dict[str, str]:
        if version not in self.versions:
            raise SourceError(f"no release {version}; it holds {', '.join(self.versions[:6])}", self.path)
        files = {file: blob_id(content) for file, content in sorted(self.tree(version, places, wanted).items())}
        self._where |= {blob: (version, file) for file, blob in files.items()}
        return files

    def read(self, blobs: Iterable[str]) -> dict[str, bytes]:
        found = {}
        for blob in blobs:
            version, file = self._where[blob]
            found[blob] = self.content(version, file)
            if blob_id(found[blob]) != blob:
                raise SourceError(f"{version}: {file} changed while it was read", self.path)
        return found


def by_version(path: Path, trees: Iterable[tuple[str, bytes | None, T]]) -> dict[str, T]:
    """Trees by release, from (name, version.mk, tree). Raises SourceError for two of one release."""
    found: dict[str, T] = {}
    for name, version_mk, tree in trees:
        version = version_of(version_mk, name)
        if version in found:
            raise SourceError(f"two trees of {version}", path)
        found[version] = tree
    return found


class DirectorySource(TreeSource):
    """A directory that is one tree, or that holds one tree a folder. Links and special files in it are refused."""

    def __init__(self, path: Path) -> None:
        trees: list[tuple[str, Path]] = []
        if (path / scan.SDK).is_dir():
            trees.append((path.resolve().name, path))
        else:
            for entry in _bounded(path):
                if Path(entry.path, scan.SDK).is_dir():
                    if entry.is_symlink():
                        raise SourceError("a tree that is a symbolic link; links are not followed", entry.path)
                    trees.append((entry.name, Path(entry.path)))
            if not trees:
                raise SourceError(f"no {scan.SDK} here or one folder below: not a driver source tree", path)
        named = (
            (name, read_file(tree, "version.mk") if has_file(tree, "version.mk") else None, tree)
            for name, tree in trees
        )
        self._roots = by_version(path, named)
        super().__init__(path, self._roots)

    def tree(self, version: str, places: Sequence[str], wanted: Callable[[str], bool]) -> Mapping[str, bytes]:
        return read_tree(self._roots[version], places, wanted)

    def content(self, version: str, path: str) -> bytes:
        return read_file(self._roots[version], path)


def read_tree(tree: Path, places: Sequence[str], wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """The wanted files at or below some places of a directory tree, by path in it. Of the ABI's folders only the SDK's
    has folders below it that are looked at."""
    found: dict[str, bytes] = {}
    total = count = 0
    flat = {place for place in scan.ABI_DIRECTORIES if place != scan.SDK}
    names = {place for place in places if wanted(place) and has_file(tree, place)}
    folders = [(place, place.count("/") + MAX_DEPTH) for place in places if not wanted(place)]
    while folders:
        folder, deepest = folders.pop()
        if _outside(tree, folder):
            raise SourceError("reached through a symbolic link; links are not followed", tree / folder)
        try:
            entries = list(_bounded(tree / folder))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise SourceError(f"{error.strerror}", tree / folder) from None
        count += len(entries)
        if count > MAX_FILES:
            raise SourceError(f"more than {MAX_FILES} files in {places[0]} and beside it", tree)
        for entry in entries:
            path = f"{folder}/{entry.name}"
            if folder not in flat and entry.is_dir(follow_symlinks=False):
                if path.count("/") > deepest:
                    raise SourceError(f"deeper than {MAX_DEPTH} folders", tree / folder)
                folders.append((path, deepest))
            elif wanted(path):
                names.add(path)
    for name in sorted(names):
        found[name] = read_file(tree, name)
        total += len(found[name])
        if total > MAX_HEADERS:
            raise SourceError(f"more than {MAX_HEADERS >> 20} MiB of headers", tree)
    return found


def _outside(tree: Path, folder: str) -> bool:
    """Whether a component of the path below the tree is a link."""
    parts = folder.split("/") if folder else []
    return any(os.path.islink(tree.joinpath(*parts[: n + 1])) for n in range(len(parts)))


def _bounded(folder: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for count, entry in enumerate(entries):
            if count > MAX_FILES:
                raise SourceError(f"more than {MAX_FILES} entries", folder)
            yield entry


def has_file(tree: Path, name: str) -> bool:
    """Whether a tree has a file or link of this name."""
    return os.path.lexists(tree / name)


def read_file(tree: Path, name: str) -> bytes:
    """A regular file's bytes; O_NONBLOCK so that a fifo answers, O_NOFOLLOW so that a link does not."""
    path = tree / name
    if _outside(tree, name.rpartition("/")[0]):
        raise SourceError("reached through a symbolic link; links are not followed", path)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        what = "a symbolic link; links are not followed" if path.is_symlink() else error.strerror
        raise SourceError(f"{what}", path) from None
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise SourceError("not a regular file", path)
        if status.st_size > MAX_HEADER:
            raise SourceError(f"{status.st_size} bytes; a header has at most {MAX_HEADER}", path)
        content = file.read(MAX_HEADER + 1)
    if len(content) > MAX_HEADER:
        raise SourceError(f"a header has at most {MAX_HEADER} bytes", path)
    return content
