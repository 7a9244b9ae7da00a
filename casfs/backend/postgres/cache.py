"""The local cache of a machine: a disk backend whose content can all be brought again.

Frames of packs, in their mirrors, and what is in rows and `objects/` are each bounded by
`cache.max_size`: what was used least recently goes, looked for whenever a share of that was stored.
Images of trees do not need it: a layer of theirs brings what is absent (`casfs.native.images`).
"""

from __future__ import annotations

from pathlib import Path

from casfs.backend.disk import DiskBackend
from casfs.backend.frame_mirror import evict
from casfs.backend.lazy_packs import EVICT_SHARE, cache_limit
from casfs.lru_cache import LruCache

USED_BLOBS = 100_000


class Cache:
    """`used`: blobs that this process has read since the last eviction."""

    def __init__(self, root: Path, local: DiskBackend) -> None:
        self.local = local
        self.used = LruCache(USED_BLOBS)
        self._root = root
        self._limit = cache_limit(root)
        self._stored = 0

    def note(self, size: int) -> None:
        """Evicts, once enough was stored since the last time."""
        self._stored += size
        if self._limit and self._stored > self._limit // EVICT_SHARE:
            self._stored = 0
            evict(self._root, self._limit)
            used, self.used = self.used, LruCache(USED_BLOBS)
            self.local.evict(self._limit, used.keys())
