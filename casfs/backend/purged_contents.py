"""What was purged from a store, and what readers get instead, as a process knows it.

A tombstone may appear while a process lives. So every read of a decoded directory asks here; what
is asked is the journal, and of that at most every CHECK_INTERVAL_S whether it has grown. Caches of
what was read before are then cleared.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from casfs.backend.journal import JournalReader
from casfs.backend.protocols import Backend
from casfs.digest import BlobHash, Digest, is_hash
from casfs.system.lru_cache import LruCache

PURGED = "purged/"  # prefix of the heads that are tombstones
CHECK_INTERVAL_S = 0.02


class PurgedContents:
    """Thread-safe."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._journal: JournalReader | None = None
        self._checked_at = 0.0
        self._caches: list[LruCache] = []
        self._replaced: dict[str, Digest | None] = {}

    def add_cache(self, cache: LruCache) -> None:
        """Has a cache cleared whenever something is purged."""
        self._caches.append(cache)

    def recheck(self) -> None:
        """Has the next read ask the journal: this process has written a tombstone."""
        self._checked_at = 0.0

    def replaced(self) -> Mapping[str, Digest | None]:
        """Returns of each purged blob what readers get instead, None where there is nothing. A new
        object once that has changed."""
        if time.monotonic() - self._checked_at >= CHECK_INTERVAL_S:
            with self._lock:
                self._check()
        return self._replaced

    def _check(self) -> None:
        if self._journal is None:
            journal = JournalReader(self._backend)
            self._load()
            self._journal = journal
        else:
            moves = self._journal.new_moves()
            if self._journal.lost or any(move.name.startswith(PURGED) for move in moves):
                self._load()
        self._checked_at = time.monotonic()

    def _load(self) -> None:
        substitutes: dict[str, str | None] = {}
        for name, head in self._backend.heads.list(PURGED):
            substitute = head.record.get("substitute")
            substitutes[name.removeprefix(PURGED)] = substitute if is_hash(substitute) else None
        if not substitutes and not self._replaced:
            return
        infos = self._backend.blobs.info(
            {substitute for substitute in substitutes.values() if substitute is not None}
        )
        replaced: dict[str, Digest | None] = {}
        for hash, substitute in substitutes.items():
            replaced[hash] = None
            info = infos.get(substitute or "")
            if substitute is not None and info is not None and not info.purged:
                replaced[hash] = Digest(BlobHash(substitute), info.size)
        self._replaced = replaced
        for cache in self._caches:
            cache.clear()
