"""The processes of a recorded tree: which one a thread is of, and what each one runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

__all__ = ["Processes"]

_PATH_MAX: Final = 4096
_REMEMBERED: Final = 4096


def _status(tid: int, name: str) -> int:
    try:
        for line in Path(f"/proc/{tid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return tid


class Processes:
    """``commands`` is where the command of each process seen goes: pid -> words."""

    def __init__(self, commands: dict[int, str]) -> None:
        self.commands = commands
        self._of: dict[int, int] = {}

    def of(self, tid: int) -> int:
        """The process of a thread; its own number when it is gone."""
        found = self._of.get(tid)
        if found is None:
            if len(self._of) >= _REMEMBERED:
                self._of.clear()
            found = self._of[tid] = _status(tid, "Tgid")
        return found

    def begun(self, pid: int, now: int) -> dict[str, Any] | None:
        """The record of a process that was not seen before."""
        if pid in self.commands or len(self.commands) >= _REMEMBERED:
            return None
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()[:_PATH_MAX]
        except OSError:
            command = b""
        words = [word.decode("utf-8", "replace") for word in command.rstrip(b"\0").split(b"\0")]
        self.commands[pid] = " ".join(words)
        parent = _status(pid, "PPid")
        return {"k": "process", "t": now, "pid": pid, "tid": pid, "ppid": parent, "how": "seen", "command": words}
