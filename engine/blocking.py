"""Runs blocking calls in worker threads, so that the daemon's loop never waits for its store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

T = TypeVar("T")


async def blocking(function: Callable[[], T]) -> T:
    """Runs a blocking call in a worker thread. Raises what the call raises."""
    return await trio.to_thread.run_sync(function)
