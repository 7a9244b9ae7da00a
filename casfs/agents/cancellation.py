"""Distinguishes trio's cancellation from the exceptions of third-party code, which may be any."""

from __future__ import annotations

import trio

CANCELLATION = (trio.Cancelled, GeneratorExit)


def reraise_cancellation(error: BaseException) -> None:
    """Raises the part of an error by which trio cancels the task; returns where it has none."""
    part: BaseException | None = error
    if isinstance(error, BaseExceptionGroup):
        part = error.split(CANCELLATION)[0]
    if part is not None and (part is not error or isinstance(error, CANCELLATION)):
        raise part
