"""Retry on compare-and-swap conflict: optimistic concurrency over the heads of a store."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from casfs.errors import Conflict

T = TypeVar("T")
MAX_RETRIES = 5


def retry_on_conflict(action: Callable[[], T]) -> T:
    """Retries `action` on compare-and-swap conflict, up to MAX_RETRIES times; it must be idempotent
    and read the heads afresh each time. Raises Conflict at last."""
    for _ in range(MAX_RETRIES):
        with suppress(Conflict):
            return action()
    return action()
