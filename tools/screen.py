"""Text on a terminal: rows no wider than it, and a pager for what is longer than it. Nowhere else does anything change."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    import subprocess

__all__ = ["Screen", "fold", "pager", "shown"]

_STYLE = re.compile(r"\x1b\[[\d;]*m")
_WORD = re.compile(r"\s*\S+")


def _width(text: str) -> int:
    return len(_STYLE.sub("", text))


def fold(line: str, width: int) -> list[str]:
    """A line as rows of at most ``width`` columns, the further ones indented below the first.

    It is broken between words only: a longer word has a row of its own, and columns that fit stay where they are.
    """
    if _width(line) <= width:
        return [line]
    indent = " " * min(len(line) - len(line.lstrip()) + 4, width // 2)
    rows = [""]
    for word in _WORD.findall(line):
        if rows[-1].strip() and _width(rows[-1] + word) > width:
            rows.append(indent + word.lstrip())
        else:
            rows[-1] += word
    return rows


def pager() -> str:
    """The user's pager as a shell command: $PAGER, or less; "" for none, or for one that is not there."""
    if os.environ.get("TERM") in (None, "", "dumb"):
        return ""
    wanted = os.environ.get("PAGER", "less")
    program = next(iter(wanted.split()), "cat")
    return "" if program == "cat" or not _is_there(program) else wanted


def _is_there(program: str) -> bool:
    """Whether a shell knows it: a program, or a word of its own."""
    import subprocess

    asked = ["sh", "-c", 'command -v "$1"', "sh", program]
    return subprocess.run(asked, capture_output=True, check=False, timeout=10).returncode == 0


class Screen(io.TextIOBase):
    """A terminal as standard output. Up to a screenful is held back; what is longer goes to the ``pager``, if there is one."""

    def __init__(self, terminal: TextIO, *, folds: bool, pager: str) -> None:
        self._terminal, self._folds, self._command = terminal, folds, pager
        self._columns, self._lines = shutil.get_terminal_size()
        self._held: list[str] | None = [] if pager else None
        self._pager: subprocess.Popen[str] | None = None
        self._begun = ""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._terminal.encoding

    @property
    def buffer(self) -> Any:
        """The terminal's own bytes: what is written to them is neither folded nor paged."""
        self._release()
        self._out.flush()
        return self._terminal.buffer

    @property
    def paged(self) -> bool:
        """Whether the pager has the terminal."""
        return self._pager is not None

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._terminal.fileno()

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            for row in fold(line, self._columns) if self._folds else [line]:
                self._row(row + "\n")
        return len(text)

    def flush(self) -> None:
        if self._held is None and not self._out.closed:  # it may be, when this is closed for want of use
            self._out.flush()

    def finish(self) -> None:
        """Write what is held or begun, and wait until the user has left the pager. Who leaves it early knows enough."""
        begun, self._begun = self._begun, ""
        try:
            with contextlib.suppress(BrokenPipeError) if self.paged else contextlib.nullcontext():
                self._release()
                self._out.write(begun)
                self._out.flush()
        finally:
            if self._pager is not None:
                with contextlib.suppress(BrokenPipeError):
                    self._out.close()
                while self._pager.poll() is None:
                    with contextlib.suppress(KeyboardInterrupt):  # it is the pager's
                        self._pager.wait()

    @property
    def _out(self) -> TextIO:
        if self._pager is None:
            return self._terminal
        assert self._pager.stdin is not None
        return self._pager.stdin  # type: ignore[return-value]

    def _row(self, row: str) -> None:
        if self._held is None:
            self._out.write(row)
            return
        self._held.append(row)
        if len(self._held) >= self._lines:
            import subprocess

            # FRX: it ends at once for a short text, takes colours, and leaves the text on the terminal.
            environment = {"LESS": "FRX", **os.environ}
            self._pager = subprocess.Popen(
                self._command, shell=True, stdin=subprocess.PIPE, text=True, encoding=self.encoding, env=environment
            )
            self._release()

    def _release(self) -> None:
        held, self._held = self._held or [], None
        self._out.writelines(held)


@contextlib.contextmanager
def shown(*, folds: bool, pages: bool) -> Iterator[None]:
    """Standard output is a `Screen` meanwhile, if it is a terminal. A pager asks for a user, at standard input."""
    if not sys.stdout.isatty():
        yield
        return
    screen = Screen(sys.stdout, folds=folds, pager=pager() if pages and sys.stdin and sys.stdin.isatty() else "")
    with contextlib.redirect_stdout(screen):
        try:
            yield
        finally:
            screen.finish()
