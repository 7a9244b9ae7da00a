"""A remote as a store that is only read: its packs hold the blobs, its refs are the heads. So what
walks or checks a store does so with a remote. What is read is mirrored in a private directory."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, cast

from casfs.backend.lazy_packs import LazyPack, LazyRemote
from casfs.backend.pack_files import PieceStream
from casfs.backend.protocols import Blob, BlobInfo, Head, HeadName, Move
from casfs.errors import Corrupt, NotFound, Purged
from casfs.object_storage.retrying import parallel
from casfs.packs.index import PackIndex
from casfs.packs.layout import BLOCK_BYTES, MAX_FRAME_BYTES
from casfs.remotes import log, purged
from casfs.remotes.log import NODES, Entry, pack_key
from casfs.remotes.remote import Remote
from casfs.remotes.state import LIVE, ORPHANED, PENDING, Place
from casfs.store.store import Store
from casfs.system.lru_cache import LruCache

OPEN_PACKS = 64
MIRROR_BYTES = 1 << 30
WHOLE_BYTES = 8 << 20  # a larger blob is read as a stream
GRACE = timedelta(days=1)  # from the end of a pack's use to its deletion
STRAY_AGE = timedelta(days=7)  # of a pack in no entry: a push that takes longer would lose it


class RemoteBlobs:
    """`read_data`: `verify` reads plain blobs, too; else it looks for their packs."""

    def __init__(self, remote: Remote, lazy: LazyRemote, *, read_data: bool) -> None:
        self._remote = remote
        self._lazy = lazy
        self._read_data = read_data
        self.purged = purged.of_remote(remote)
        self._indexes = LruCache(OPEN_PACKS)
        self._readers = LruCache(OPEN_PACKS)
        self._lost: dict[str, str] = {}  # packs that cannot be read, and why

    def places(self, hashes: Collection[str]) -> dict[str, Place]:
        """Returns where blobs are; in a live pack, if there is one. What was purged is nowhere."""
        hashes = set(hashes) - self.purged.keys()
        live = self._remote.state.locate(hashes)
        return self._remote.state.locate(hashes - live.keys(), ORPHANED) | live

    def _place(self, hash: str) -> Place:
        """Returns where the bytes of a blob are, or of its substitute. Raises Purged."""
        if tombstone := self.purged.get(hash):
            if tombstone.substitute is None:
                raise Purged(f"blob {hash}: its content was purged")
            hash = tombstone.substitute
        for location in self.places([hash]).values():
            return location
        raise NotFound(f"no blob {hash} in the remote {self._remote.name}")

    def index(self, pack: str) -> PackIndex:
        index: PackIndex | None = self._indexes.get(pack)
        if index is None:
            known = self._remote.state.pack(pack)
            index = PackIndex(pack, known.data or b"", known.offset)
            self._indexes.put(pack, index, 1)
        return index

    def _reader(self, pack: str) -> LazyPack:
        """Raises Corrupt where the pack is gone, or is another one than its name says."""
        reader: LazyPack | None = self._readers.get(pack)
        if reader is None:
            if pack not in self._lost:
                try:
                    reader = LazyPack(self._lazy, pack)
                    self._readers.put(pack, reader, 1)
                    return reader
                except Corrupt as error:
                    self._lost[pack] = str(error)
            raise Corrupt(f"packs/{pack}.pack: {self._lost[pack]}")
        return reader

    def get(self, hash: str) -> Blob:
        location = self._place(hash)
        return Blob(self._reader(location.pack).read(location.number), self._info(location).type)

    def open(self, hash: str) -> BinaryIO:
        location = self._place(hash)
        pieces: Any = PieceStream(self._reader(location.pack).pieces(location.number))
        return io.BufferedReader(pieces)

    def blocks(self, hash: str) -> Iterator[tuple[str, int]]:
        """Yields of each block of a large blob the pack that has it, and a number that no other
        block of that has. Raises Purged, NotFound, Corrupt."""
        location = self._place(hash)
        reader = self._reader(location.pack)
        for number in reader.index.frames_of(location.number):
            target, ref = reader.resolved(number)
            for offset in range(ref.offset, ref.offset + ref.size, BLOCK_BYTES):
                yield target.index.name, ref.number * MAX_FRAME_BYTES + offset

    def get_many(self, hashes: Iterable[str]) -> Iterator[bytes | None]:
        for hash in hashes:
            is_small = self._info(self._place(hash)).size <= WHOLE_BYTES
            yield self.get(hash).data if is_small else None

    def _info(self, location: Place) -> BlobInfo:
        member = self.index(location.pack).member(location.number)
        return BlobInfo(member.size, member.type if location.kind == NODES else None)

    def info(self, hashes: Collection[str]) -> dict[str, BlobInfo]:
        infos = {hash: self._info(location) for hash, location in self.places(hashes).items()}
        for hash in self.purged.keys() & set(hashes):
            tombstone = self.purged[hash]
            type = None
            if tombstone.substitute and (substitutes := self.places([tombstone.substitute])):
                type = self._info(substitutes[tombstone.substitute]).type
            infos[hash] = BlobInfo(
                size=tombstone.size,
                type=type,
                purged=True,
                substitute=tombstone.substitute,
            )
        return infos

    def iterate(self, after: int = 0) -> Iterator[tuple[int, str, BlobInfo]]:
        places = (
            Place(pack.name, pack.kind, number)
            for pack in self._remote.state.packs(LIVE)
            for number in range(self.index(pack.name).members)
        )
        for position, location in enumerate(islice(places, after, None), after + 1):
            hash = self.index(location.pack).member(location.number).hash
            if hash not in self.purged:
                yield position, hash, self._info(location)

    # -- fsck -----------------------------------------------------------------------------

    def verify(self, hash: str) -> None:
        if hash in self.purged:
            raise Purged(f"blob {hash}: its content was purged")
        location = self._place(hash)
        reader = self._reader(location.pack)
        if self._read_data and self._info(location).size > WHOLE_BYTES:
            for _ in reader.pieces(location.number):
                pass
        elif self._read_data or location.kind == NODES:
            reader.read(location.number)

    def quarantine(self, hash: str) -> None:
        raise NotFound(f"{hash} stays in the remote {self._remote.name}")

    def faults(self) -> Iterator[str]:
        number, id = self._remote.state.position()
        before: str | None = None
        for entry_number, entry in enumerate(
            parallel(map(self._entry_reader, range(1, number + 1))), 1
        ):
            if isinstance(entry, str):
                yield entry
            elif entry_number > 1 and before and entry["after"] != before:
                yield f"{log.key(entry_number)}: it does not follow from the entry before"
            before = None if isinstance(entry, str) else entry["id"]
        if before not in (None, id):
            yield f"{log.key(number)}: another entry than it was"
        states = self._remote.state.packs(LIVE, ORPHANED)
        for pack, metadata in zip(states, parallel(map(self._header, states)), strict=True):
            size = metadata.size if metadata else None
            if size != pack.size:
                yield f"{pack_key(pack.name)}: it has {size} bytes, not {pack.size}"
        yield from (f"{key}: in no entry of the log; gc deletes it" for key in strays(self._remote))

    def _entry_reader(self, number: int) -> Any:
        def read() -> Entry | str:
            try:
                return self._remote.entry(number) or f"{log.key(number)}: it is missing"
            except Corrupt as error:
                return str(error)

        return read

    def _header(self, pack: Any) -> Any:
        return partial(self._remote.storage.head, pack_key(pack.name))


class RemoteHeads:
    def __init__(self, remote: Remote) -> None:
        refs = remote.state.refs().items()
        self._heads = {HeadName(name): Head(ref["hash"], ref["record"]) for name, ref in refs}

    def get(self, name: HeadName) -> Head | None:
        return self._heads.get(name)

    def list(
        self, prefix: str = "", *, reverse: bool = False, containing: Collection[str] = ()
    ) -> Iterator[tuple[HeadName, Head]]:
        names = sorted(self._heads, reverse=reverse)
        return ((name, self._heads[name]) for name in names if name.startswith(prefix))

    def moves(self, after: int = 0) -> Sequence[Move]:
        return ()


class _RemoteBackend:
    def __init__(self, remote: Remote, blobs: RemoteBlobs) -> None:
        self.blobs = blobs
        self.heads = RemoteHeads(remote)

    def close(self) -> None:
        pass


@contextmanager
def opened(remote: Remote, *, read_data: bool = False) -> Iterator[tuple[Store, RemoteBlobs]]:
    """Yields what a remote holds now as a store."""
    remote.catch_up()
    remote.load_indexes()
    with TemporaryDirectory(prefix="casfs-") as folder:
        lazy = LazyRemote(
            Path(folder), remote.name, limit=MIRROR_BYTES, connect=lambda: remote.storage
        )
        blobs = RemoteBlobs(remote, lazy, read_data=read_data)
        try:
            yield Store(cast(Any, _RemoteBackend(remote, blobs)), Path(folder)), blobs
        finally:
            lazy.close()


def strays(remote: Remote) -> Iterator[str]:
    """Yields the keys of packs that are in no entry, and that no push can be about to enter."""
    known = {pack.name for pack in remote.state.packs(LIVE, ORPHANED, PENDING)}
    before = remote.storage.now() - STRAY_AGE
    for key, metadata in remote.storage.list("packs/"):
        if (
            metadata.modified < before
            and key.removeprefix("packs/").removesuffix(".pack") not in known
        ):
            yield key
