"""Waiting for signals and file descriptors together, in a single-threaded process.

No signal is lost: `blocked` keeps them pending over a fork or an exec, after which each
process sets its own handlers.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

Handler = Callable[[int, Any], Any] | int | None
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def blocked() -> Iterator[None]:
    """Blocks all signals; pending ones are delivered at the end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def deferred() -> Iterator[None]:
    """Handles the signals that end a program at the end of the block. Unlike `blocked`, a process
    that is started in it gets none of this. Of other threads than the main one no handler is run,
    so there it has no effect."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    handlers: dict[int, Any] = {}
    for number in ENDING:
        if callable(handler := signal.getsignal(number)):
            handlers[number] = handler
            signal.signal(number, lambda received_number, _: received.append(received_number))
    try:
        yield
    finally:
        for deferred_number, handler in handlers.items():
            signal.signal(deferred_number, handler)
        for late in received:
            signal.raise_signal(late)


class Signals:
    """While entered, these signals only end `wait`. Main thread only."""

    def __init__(self, numbers: Iterable[signal.Signals]) -> None:
        self._numbers = list(numbers)
        self._before: dict[int, Any] = {}
        self._pipe = -1, -1

    def __enter__(self) -> Signals:
        self._pipe = os.pipe()
        for fd in self._pipe:
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        for number in self._numbers:
            self._before[number] = signal.signal(number, _ignore)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(-1)
        for fd in self._pipe:
            os.close(fd)

    def wait(self, fds: Iterable[int], seconds: float | None = None) -> set[int]:
        """Waits for a signal or a readable descriptor; returns the signals received."""
        ready, _, _ = select.select([self._pipe[0], *fds], [], [], seconds)
        seen: set[int] = set()
        if self._pipe[0] in ready:
            with suppress(BlockingIOError):
                while data := os.read(self._pipe[0], 512):
                    seen.update(data)
        return seen

    def reset(self, handlers: Mapping[signal.Signals, Handler]) -> None:
        """Sets the handlers of a forked process, where all signals are blocked; SIG_DFL for the
        others."""
        signal.set_wakeup_fd(-1)
        for fd in self._pipe:
            os.close(fd)
        for number in self._numbers:
            signal.signal(number, handlers.get(number, signal.SIG_DFL))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())


def _ignore(number: int, frame: object) -> None:
    """The interpreter has written the number to the wakeup descriptor."""
