"""Who may call what, from a source: the tables of its releases, each file that several releases share read once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nvproxy_model.drivers.parsing import nvoc
from nvproxy_model.drivers.privileges import Privileges
from nvproxy_model.drivers.release import Provenance, Release
from nvproxy_model.drivers.sources.source import Source
from nvproxy_model.errors import SourceError

__all__ = ["PrivilegeReader", "whole"]

_BATCH = 64
"""Files in memory at once while those are sought that copy user memory."""


class PrivilegeReader:
    """Reads the tables of a source's releases."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._copies: dict[str, bool] = {}
        """Blob id -> whether that C file copies user memory."""

    def read(self, version: str) -> Privileges | None:
        """The tables of one release; None for a tree that has none of their files.

        Raises SourceError, naming the source and the release.
        """
        source = self._source
        try:
            files = source.select(version, nvoc.PLACES, nvoc.is_table)
            if not files:
                return None
            contents = source.read(files.values())
            return nvoc.parse({path: contents[blob] for path, blob in files.items()}, self._copying(version))
        except SourceError as error:
            raise error.at(f"{source.path}: {version}") from None

    def _copying(self, version: str) -> Iterator[str]:
        files = self._source.select(version, nvoc.COPYING, lambda path: path.endswith(".c"))
        fresh = [blob for blob in dict.fromkeys(files.values()) if blob not in self._copies]
        for start in range(0, len(fresh), _BATCH):
            for blob, text in self._source.read(fresh[start : start + _BATCH]).items():
                self._copies[blob] = nvoc.copies_user_memory(text)
        return (path for path, blob in sorted(files.items()) if self._copies[blob])


def whole(source: Source, releases: Iterable[Release]) -> Iterator[tuple[Release, Privileges | None, Provenance]]:
    """All that is recorded of each release, for releases that this source has read whole."""
    reader = PrivilegeReader(source)
    for release in releases:
        yield release, reader.read(release.version), source.provenance(release.version)
