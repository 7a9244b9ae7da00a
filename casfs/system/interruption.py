"""Interrupts long work between its pieces: recording a directory, hashing a large file.

Who starts the work says how to find out whether it is still wanted (`interruptible`), and the loops
that may take long ask (`check`). The question is kept in a context variable, so the functions in
between need no parameter for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_CHECK: ContextVar[Callable[[], None]] = ContextVar("check", default=lambda: None)


@contextmanager
def interruptible(check: Callable[[], None]) -> Iterator[None]:
    """The work inside is abandoned by what `check` raises."""
    token = _CHECK.set(check)
    try:
        yield
    finally:
        _CHECK.reset(token)


def check() -> None:
    """Raises what the caller of `interruptible` has it raise where the work is not wanted any
    more."""
    _CHECK.get()()
