"""Signals that are meant for a program and come to the command that waits for it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Final

__all__ = ["passed_on"]

_TERMINAL: Final = (signal.SIGINT, signal.SIGQUIT)
_PASSED: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@contextlib.contextmanager
def passed_on(send: Callable[[int], object]) -> Iterator[None]:
    """While a program runs in our place, call ``send`` with the number of each signal that is the program's.

    SIGINT and SIGQUIT are ignored: the terminal sends them to the program as well. ``send`` is called in a thread of its own; an
    OSError of it means that the program has ended. Nothing changes outside the main thread, or if no thread can be started.
    """
    if threading.current_thread() is not threading.main_thread():  # an embedder's signals are its own
        yield
        return
    # Python calls a handler between bytecodes: one whose signal came just before a blocking wait would run after it. The number
    # is written to this descriptor by the C handler, at once.
    arrived, wake = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(wake, False)
    passing = threading.Thread(target=_pass_on, args=(arrived, send), daemon=True)
    try:
        passing.start()
    except RuntimeError:
        os.close(arrived)
        os.close(wake)
        yield
        return
    woken_before = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _TERMINAL}
    before |= {number: signal.signal(number, lambda *_: None) for number in _PASSED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(woken_before)
        os.close(wake)
        passing.join()
        os.close(arrived)


def _pass_on(arrived: int, send: Callable[[int], object]) -> None:
    while numbers := os.read(arrived, 64):
        for number in numbers:
            if number in _PASSED:
                with contextlib.suppress(OSError):
                    send(number)
