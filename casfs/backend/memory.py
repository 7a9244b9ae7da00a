"""The backend in memory, for tests and experiments: neither shared nor durable."""

from __future__ import annotations

import io
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import BinaryIO

from casfs import canonical
from casfs.backend.protocols import (
    JOURNAL_MIN_MOVES,
    MAX_RECORD_BYTES,
    META,
    MOVES_PER_READ,
    Blob,
    BlobInfo,
    Head,
    HeadName,
    Move,
    Purge,
    Staged,
    Swap,
    Total,
)
from casfs.digest import Digest, NodeHash, hash_bytes
from casfs.errors import Conflict, CorruptBlob, Invalid, NotFound, Purged
from casfs.system.clock import now_ms


class MemoryBackend:
    def __init__(self) -> None:
        self.heads = MemoryHeads()
        self.lock = threading.RLock()
        self.blobs = MemoryBlobs(self)
        self.touched: set[str] | None = None  # the write barrier of the running gc

    def publish(
        self,
        staged: Iterable[Staged],
        swaps: Iterable[Swap] = (),
        require: Collection[str] = (),
        local: Collection[str] = (),
    ) -> set[str]:
        with self.lock:
            batch = list(staged)
            moves = list(swaps)
            brought: set[str] = {blob.digest.hash for blob in batch}
            present = self.blobs.stored.keys() | brought
            stored = brought & self.blobs.stored.keys()
            for hash in require:
                if hash not in self.blobs.stored:
                    raise NotFound(f"no blob {hash} in this store: it was collected meanwhile")
            for move in moves:
                if move.new is not None and move.new.hash not in present:
                    raise NotFound(f"no blob {move.new.hash} in this store for head {move.name}")
            for staged_blob in batch:
                if staged_blob.type not in (None, META) and staged_blob.type not in present:
                    raise NotFound(
                        f"no blob {staged_blob.type} in this store, the type of"
                        f" {staged_blob.digest}"
                    )
            heads = self.heads.swapped(moves)
            self.blobs.unmark_local(stored.union(require).difference(local))
            self.blobs.marked |= (brought - stored).intersection(local)
            self.blobs.add(batch)
            self.heads.replace(heads, moves)
            touched = [*require, *(blob.digest.hash for blob in batch)]
            touched += [move.new.hash for move in moves if move.new is not None]
            self.blobs.touch(touched)
            if self.touched is not None:
                self.touched.update(touched)
        return stored

    def collection(self) -> MemoryGcRun:
        return MemoryGcRun(self)

    def close(self) -> None:
        pass


class MemoryBlobs:
    def __init__(self, backend: MemoryBackend) -> None:
        self._backend = backend
        self._purged: dict[str, BlobInfo] = {}  # whose `stored` is empty; purged, or awaited again
        self.stored: dict[str, Blob] = {}
        self.touched: dict[str, int] = {}
        self.marked: set[str] = set()  # only local trees reach them
        self._positions: dict[str, int] = {}
        self._newest = 0

    def stage(self, source: BinaryIO) -> Staged:
        data = source.read()
        return Staged(Digest.of(data), data)

    def add(self, batch: Iterable[Staged]) -> None:
        for blob in batch:
            assert blob.data is not None
            old = self.stored.get(blob.digest.hash)
            mark = self._purged.get(blob.digest.hash)
            if mark is not None and mark.purged:
                continue
            if self._purged.pop(blob.digest.hash, None) is not None:
                old = None
            if old is None or (old.type is None and blob.type is not None):
                self.stored.pop(blob.digest.hash, None)  # a node arrives anew
                self.stored[blob.digest.hash] = Blob(blob.data, blob.type)
                self._newest += 1
                self._positions[blob.digest.hash] = self._newest

    def touch(self, hashes: Iterable[str]) -> None:
        now_s = int(time.time())
        self.touched.update(dict.fromkeys(hashes, now_s))

    def get(self, hash: str) -> Blob:
        mark = self._purged.get(hash)
        if mark is not None:
            if mark.substitute is None:
                raise Purged(f"blob {hash}: its content was purged")
            return Blob(self.get(mark.substitute).data, mark.type)
        try:
            return self.stored[hash]
        except KeyError:
            raise NotFound(f"no blob {hash} in this store") from None

    def open(self, hash: str) -> BinaryIO:
        return io.BytesIO(self.get(hash).data)

    def get_many(self, hashes: Iterable[str]) -> Iterator[bytes]:
        return (self.get(hash).data for hash in hashes)

    def info(self, hashes: Collection[str]) -> dict[str, BlobInfo]:
        return {hash: self._info(hash) for hash in hashes if hash in self.stored}

    def _info(self, hash: str) -> BlobInfo:
        blob = self.stored[hash]
        return self._purged.get(hash) or BlobInfo(len(blob.data), blob.type)

    def local_among(self, hashes: Collection[str]) -> set[str]:
        return self.marked.intersection(hashes)

    def unmark_local(self, hashes: Collection[str]) -> None:
        self.marked -= {*hashes}

    def iterate(self, after: int = 0) -> Iterator[tuple[int, str, BlobInfo]]:
        for hash in list(self.stored):
            if (position := self._positions[hash]) > after:
                yield position, hash, self._info(hash)

    def faults(self) -> Iterator[str]:
        return iter(())

    def verify(self, hash: str) -> None:
        mark = self._purged.get(hash)
        if mark is not None:
            raise Purged(f"blob {hash}: its content was purged", mark.substitute)
        if hash_bytes(self.get(hash).data) != hash:
            raise CorruptBlob(f"blob {hash}: its bytes do not hash to its name")

    def quarantine(self, hash: str) -> None:
        self.stored.pop(hash, None)
        self.touched.pop(hash, None)
        self.marked.discard(hash)
        self._purged.pop(hash, None)

    def purge(self, purges: Collection[Purge], swaps: Sequence[Swap] = ()) -> bool:
        with self._backend.lock:
            for purge in purges:
                self._check_purge(purge)
            heads = self._backend.heads.swapped(swaps)
            for purge in purges:
                self._mark_purged(purge)
            # What is gone need not be hidden; what is left of it must be.
            self.unmark_local([purged.hash for purged in purges if purged.substitute is None])
            self._backend.heads.replace(heads, swaps)
            self.touch(purged.hash for purged in purges)
        return True

    def _check_purge(self, purge: Purge) -> None:
        substitute = None if purge.substitute is None else self.stored.get(purge.substitute)
        if purge.substitute is not None and substitute is None:
            raise NotFound(f"no blob {purge.substitute} in this store for {purge.hash}")
        old = self.stored.get(purge.hash)
        if purge.is_new and old is not None:
            raise Conflict(f"{purge.hash} was stored meanwhile; try again")
        if old is not None and old.type != (None if substitute is None else substitute.type):
            raise Invalid(f"{purge.hash} can only be purged with a substitute of its type")

    def _mark_purged(self, purge: Purge) -> None:
        type = None if purge.substitute is None else self.stored[purge.substitute].type
        old = self.info([purge.hash]).get(purge.hash)
        if old is None:
            self._newest += 1
            self._positions[purge.hash] = self._newest
        size = purge.size if old is None else old.size
        self.stored[purge.hash] = Blob(b"", type)
        self._purged[purge.hash] = BlobInfo(size, type, purged=True, substitute=purge.substitute)

    def erase_remains(self, is_found: Callable[[BinaryIO], bool]) -> bool:
        return True

    def unpurge(self, hash: str, swaps: Sequence[Swap] = ()) -> None:
        with self._backend.lock:
            mark = self._purged.get(hash)
            if mark is None or not mark.purged or mark.type is not None:
                raise NotFound(f"no purged blob {hash} in this store that is not a node")
            self._backend.heads.replace(self._backend.heads.swapped(swaps), swaps)
            self._purged[hash] = BlobInfo(mark.size, type=None, awaited=True)


class MemoryHeads:
    def __init__(self) -> None:
        self._heads: dict[HeadName, tuple[NodeHash, bytes]] = {}
        self._uses: dict[HeadName, int] = {}
        self._moves: deque[Move] = deque(maxlen=JOURNAL_MIN_MOVES)
        self._moved = 0

    def get(self, name: HeadName) -> Head | None:
        stored_head = self._heads.get(name)
        return (
            None if stored_head is None else Head(stored_head[0], canonical.decode(stored_head[1]))
        )

    def list(
        self, prefix: str = "", *, reverse: bool = False, containing: Collection[str] = ()
    ) -> Iterator[tuple[HeadName, Head]]:
        for name, (hash, record) in sorted(self._heads.items(), reverse=reverse):
            if name.startswith(prefix):
                yield name, Head(hash, canonical.decode(record))

    def note_use(self, names: Collection[HeadName]) -> None:
        used_at_ms = now_ms()
        self._uses.update({name: used_at_ms for name in names if name in self._heads})

    def last_use(self, name: HeadName) -> int:
        return self._uses.get(name, 0) if name in self._heads else 0

    def moves(self, after: int = 0) -> Sequence[Move]:
        kept = self._moves.copy()  # a writer may append meanwhile
        after = after if after >= 0 else self._moved + after
        skipped = max(after - kept[0].seq + 1, 0) if kept else 0
        return list(islice(kept, skipped, skipped + MOVES_PER_READ))

    def swapped(self, swaps: Iterable[Swap]) -> dict[HeadName, tuple[NodeHash, bytes]]:
        """Returns all heads as they are after `swaps`, applied in order."""
        heads = dict(self._heads)
        for swap in swaps:
            if any("\ud800" <= character <= "\udfff" for character in swap.name):
                raise Invalid(f"head {swap.name!a}: a name must be UTF-8")
            if heads.get(swap.name) != _stored_head(swap.old):
                raise Conflict(f"head {swap.name}: moved by another writer meanwhile")
            pair = _stored_head(swap.new)
            if pair is None:
                heads.pop(swap.name, None)
            else:
                heads[swap.name] = pair
        return heads

    def replace(self, heads: dict[HeadName, tuple[NodeHash, bytes]], swaps: Iterable[Swap]) -> None:
        self._heads = heads
        at_ms = now_ms()
        for swap in swaps:
            hash = None if swap.new is None else swap.new.hash
            self._moves.append(Move(self._moved + 1, swap.name, hash=hash, at_ms=at_ms))
            self._moved += 1
        self._uses = {name: used_at_ms for name, used_at_ms in self._uses.items() if name in heads}


class MemoryGcRun:
    def __init__(self, backend: MemoryBackend) -> None:
        self._backend = backend
        with backend.lock:
            if backend.touched is not None:
                raise Conflict("another gc is running on this store; wait for it")
            backend.touched = set()
        self.reset()

    def __enter__(self) -> MemoryGcRun:
        return self

    def __exit__(self, *_: object) -> None:
        self._backend.touched = None

    def reset(self) -> None:
        self._marks: set[str] = set()
        self.marked = Total()

    def mark(self, hashes: Collection[str]) -> list[str]:
        stored = self._backend.blobs.stored
        new = [hash for hash in dict.fromkeys(hashes) if hash in stored and hash not in self._marks]
        self._marks.update(new)
        self.marked.blobs += len(new)
        self.marked.bytes += sum(info.size for info in self._backend.blobs.info(new).values())
        return [hash for hash in new if stored[hash].type is not None]

    def recent(self, since: int) -> Iterator[list[str]]:
        yield [
            hash for hash, touched_at in self._backend.blobs.touched.items() if touched_at >= since
        ]

    def unmarked_files(self, before: int) -> Iterator[tuple[str, int]]:
        return iter(())  # nothing is outside of memory

    def sweep(
        self, before: int, follow: Callable[[list[str]], None], *, dry_run: bool
    ) -> Iterator[tuple[str, BlobInfo]]:
        blobs = self._backend.blobs
        with self._backend.lock:
            follow(list(self._backend.touched or ()))
            for _, hash, info in list(blobs.iterate()):
                if hash not in self._marks and blobs.touched[hash] < before:
                    if not dry_run:
                        blobs.quarantine(hash)
                    yield hash, info


def _stored_head(head: Head | None) -> tuple[NodeHash, bytes] | None:
    if head is None:
        return None
    record = canonical.encode(dict(head.record))
    if len(record) > MAX_RECORD_BYTES:
        raise Invalid(f"a head's record of {len(record)} bytes is over {MAX_RECORD_BYTES}")
    return head.hash, record
