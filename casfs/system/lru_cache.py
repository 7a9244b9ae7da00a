"""A bounded LRU cache of decoded values. They are shared, so they must not be mutated."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any


class LruCache:
    """Evicts the least recently used entries while the weights add up to more than `limit`.
    `generation`: changes when the cache is cleared. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self.generation = 0
        self._limit = limit
        self._weight = 0
        self._items: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._items)

    def keys(self) -> list[str]:
        with self._lock:
            return list(self._items)

    def clear(self) -> None:
        with self._lock:
            self._items.clear()
            self._weight = 0
            self.generation += 1

    def get(self, key: str) -> Any | None:
        with self._lock:
            cached = self._items.get(key)
            if cached is None:
                return None
            self._items.move_to_end(key)
            return cached[0]

    def put(self, key: str, value: Any, weight: int, generation: int | None = None) -> None:
        """Caches `value`, in place of the key's earlier one. `generation`: of the cache before the
        value was read; a value that was read before the cache was cleared is not cached."""
        with self._lock:
            if generation is not None and generation != self.generation:
                return
            _, before = self._items.pop(key, (None, 0))
            self._items[key] = value, weight
            self._weight += weight - before
            while self._weight > self._limit and len(self._items) > 1:
                _, (_, evicted) = self._items.popitem(last=False)
                self._weight -= evicted
