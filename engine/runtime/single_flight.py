"""Single-flight: equal cacheable steps run one at a time, so that the second is a cache hit.

One daemon runs all threads of a store, so a lock inside its process is enough. No deadlock: the
depth is in the key, so a step never waits for one that its own children wait for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

import trio


class SingleFlight:
    """A lock for each key. All runs of a daemon share one."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def lock(self, key: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault(key, trio.Lock())
        async with lock:
            yield
