"""The processes of a recorded tree: which one a thread is of, and what each one runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from nvproxy_model.printable import printable

__all__ = ["Processes", "text"]

_PATH_MAX: Final = 4096
_REMEMBERED: Final = 4096
_SECOND: Final = 1_000_000_000


def text(data: bytes) -> str:
    """Bytes of a path or an argument as a trace holds them: ``\\xNN`` for those that are not UTF-8."""
    return data.decode("utf-8", "backslashreplace")


def _status(tid: int, name: str) -> int:
    try:
        for line in Path(f"/proc/{tid}/status").read_bytes().splitlines():
            if line.startswith(f"{name}:".encode()):
                return int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return tid


class Processes:
    """``commands`` is where the command of each process seen goes: pid -> words."""

    def __init__(self, commands: dict[int, str]) -> None:
        self.commands = commands
        self._of: dict[int, tuple[int, int]] = {}

    def of(self, tid: int) -> int:
        """The process of a thread; its own number when it is gone."""
        now = time.monotonic_ns()
        found = self._of.get(tid)
        # After a second the number may be another thread's.
        if found is None or now - found[1] > _SECOND:
            if len(self._of) >= _REMEMBERED:
                self._of.clear()
            found = self._of[tid] = (_status(tid, "Tgid"), now)
        return found[0]

    def execed(self, tid: int) -> None:
        """A thread is about to exec: it will have its process's number, and the process another command."""
        self.commands.pop(self.of(tid), None)
        self._of.pop(tid, None)

    def begun(self, pid: int, now: int) -> dict[str, Any] | None:
        """The record of a process that was not seen before."""
        if pid in self.commands or len(self.commands) >= _REMEMBERED:
            return None
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()[:_PATH_MAX]
        except OSError:
            command = b""
        words = [text(word) for word in command.rstrip(b"\0").split(b"\0")]
        self.commands[pid] = printable(" ".join(words))
        parent = _status(pid, "PPid")
        return {"k": "process", "t": now, "pid": pid, "tid": pid, "ppid": parent, "how": "seen", "command": words}
