"""Tar archives of driver trees, read once as a stream: bounded, links and members outside the root refused."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

from nvproxy_model.drivers.parsing import scan
from nvproxy_model.drivers.sources.source import (
    HEADER_PLACES,
    MAX_HEADER,
    MAX_HEADERS,
    TreeSource,
    by_version,
    wanted_file,
)
from nvproxy_model.errors import SourceError

__all__ = ["ArchiveSource"]

MAX_UNPACKED = 1 << 30
"""Bytes that an archive may unpack to; a release has about 150 million."""
MAX_MEMBERS = 200_000
MAX_TREES = 256
MAX_EXTENSION = 64 << 10
"""Bytes of one extended header: a long name, or the attributes of a pax header."""
MAX_GLOBAL = 4 << 10
"""Bytes of all global pax headers, whose attributes tarfile copies into each member; git archive writes 52."""
MAX_EXTENSIONS = 32 << 20
"""Bytes of all extended headers of an archive."""

_OPENERS: tuple[tuple[bytes, Any], ...] = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\0", lzma.open))


class _Bounded(io.RawIOBase):
    """The unpacked stream, up to MAX_UNPACKED; it remembers whether it ended in the zeros that end every tar archive."""

    def __init__(self, stream: IO[bytes], path: Path) -> None:
        self._stream = stream
        self._path = path
        self._total = 0
        self.last = b""

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(min(size, 1 << 20) if size >= 0 else 1 << 20)
        self._total += len(data)
        if self._total > MAX_UNPACKED:
            raise SourceError(f"unpacks to more than {MAX_UNPACKED >> 30} GiB", self._path)
        if data:
            self.last = (self.last + data)[-512:]
        return data


class _Extensions:
    """What one archive spends on headers that extend headers, which tarfile reads by itself, each before it gives a member."""

    def __init__(self) -> None:
        self.all = self.common = 0

    def spend(self, kind: bytes, size: int) -> None:
        if kind == tarfile.GNUTYPE_SPARSE:
            raise SourceError("a sparse member; a driver's sources have none")
        if kind not in (
            tarfile.GNUTYPE_LONGNAME,
            tarfile.GNUTYPE_LONGLINK,
            tarfile.XHDTYPE,
            tarfile.XGLTYPE,
            tarfile.SOLARIS_XHDTYPE,
        ):
            return
        self.all += size
        self.common += size if kind == tarfile.XGLTYPE else 0
        if size > MAX_EXTENSION:
            raise SourceError(f"an extended header of {size} bytes; at most {MAX_EXTENSION}")
        if self.common > MAX_GLOBAL:
            raise SourceError(f"global headers of more than {MAX_GLOBAL} bytes")
        if self.all > MAX_EXTENSIONS:
            raise SourceError(f"extended headers of more than {MAX_EXTENSIONS >> 20} MiB in all")


def _counting(spent: _Extensions) -> type[tarfile.TarInfo]:
    class Member(tarfile.TarInfo):
        """A header block, looked at before tarfile acts on it: every release of Python calls this, and says that it may be
        overridden. Newer ones no longer call frombuf()."""

        def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
            spent.spend(self.type, self.size)
            member: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]
            return member

    return Member


class ArchiveSource(TreeSource):
    """A tar archive (plain, gzip, bzip2 or xz) of one tree, or of one folder per version."""

    def __init__(self, path: Path) -> None:
        trees = {name: tree for name, tree in _checked(path).items() if f"{scan.SDK}/nvos.h" in tree}
        if not trees:
            raise SourceError(f"no {scan.SDK} in it: not a driver source archive", path)
        self._trees = by_version(path, ((name, tree.pop("version.mk", None), tree) for name, tree in trees.items()))
        super().__init__(path, self._trees)

    def tree(self, version: str, places: Sequence[str], wanted: Callable[[str], bool]) -> Mapping[str, bytes]:
        if places is HEADER_PLACES:
            return self._trees[version]
        # Rare, and much to keep: the archive is read once more for it.
        named = (
            (name, tree.pop("version.mk", None), tree) for name, tree in _checked(self.path, places, wanted).items()
        )
        more = by_version(self.path, named).get(version, {})
        self._trees[version] |= more
        return more

    def content(self, version: str, path: str) -> bytes:
        return self._trees[version][path]


def _checked(
    path: Path, places: Sequence[str] = HEADER_PLACES, wanted: Callable[[str], bool] = wanted_file
) -> dict[str, dict[str, bytes]]:
    """What ``_read`` gives. Raises SourceError, which names the archive, for whatever is wrong with it."""
    try:
        return _read(path, places, wanted)
    except SourceError as error:
        raise error.at(path) from None
    except OSError as error:
        raise SourceError(f"{error.strerror or error}", path) from None
    except (EOFError, tarfile.TarError, zlib.error, lzma.LZMAError, UnicodeError, ValueError, OverflowError) as error:
        raise SourceError(f"truncated or not a tar archive: {error}", path) from None
    except RecursionError:
        raise SourceError("extended headers without end", path) from None


def _read(path: Path, places: Sequence[str], wanted: Callable[[str], bool]) -> dict[str, dict[str, bytes]]:
    """The wanted files at or below some places of each tree, and its version.mk, by the name of its folder."""
    mark_of = re.compile(f"/(?=(?:{'|'.join(map(re.escape, places))})(?:/|$))")
    trees: dict[str, dict[str, bytes]] = {}
    makefiles: dict[str, bytes] = {}
    total = 0
    with path.open("rb") as raw:
        start = raw.read(6)
        raw.seek(0)
        opener = next((opener for magic, opener in _OPENERS if start.startswith(magic)), None)
        with opener(raw) if opener else raw as unpacked:
            stream = _Bounded(unpacked, path)
            with tarfile.open(
                fileobj=cast("IO[bytes]", stream), mode="r|", tarinfo=_counting(_Extensions())
            ) as archive:
                for count, member in enumerate(archive):
                    if count >= MAX_MEMBERS:
                        raise SourceError(f"more than {MAX_MEMBERS} members", path)
                    archive.members = []  # type: ignore[attr-defined]  # a stream is read once; do not keep them all
                    name = member.name.removeprefix("./")
                    if name.startswith("/") or ".." in name.split("/"):
                        raise SourceError(f"member {member.name!r} is outside the archive's root", path)
                    if member.issym() or member.islnk():
                        raise SourceError(
                            f"member {member.name!r} is a link to {member.linkname!r}; links are refused", path
                        )
                    if not member.isreg():
                        if member.isdir():
                            continue
                        raise SourceError(f"member {member.name!r} is neither a file nor a directory", path)
                    mark = mark_of.search("/" + name)
                    if name.rpartition("/")[2] == "version.mk":
                        root, inner = name.rpartition("/")[0], "version.mk"
                    elif mark is None:
                        continue
                    else:
                        root, inner = name[: max(mark.start() - 1, 0)], name[mark.end() - 1 :]
                    if inner != "version.mk" and not wanted(inner):
                        continue
                    if member.size > MAX_HEADER:
                        raise SourceError(
                            f"member {member.name!r} has {member.size} bytes; a header has at most {MAX_HEADER}", path
                        )
                    file = archive.extractfile(member)
                    content = b"" if file is None else file.read()
                    total += len(content)
                    if total > MAX_HEADERS * 4:
                        raise SourceError(f"more than {MAX_HEADERS * 4 >> 20} MiB of headers", path)
                    if inner == "version.mk":
                        makefiles[root] = content
                        continue
                    if inner in trees.setdefault(root, {}):
                        raise SourceError(f"member {member.name!r} is there twice", path)
                    trees[root][inner] = content
                    if len(trees) > MAX_TREES:
                        raise SourceError(f"more than {MAX_TREES} trees", path)
            while stream.read(1 << 20):
                pass
            if stream.last.strip(b"\0") or not stream.last:
                raise SourceError("truncated: the archive does not end as tar archives do", path)
    for root, tree in trees.items():
        if root in makefiles:
            tree["version.mk"] = makefiles[root]
    return {root.rpartition("/")[2] or path.name: tree for root, tree in trees.items()}
