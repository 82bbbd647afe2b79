"""Which endpoints a directory holds, and which of them are alive."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .directory import open_directory
from .endpoint import identify
from .frame import ProtocolError, Status

_NAME = re.compile(r"[0-9a-f]{32}")
_AT_ONCE = 8

State = Literal["alive", "gone", "replaced", "foreign", "broken"]
"""What an endpoint is. broken: it breaks the protocol."""
MEANINGS: Mapping[int, State] = {
    Status.TRANSPORT: "gone",  # nothing listens there, or no answer came in time
    Status.PARTICIPANT: "replaced",  # another participant listens there now
    Status.PEER: "foreign",  # another uid
}
"""The state of an endpoint that does not answer as its name says, by what was answered."""


@dataclass(frozen=True)
class Member:
    """One endpoint.

    participant: 32 hexadecimal digits, the name of its socket. endpoint: the socket's path. pid: of the process that
    answered, else None. why: for people.
    """

    participant: str
    endpoint: str
    state: State
    pid: int | None
    why: str


def _member(path: Path, name: str, timeout: float) -> Member:
    try:
        _, pid = identify(str(path / name), bytes.fromhex(name), timeout)
    except ProtocolError as error:
        return Member(name, str(path / name), MEANINGS.get(error.status, "broken"), None, str(error))
    return Member(name, str(path / name), "alive", pid, "identified")


def discover(path: Path, timeout: float = 1.0) -> list[Member]:
    """Every endpoint in a directory, sorted by name; files with other names are left out.

    timeout: seconds for each to answer. OSError for a directory that cannot be read, or is not the caller's alone.
    """
    fd = open_directory(path)
    try:
        # /proc/self/fd: O_PATH descriptors cannot be listed themselves.
        with os.scandir(f"/proc/self/fd/{fd}") as entries:
            names = sorted(
                entry.name
                for entry in entries
                if _NAME.fullmatch(entry.name) and stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode)
            )
    finally:
        os.close(fd)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda name: _member(path, name, timeout), names))
