"""Fetches what refs of a remote reach and a store lacks. Everything from there is verified."""

from __future__ import annotations

import io
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any

from casfs.backend import derived
from casfs.backend.frame_mirror import create_mirror, mirror_path, remove_mirror
from casfs.backend.lazy_packs import LazyPack, LazyRemote
from casfs.backend.pack_files import PieceStream
from casfs.backend.protocols import FILE_MIN_BYTES, MAX_NODE_BYTES, META, Staged
from casfs.digest import BlobHash, Digest
from casfs.errors import Corrupt, Invalid, NotFound
from casfs.object_storage.retrying import parallel
from casfs.packs.index import PackIndex
from casfs.packs.layout import Member
from casfs.remotes import purged
from casfs.remotes.log import NODES
from casfs.remotes.remote import Remote
from casfs.remotes.state import LIVE, Place
from casfs.store.nodes import node
from casfs.store.nodes.ref_collectors import Ref
from casfs.store.store import Store
from casfs.store.tombstones import Tombstone
from casfs.store.write_batch import Batch
from casfs.system.lru_cache import LruCache

NODES_AT_ONCE = 256
STAGED_AT_ONCE = 64  # blobs
FETCHERS = 4
COMMIT_BYTES = 64 << 20
OPEN_READERS = 16  # each caches frames
# called with the numbers of blobs and bytes in all; then with those so far
Begin = Callable[[int, int], AbstractContextManager[Callable[[int, int], None]]]


class Missing:
    """What refs reach and the store lacks: by pack, the members' numbers. `whole`: it is probably
    most of what the remote has."""

    def __init__(self, store: Store, remote: Remote, *, whole: bool) -> None:
        self._store = store
        self._remote = remote
        self.purged = purged.of_remote(remote)
        self._tombstones: dict[str, Tombstone] = {}  # of what is not here
        self._nodes: dict[str, set[int]] = defaultdict(set)
        self._blobs: dict[str, set[int]] = defaultdict(set)
        self._packs = {pack.name: pack for pack in remote.state.packs(LIVE)}
        self._indexes: dict[str, PackIndex] = {}
        self._mirrored: set[str] = set()
        self._readers = LruCache(OPEN_READERS)
        self.marked = 0  # tombstones that were taken
        self._lock = threading.Lock()
        self._batch = store.batch()
        assert store.root is not None
        self._lazy = LazyRemote(store.root, remote.name, limit=0, connect=lambda: remote.storage)
        if whole:
            self._prefetch([pack.name for pack in self._packs.values() if pack.kind == NODES])

    def close(self) -> None:
        """Drops what was fetched and is in the store now, also by a pull that was killed."""
        self._lazy.close()
        root = self._lazy.root
        remote = self._lazy.name
        needed = {pack for _, pack in derived.in_remote(self._store.blobs, remote)}
        for path in mirror_path(root, remote, "").parent.glob("*.pack"):
            if path.stem not in needed:
                remove_mirror(root, remote, path.stem)

    def totals(self) -> tuple[int, int, int]:
        """Returns the numbers of nodes and of blobs, and the bytes of the blobs."""
        sizes = [self._member(name, n).size for name, all in self._blobs.items() for n in all]
        return sum(map(len, self._nodes.values())), len(sizes), sum(sizes)

    # -- finding --------------------------------------------------------------------------

    def find(self, roots: set[str]) -> None:
        """Walks from the roots, some nodes at a time, and stops at what is stored."""
        seen = set(roots)
        waiting = list(roots)
        while waiting:
            part = waiting[-NODES_AT_ONCE:]
            waiting = waiting[:-NODES_AT_ONCE]
            part, substitutes = self._without_purged(part)
            new = [hash for hash in substitutes if hash not in seen]
            seen.update(new)
            waiting += new
            locations = self._note(part)
            self._prefetch([located.pack for located in locations])
            for location in sorted(locations):
                new = [ref for ref in self._refs(location) if ref not in seen]
                seen.update(new)
                waiting += new

    def add_remote(self, *, all: bool) -> None:
        """Notes the blobs that a lazy pull has left in the remote: those in packs that a gc there
        has given up since; or `all`."""
        live = self._remote.state.since(LIVE)
        remote_blobs = [*derived.in_remote(self._store.blobs, self._remote.name)]
        gone = [self.purged[hash] for hash, _ in remote_blobs if hash in self.purged]
        self._tombstones.update((tombstone.hash, tombstone) for tombstone in gone)
        self.find({tombstone.substitute for tombstone in gone if tombstone.substitute})
        wanted = (hash for hash, pack in remote_blobs if all or pack not in live)
        hashes = [hash for hash in wanted if hash not in self.purged]
        for location in self._remote.state.locate(hashes).values():
            self._blobs[location.pack].add(location.number)

    def _without_purged(self, hashes: list[str]) -> tuple[list[str], list[str]]:
        """Returns the hashes without those that were purged in the remote and are not here, and the
        substitutes of these."""
        if not self.purged:
            return hashes, []
        gone = [hash for hash in hashes if hash in self.purged]
        gone = derived.find_missing(self._store.blobs, gone)
        self._tombstones.update((hash, self.purged[hash]) for hash in gone)
        substitutes = [self.purged[hash].substitute for hash in gone]
        remaining = [hash for hash in hashes if hash not in self._tombstones]
        return remaining, [hash for hash in substitutes if hash is not None]

    def _note(self, hashes: list[str]) -> list[Place]:
        """Notes where what is missing lies; returns the places of the nodes among it."""
        infos = self._store.blobs.info(hashes)
        for hash in self._store.blobs.local_among(infos.keys()):
            del infos[hash]  # work of the remote is fetched, whatever is private here
        untyped = [hash for hash in hashes if hash not in infos or infos[hash].type is None]
        places = self._remote.state.locate(untyped)
        if lacking := set(untyped) - places.keys() - infos.keys():
            raise Corrupt(f"the remote {self._remote.name} lacks {min(lacking)}, which is in use")
        nodes = []
        for hash, location in places.items():
            if hash in infos and infos[hash].purged:
                continue
            if (
                location.kind == NODES
                and self._member(location.pack, location.number).type is not None
            ):
                self._nodes[location.pack].add(location.number)
                nodes.append(location)
            elif hash not in infos:
                self._blobs[location.pack].add(location.number)
        return nodes

    def _refs(self, location: Place) -> list[str]:
        data = self._node(location)
        member = self._member(location.pack, location.number)
        try:
            if member.type in (None, META):
                return []
            self._need_type(str(member.type))
            type_hash, payload = node.decode(member.hash, data)
            schema = self._store.registry.compiled(type_hash)[1]
            schema.check(payload)
            followed = [ref.hash for ref in schema.refs(payload) if self._is_followed(ref)]
            return [type_hash, *dict.fromkeys(followed)]
        except (Invalid, NotFound) as error:
            raise self._corrupt(error) from None

    def _is_followed(self, ref: Ref) -> bool:
        """Returns whether to fetch the target: a local one only where it was pushed."""
        return not ref.is_local or bool(self._remote.state.locate([ref.hash]))

    def _need_type(self, type: str) -> None:
        """Stores a type, and the type of that, before a node of it is looked at."""
        if self._store.blobs.info([type]):
            return
        location = self._remote.state.locate([type], kind=NODES).get(type)
        if location is None:
            raise self._corrupt(f"the type {type} is missing")
        outer = self._member(location.pack, location.number).type
        if outer not in (None, META, type):
            self._need_type(str(outer))
        with self._store.batch() as batch:
            self._put(batch, location)

    def _node(self, location: Place) -> bytes:
        if self._member(location.pack, location.number).size > MAX_NODE_BYTES:
            raise self._corrupt(f"member {location.number} of pack {location.pack} is too large")
        return self._reader(location.pack).read(location.number)

    def _reader(self, pack: str) -> LazyPack:
        with self._lock:
            reader: LazyPack | None = self._readers.get(pack)
            if reader is None:
                self._mirror(pack)
                reader = LazyPack(self._lazy, pack)
                self._readers.put(pack, reader, 1)
            return reader

    def _mirror(self, pack: str) -> None:
        """Begins a mirror with the index, which is here already."""
        self._mirrored.add(pack)
        root = self._lazy.root
        name = self._lazy.name
        if not mirror_path(root, name, pack).exists():
            create_mirror(root, name, size=self._packs[pack].size, index=self._index(pack))

    def _prefetch(self, packs: list[str]) -> None:
        """Fetches the first frames of packs that were not read yet, at the same time."""
        new = {*packs} - self._mirrored
        for _ in parallel(partial(self._first, name) for name in sorted(new)):
            pass

    def _first(self, pack: str) -> None:
        with suppress(Corrupt):  # said when it is read
            self._reader(pack).frame(0)

    def _index(self, name: str) -> PackIndex:
        if name not in self._indexes:
            pack = self._remote.state.pack(name)
            self._indexes[name] = PackIndex(name, pack.data or b"", pack.offset)
        return self._indexes[name]

    def _member(self, pack: str, number: int) -> Member:
        return self._index(pack).member(number)

    def _corrupt(self, why: object) -> Corrupt:
        return Corrupt(f"a node of the remote {self._remote.name}: {why}")

    # -- storing --------------------------------------------------------------------------

    def store_nodes(self) -> None:
        """Stores the nodes in the order of their packs, in which references come first; what a gc
        has moved out of that order waits for the next round, as does what refers to a purged node:
        that gets its mark when its substitute is stored. Raises Corrupt."""
        self._mark_purged()
        packs = [name for name in self._packs if name in self._nodes]  # the oldest first
        waiting = [
            Place(name, NODES, number) for name in packs for number in sorted(self._nodes[name])
        ]
        while waiting:
            again = []
            why = None
            for location in waiting:
                try:
                    self._put(self._batch, location)
                except (Invalid, NotFound) as error:
                    again.append(location)
                    why = error
            if len(again) == len(waiting):
                self._batch.commit()
                if not self._mark_purged():
                    raise self._corrupt(why)
            waiting = again
        self._batch.commit()
        while self._tombstones and self._mark_purged():
            pass
        if self._tombstones:
            hash = min(self._tombstones)
            raise self._corrupt(f"{hash} was purged, and its substitute is missing")

    def _mark_purged(self) -> bool:
        """Notes in the store what was purged in the remote and is not here, as far as the
        substitutes are stored. Returns whether there was any."""
        if not self._tombstones:
            return False
        substitutes = [
            tombstone.substitute for tombstone in self._tombstones.values() if tombstone.substitute
        ]
        missing = derived.find_missing(self._store.blobs, substitutes)
        ready = [
            tombstone
            for tombstone in self._tombstones.values()
            if tombstone.substitute not in missing
        ]
        purged.take(self._store, ready)
        for ready_tombstone in ready:
            del self._tombstones[ready_tombstone.hash]
        self.marked += len(ready)
        return bool(ready)

    def _put(self, batch: Batch, location: Place) -> None:
        try:
            batch.put_encoded(self._node(location))
        except (KeyError, TypeError, AttributeError):
            raise self._corrupt(f"{location} is not one") from None

    def adopt_blobs(self) -> None:
        """Notes where the blobs are: each is fetched when it is read."""
        for name, numbers in self._blobs.items():
            for number in numbers:
                self._index(name).check_extent(number)
            members = [(n, self._member(name, n)) for n in sorted(numbers)]
            places = [(n, member.hash, member.size) for n, member in members]
            self._mirror(name)
            backend: Any = self._store.backend
            backend.adopt_pack(name, "remote", self._packs[name].size, self._remote.name, places)

    def store_blobs(self, begin: Begin) -> None:
        """Fetches and stores the blobs; what is committed now and then, the next pull has."""
        count = size = held = 0
        groups = (
            partial(self._stage, name, sorted(all)[start : start + STAGED_AT_ONCE])
            for name, all in self._blobs.items()
            for start in range(0, len(all), STAGED_AT_ONCE)
        )
        with begin(*self.totals()[1:]) as progress, self._store.batch() as batch:
            for staged in parallel(groups, FETCHERS, FETCHERS):
                for blob in staged:
                    batch.put_staged(blob)
                    count = count + 1
                    size = size + blob.digest.size_bytes
                progress(count, size)
                if size - held >= COMMIT_BYTES:
                    batch.commit()
                    held = size

    def _stage(self, pack: str, numbers: list[int]) -> list[Staged]:
        reader = self._reader(pack)
        stage = derived.stager(self._store.blobs)
        staged = []
        for number in numbers:
            member = self._member(pack, number)
            if member.size <= FILE_MIN_BYTES:
                data = reader.read(number)
                staged.append(stage(Digest(BlobHash(member.hash), len(data)), data))
            else:  # verified at its end
                pieces: Any = PieceStream(reader.pieces(number))
                staged.append(self._store.blobs.stage(io.BufferedReader(pieces)))
        return staged
