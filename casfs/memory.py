"""The store in memory: for tests, and for trying something out. Not shared, not durable."""

from __future__ import annotations

import io
import threading
from collections.abc import Collection, Iterable, Iterator
from typing import BinaryIO

from . import canonical
from .backend import MAX_RECORD, META, Blob, BlobInfo, Head, Staged, Swap
from .digest import Digest
from .errors import Conflict, Invalid, NotFound


class MemoryBackend:
    def __init__(self) -> None:
        self.blobs = MemoryBlobs()
        self.heads = MemoryHeads()
        self._lock = threading.Lock()
        self._version = 0

    def publish(
        self, staged: Iterable[Staged], swaps: Iterable[Swap] = (), require: Collection[str] = ()
    ) -> None:
        with self._lock:
            batch, moves = list(staged), list(swaps)
            present = self.blobs.stored.keys() | {one.digest.hash for one in batch}
            for hash in require:
                if hash not in self.blobs.stored:
                    raise NotFound(f"no blob {hash} in this store: it was collected meanwhile")
            for move in moves:
                if move.new is not None and move.new.hash not in present:
                    raise NotFound(f"no blob {move.new.hash} in this store for head {move.name}")
            for one in batch:
                if one.type not in (None, META) and one.type not in present:
                    raise NotFound(f"no blob {one.type} in this store, the type of {one.digest}")
            self.heads.check(moves)
            self.blobs.add(batch)
            self.heads.move(moves)
            self._version += 1

    def version(self) -> int:
        return self._version

    def close(self) -> None:
        pass


class MemoryBlobs:
    def __init__(self) -> None:
        self.stored: dict[str, Blob] = {}

    def stage(self, source: BinaryIO) -> Staged:
        data = source.read()
        return Staged(Digest.of(data), data)

    def discard(self, staged: Iterable[Staged]) -> None:
        pass

    def add(self, batch: Iterable[Staged]) -> None:
        for one in batch:
            assert one.data is not None
            old = self.stored.get(one.digest.hash)
            if old is None or old.type is None:
                self.stored[one.digest.hash] = Blob(one.data, one.type)

    def get(self, hash: str) -> Blob:
        try:
            return self.stored[hash]
        except KeyError:
            raise NotFound(f"no blob {hash} in this store") from None

    def open(self, hash: str) -> BinaryIO:
        return io.BytesIO(self.get(hash).data)

    def info(self, hashes: Collection[str]) -> dict[str, BlobInfo]:
        found = {hash: self.stored[hash] for hash in hashes if hash in self.stored}
        return {hash: BlobInfo(len(blob.data), blob.type) for hash, blob in found.items()}

    def find(self, prefix: str, limit: int = 2) -> list[str]:
        return sorted(hash for hash in self.stored if hash.startswith(prefix))[:limit]

    def iterate(self, type: str | None = None) -> Iterator[tuple[str, BlobInfo]]:
        for hash, blob in list(self.stored.items()):
            if type is None or blob.type == type:
                yield hash, BlobInfo(len(blob.data), blob.type)


class MemoryHeads:
    def __init__(self) -> None:
        self._heads: dict[str, tuple[str, bytes]] = {}

    def get(self, name: str) -> Head | None:
        found = self._heads.get(name)
        return None if found is None else Head(found[0], canonical.decode(found[1]))

    def list(self, prefix: str = "") -> Iterator[tuple[str, Head]]:
        for name, (hash, record) in sorted(self._heads.items()):
            if name.startswith(prefix):
                yield name, Head(hash, canonical.decode(record))

    def check(self, swaps: Iterable[Swap]) -> None:
        for swap in swaps:
            if self._heads.get(swap.name) != _pair(swap.old):
                raise Conflict(f"head {swap.name}: moved by somebody else meanwhile")
            _pair(swap.new)

    def move(self, swaps: Iterable[Swap]) -> None:
        for swap in swaps:
            pair = _pair(swap.new)
            if pair is None:
                self._heads.pop(swap.name, None)
            else:
                self._heads[swap.name] = pair


def _pair(head: Head | None) -> tuple[str, bytes] | None:
    if head is None:
        return None
    record = canonical.encode(dict(head.record))
    if len(record) > MAX_RECORD:
        raise Invalid(f"a head's record of {len(record)} bytes is over {MAX_RECORD}")
    return head.hash, record
