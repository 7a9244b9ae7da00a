"""The blobs of a store as others may see them: those that only local trees reach are absent.

A hidden blob is answered like one that is not stored, so that its hash cannot serve to test whether
a content is in the store. A visible node never refers to a hidden blob.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import BinaryIO, TypeVar

from casfs.backend import capabilities, derived
from casfs.backend.block_maps import BlockMap
from casfs.backend.protocols import Blob, BlobInfo, Blobs, Staged, Total
from casfs.backend.sqlite_statements import BATCH_ROWS
from casfs.errors import NotFound
from casfs.system.lru_cache import LruCache

MAX_SEEN = 100_000  # hashes
T = TypeVar("T")


class ShownBlobs:
    """A mark never comes to a blob that is stored: what was seen stays visible."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._seen = LruCache(MAX_SEEN)  # stored, and not marked
        self._get_sized = derived.sized_reader(blobs)

    def _visible(self, hashes: Iterable[str]) -> list[str]:
        """Returns those that are not hidden, stored or not."""
        candidates = list(hashes)
        unknown = [hash for hash in candidates if self._seen.get(hash) is None]
        hidden = self._blobs.local_among(unknown) if unknown else set()
        return [hash for hash in candidates if hash not in hidden]

    def _note(self, hashes: Iterable[str]) -> None:
        for hash in hashes:
            self._seen.put(hash, True, 1)

    def _read(self, hash: str, read: Callable[[], T]) -> T:
        if not self._visible([hash]):
            raise NotFound(f"no blob {hash} in this store")
        content = read()
        self._note([hash])
        return content

    # -- content --------------------------------------------------------------------------

    def stage(self, source: BinaryIO) -> Staged:
        return self._blobs.stage(source)

    def stage_change(self, source: BinaryIO, size: int, base: str) -> Staged | None:
        if not isinstance(self._blobs, capabilities.StagingChanges) or not self._visible([base]):
            return None
        return self._blobs.stage_change(source, size, base)

    def get(self, hash: str) -> Blob:
        return self._read(hash, lambda: self._blobs.get(hash))

    def open(self, hash: str) -> BinaryIO:
        return self._read(hash, lambda: self._blobs.open(hash))

    def stream(self, hash: str) -> BinaryIO:
        return self._read(hash, lambda: derived.open_stream(self._blobs, hash))

    def get_sized(self, hash: str, size: int) -> bytes:
        return self._read(hash, lambda: self._get_sized(hash, size))

    def get_many(self, hashes: Iterable[str]) -> Iterator[bytes | None]:
        remaining = iter(hashes)
        while batch := list(islice(remaining, BATCH_ROWS)):
            visible = set(self._visible(batch))
            if gone := [hash for hash in batch if hash not in visible]:
                raise NotFound(f"no blob {gone[0]} in this store")
            yield from self._blobs.get_many(batch)

    def places(self, hashes: Collection[str]) -> dict[str, capabilities.PackPlace]:
        if not isinstance(self._blobs, capabilities.Packed):
            return {}
        return self._blobs.places(self._visible(hashes))

    def block_maps(self, hashes: Collection[str]) -> dict[str, BlockMap]:
        if not isinstance(self._blobs, capabilities.StagingChanges):
            return {}
        return self._blobs.block_maps(self._visible(hashes))

    def kin(self, hashes: Collection[str]) -> dict[str, BlockMap]:
        if not isinstance(self._blobs, capabilities.StagingChanges):
            return {}
        block_maps = self._blobs.kin(self._visible(hashes))
        return {hash: block_maps[hash] for hash in self._visible(block_maps)}

    # -- metadata -------------------------------------------------------------------------

    def info(self, hashes: Collection[str]) -> dict[str, BlobInfo]:
        infos = self._blobs.info(self._visible(hashes))
        self._note(infos)
        return infos

    def local_among(self, hashes: Collection[str]) -> set[str]:
        return set()

    def unmark_local(self, hashes: Collection[str]) -> None:
        self._blobs.unmark_local(hashes)

    def iterate(self, after: int = 0) -> Iterator[tuple[int, str, BlobInfo]]:
        arrivals = self._blobs.iterate(after)
        while batch := list(islice(arrivals, BATCH_ROWS)):
            visible = set(self._visible([hash for _, hash, _ in batch]))
            yield from (arrival for arrival in batch if arrival[1] in visible)

    def missing(self, hashes: Collection[str]) -> list[str]:
        unique_hashes = list(dict.fromkeys(hashes))
        stored = self.info(unique_hashes)
        return [hash for hash in unique_hashes if hash not in stored]

    def find(self, prefix: str, limit: int) -> list[str]:
        wanted = limit
        while True:
            stored = derived.find_prefix(self._blobs, prefix, wanted)
            visible = self._visible(stored)
            if len(visible) >= limit or len(stored) < wanted:
                return visible[:limit]
            wanted *= 2

    def of_type(self, type: str) -> Iterator[tuple[str, BlobInfo]]:
        nodes = derived.of_types(self._blobs, [type])
        while batch := list(islice(nodes, BATCH_ROWS)):
            visible = set(self._visible([hash for hash, _ in batch]))
            yield from (node for node in batch if node[0] in visible)

    def total(self) -> Total:
        return derived.total_stored(self._blobs)

    def types(self) -> dict[str, int]:
        return derived.count_by_type(self._blobs)

    def room(self) -> dict[str | None, Total]:
        return derived.room_by_type(self._blobs)
