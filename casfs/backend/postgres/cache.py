"""The local cache of a machine: a disk backend whose content can all be brought again.

Frames of packs, in their mirrors, and what is in rows and `objects/` are each bounded by
`cache.max_size`: what was used least recently goes, looked for whenever a share of that was stored.
Images of trees do not need it: a layer of theirs brings what is absent (`casfs.native.images`).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from pathlib import Path

from casfs.backend.disk import DiskBackend
from casfs.backend.frame_mirror import evict
from casfs.backend.lazy_packs import EVICT_SHARE, cache_limit
from casfs.backend.postgres.connection import Row
from casfs.backend.protocols import BlobInfo, Staged
from casfs.backend.sqlite_statements import key_of, type_key
from casfs.system.lru_cache import LruCache

USED_BLOBS = 100_000
PUBLISHED_BYTES = 16 << 20


class Cache:
    """`used`: blobs that this process has read since the last eviction."""

    def __init__(self, root: Path, local: DiskBackend) -> None:
        self.local = local
        self.used = LruCache(USED_BLOBS)
        self._root = root
        self._limit = cache_limit(root)
        self._stored = 0
        self._published = LruCache(PUBLISHED_BYTES)  # rows of this process, which it reads again

    def note_published(self, staged: Iterable[Staged]) -> None:
        for blob in staged:
            if blob.data is not None:
                value = time.monotonic(), blob._replace(temp=None)
                self._published.put(blob.digest.hash, value, len(blob.data))

    def published_rows(self, hashes: Collection[str]) -> list[Row]:
        """Returns those that this process has published, as the database has them."""
        published = (self._published.get(hash) for hash in hashes)
        return [_row(blob) for _, blob in filter(None, published)]

    def published_nodes(self, hashes: Collection[str], seconds: float) -> dict[str, BlobInfo]:
        """Returns the nodes that were published so recently."""
        published = {hash: self._published.get(hash) for hash in hashes}
        since = time.monotonic() - seconds
        return {
            hash: BlobInfo(cached[1].digest.size_bytes, cached[1].type)
            for hash, cached in published.items()
            if cached and cached[0] > since and cached[1].type is not None
        }

    def forget_published(self) -> None:
        self._published = LruCache(PUBLISHED_BYTES)

    def note(self, size: int) -> None:
        """Evicts, once enough was stored since the last time."""
        self._stored += size
        if self._limit and self._stored > self._limit // EVICT_SHARE:
            self._stored = 0
            evict(self._root, self._limit)
            used = self.used
            self.used = LruCache(USED_BLOBS)
            self.local.evict(self._limit, used.keys())


def _row(blob: Staged) -> Row:
    key = key_of(blob.digest.hash)
    type = None if blob.type is None else type_key(blob.type)
    return key, blob.digest.size_bytes, type, blob.data, None
