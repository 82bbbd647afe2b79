"""Who is there: discovers the endpoints of a directory, identifies them and says which are alive."""

from __future__ import annotations

import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .directory import open_directory
from .endpoint import identify
from .frame import ProtocolError, Status

_NAME = re.compile(r"[0-9a-f]{32}")
_AT_ONCE = 8

MEANINGS = {
    Status.TRANSPORT: "gone",  # nobody listens, or no answer in time
    Status.PARTICIPANT: "replaced",  # somebody else listens there now
    Status.PEER: "foreign",  # another uid
}


@dataclass(frozen=True)
class Member:
    """One endpoint: state is alive, gone, replaced, foreign or broken; pid is None unless it answered; why is for people."""

    participant: str
    endpoint: str
    state: str
    pid: int | None
    why: str


def _member(path: Path, name: str, timeout: float) -> Member:
    try:
        _, pid = identify(str(path / name), bytes.fromhex(name), timeout)
    except ProtocolError as error:
        return Member(name, str(path / name), MEANINGS.get(error.status, "broken"), None, str(error))
    return Member(name, str(path / name), "alive", pid, "identified")


def discover(path: Path, timeout: float = 1.0) -> list[Member]:
    """Every endpoint in a directory, by name; other files are none. OSError for a directory that cannot be trusted or read."""
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
