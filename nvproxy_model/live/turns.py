"""Whose turn it is to receive the next call, so that a slow one holds up nobody and a quick one wakes nobody."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

__all__ = ["Turn", "Turns"]

_PATIENCE: Final = 0.005
"""Seconds that a call may take before another thread receives the next one, where one thread of the program makes them all."""
_RECENT: Final = 8


class Turn:
    """One call that is answered by the thread that received it."""

    __slots__ = ("kept",)

    def __init__(self) -> None:
        self.kept = True


class Turns:
    """Threads that take turns at receiving. ``work`` is what a new one does; at most ``limit`` of them are started.

    A thread keeps its turn while it answers a call, since waking another costs more than most answers. It passes the turn on at
    once where several threads of the program made the last calls, and is made to when it takes long.
    """

    def __init__(self, work: Callable[[], None], limit: int) -> None:
        self._work, self._limit = work, limit
        self._receiving = threading.Lock()
        self._guard = threading.Lock()
        self._turn: Turn | None = None
        self._waiting = 0
        self._threads: list[threading.Thread] = []
        self._recent: deque[int] = deque(maxlen=_RECENT)
        self._over = threading.Event()

    def start(self) -> None:
        """Begin with one thread, and one that watches for slow calls."""
        self._another()
        watch = threading.Thread(target=self._watch, daemon=True)
        self._threads.append(watch)
        watch.start()

    def join(self) -> None:
        """Wait until all threads have seen the end."""
        for thread in list(self._threads):
            thread.join()

    def take(self) -> bool:
        """Wait for the turn; False when there is nothing left to receive."""
        with self._guard:
            self._waiting += 1
        self._receiving.acquire()
        with self._guard:
            self._waiting -= 1
        if self._over.is_set():
            self._receiving.release()
        return not self._over.is_set()

    def end(self) -> None:
        """Nothing is left: every thread that takes a turn learns it."""
        self._over.set()
        self._receiving.release()

    def begin(self, caller: int) -> Turn:
        """A call of this thread of the program was received."""
        turn = self._turn = Turn()
        self._recent.append(caller)
        if len(set(self._recent)) > 1:
            self._pass_on(turn)
        return turn

    def finish(self, turn: Turn) -> bool:
        """The call was answered; whether the turn is still the answering thread's."""
        with self._guard:
            kept, turn.kept = turn.kept, False  # who watches may have seen it and come later
            if kept:
                self._turn = None
            return kept

    def _pass_on(self, turn: Turn) -> None:
        with self._guard:
            if not turn.kept:
                return
            turn.kept = False
            self._turn = None
            alone = not self._waiting
        if alone:
            self._another()
        self._receiving.release()

    def _another(self) -> None:
        if len(self._threads) >= self._limit:
            return
        thread = threading.Thread(target=self._work, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no thread left: those that are there go on
            return
        self._threads.append(thread)

    def _watch(self) -> None:
        seen = None
        while not self._over.is_set():
            self._over.wait(_PATIENCE)
            turn = self._turn
            if turn is not None and turn is seen:
                self._pass_on(turn)
            seen = turn
