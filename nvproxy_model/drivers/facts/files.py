"""Where the recorded facts are, and what their heads alone say: importing this takes next to nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from nvproxy_model.errors import SourceError
from nvproxy_model.naming import natural

__all__ = [
    "AS_OF",
    "COLUMNS",
    "FACTS",
    "MAX_FACTS",
    "MAX_HEAD",
    "SCHEMA",
    "TABLES",
    "Stamp",
    "kept_file",
    "newest",
    "own_file",
    "read_head",
    "stamp",
]

FACTS = Path(__file__).with_name("facts.zlib")
"""The shipped file: the public releases of NVIDIA's open-gpu-kernel-modules that this copy knows."""

AS_OF = "2026-08-21"
"""The state of the repository that the shipped file was recorded from."""

SCHEMA = "nvproxy-model/facts/3"
TABLES = ("rows", "structs", "constants", "enums", "params", "embedded", "exports", "classes", "texts")
"""The parts after the head. All but ``rows`` hold runs; ``texts`` has one name for each of the small facts."""
MAX_HEAD = 1 << 20
MAX_FACTS = 64 << 20
COLUMNS = ("versions", "parents", "above", "headers", "kinds", "commits")


_EARLIER = (
    "an earlier version wrote it; remove it, and record its releases anew: "
    "nvproxy-differ record --add VERSION --source REPOSITORY"
)
_EARLIER_NAME = "facts.json.xz"
_XZ = b"\xfd7zXZ\0"


def own_file() -> Path | None:
    """Where a user's own releases are kept: ``$NVPROXY_FACTS``, by default ``nvproxy-model/facts.zlib`` in
    ``$XDG_DATA_HOME`` or ``~/.local/share``. An empty ``$NVPROXY_FACTS`` means nowhere."""
    named = os.environ.get("NVPROXY_FACTS")
    if named is not None:
        return Path(named) if named else None
    base = os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share")
    return Path(base, "nvproxy-model", "facts.zlib") if os.path.isabs(base) else None


def read_head(line: bytes) -> dict[str, Any]:
    """The head, from the first line of a file. Raises ValueError, KeyError or TypeError for what is none."""
    if line.startswith(_XZ):
        raise ValueError(_EARLIER)
    try:
        head: dict[str, Any] = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError(f"not of this version, which is {SCHEMA}") from None
    if head["schema"] != SCHEMA:
        raise ValueError(f"not of this version, which is {SCHEMA}")
    columns = [head[name] for name in COLUMNS]
    rows = list(zip(*columns, strict=False))
    if not (
        all(type(column) is list and len(column) == len(rows) for column in columns)
        and len(set(head["versions"])) == len(rows)
        and all(_right(len(rows), *row) for row in rows)
        and _ends(head["parents"])
        and all(type(head["tables"][name]) is int and 0 < head["tables"][name] < MAX_FACTS for name in TABLES)
    ):
        raise ValueError("its head is damaged")
    return head


def _ends(parents: list[int]) -> bool:
    """Whether from each release its parents lead to one that has none."""
    good: set[int] = {-1}
    for place in range(len(parents)):
        walked = []
        while place not in good:
            walked.append(place)
            if len(walked) > len(parents):
                return False
            place = parents[place]
        good.update(walked)
    return True


def _right(count: int, version: Any, parent: Any, above: Any, headers: Any, kind: Any, commit: Any) -> bool:
    """Whether these can be a release's columns."""
    return (
        all(type(text) is str and text.isprintable() for text in (version, above or "", kind, commit))
        and version != ""
        and type(parent) is type(headers) is int
        and -1 <= parent < count
    )


def _versions(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            found: list[str] = read_head(file.readline(MAX_HEAD))["versions"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SourceError(f"not a file of recorded facts: {error}", path) from None
    return found


def newest() -> str:
    """The newest recorded release, the user's own included, without reading what is recorded of it. Raises SourceError."""
    own = kept_file()
    files = (FACTS,) if own is None else (FACTS, own[0])
    return max((version for path in files for version in _versions(path)), key=natural)


def kept_file() -> tuple[Path, Stamp] | None:
    """The user's own file and its stamp, or None. Raises SourceError if there is only a file of an earlier version."""
    own = own_file()
    if own is None:
        return None
    found = stamp(own)
    if found is not None:
        return own, found
    earlier = own.with_name(_EARLIER_NAME)
    if "NVPROXY_FACTS" not in os.environ and stamp(earlier) is not None:
        raise SourceError(_EARLIER, earlier)
    return None


Stamp = tuple[int, int]
"""What changes when a file is written anew."""


def stamp(path: Path) -> Stamp | None:
    """A file's stamp, or None if it is not there; a damaged one is found when it is read."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino
