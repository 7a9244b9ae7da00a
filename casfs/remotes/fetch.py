"""Fetches what refs of a remote reach and a store lacks. Everything from there is verified.

`Missing` first finds what is to be fetched, by packs: it follows references through nodes of the
remote that are not stored yet. Then it stores the blobs, or notes in which packs they are (a lazy
pull), and at last the nodes, which refer to them.
"""

from __future__ import annotations

import io
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, BinaryIO

from casfs.backend import derived
from casfs.backend.block_maps import MIN_BYTES
from casfs.backend.capabilities import StagingChanges
from casfs.backend.frame_mirror import create_mirror, mirror_path, remove_mirror
from casfs.backend.lazy_packs import LazyPack, LazyRemote
from casfs.backend.pack_files import PieceStream
from casfs.backend.protocols import FILE_MIN_BYTES, MAX_NODE_BYTES, META, Staged, discard
from casfs.digest import BlobHash, Digest
from casfs.errors import Corrupt, Invalid, NotFound
from casfs.object_storage.retrying import parallel
from casfs.packs.index import PackIndex
from casfs.packs.layout import REFERENCE, Member
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
        root = store.root
        # Without a limit: nodes are read once to find what they refer to, and again to store them.
        self._lazy = LazyRemote(root, remote.name, limit=0, connect=lambda: remote.storage)
        if whole:
            # Almost every pack of nodes will be read: this asks for all of them at once, where the
            # walk would come to one after another.
            node_packs = [pack.name for pack in self._packs.values() if pack.kind == NODES]
            self._prefetch(node_packs)

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
            # Sorted by pack and number: the members of a frame follow one another, so a reader
            # decompresses it once.
            for location in sorted(locations):
                new = [ref for ref in self._refs(location) if ref not in seen]
                seen.update(new)
                waiting += new

    def add_remote(self, *, all: bool) -> None:
        """Notes the blobs that a lazy pull has left in the remote: those in packs that a gc there
        has given up since; or `all`."""
        # The file of a pack that was given up goes after a grace period. What was still reached in
        # it is in another pack, where `locate` finds it.
        live_packs = self._remote.state.since_when(LIVE).keys()
        remote_blobs = [*derived.in_remote(self._store.blobs, self._remote.name)]
        gone = [self.purged[hash] for hash, _ in remote_blobs if hash in self.purged]
        self._tombstones.update((tombstone.hash, tombstone) for tombstone in gone)
        self.find({tombstone.substitute for tombstone in gone if tombstone.substitute})
        wanted = (hash for hash, pack in remote_blobs if all or pack not in live_packs)
        hashes = [hash for hash in wanted if hash not in self.purged]
        for location in self._remote.state.locate(hashes).values():
            self._blobs[location.pack].add(location.number)

    def _without_purged(self, hashes: list[str]) -> tuple[list[str], list[str]]:
        """Returns the hashes without those that were purged in the remote and are not here, and the
        substitutes of these."""
        if not self.purged:
            return hashes, []
        gone = [hash for hash in hashes if hash in self.purged]
        # What is here stays, unless a person asks for its purge: that is up to `pull`.
        gone = derived.find_missing(self._store.blobs, gone)
        self._tombstones.update((hash, self.purged[hash]) for hash in gone)
        substitutes = [self.purged[hash].substitute for hash in gone]
        remaining = [hash for hash in hashes if hash not in self._tombstones]
        return remaining, [hash for hash in substitutes if hash is not None]

    def _note(self, hashes: list[str]) -> list[Place]:
        """Notes where what is missing lies; returns the places of the nodes among it."""
        infos = self._store.blobs.info(hashes)
        # What is private here counts as absent: nothing from elsewhere may refer to it before the
        # remote has brought it as work.
        for hash in self._store.blobs.local_among(infos.keys()):
            del infos[hash]
        # Plain bytes here may be a node there: then it becomes one here, and the walk goes on.
        untyped = [hash for hash in hashes if hash not in infos or infos[hash].type is None]
        places = self._remote.state.locate(untyped)
        if lacking := set(untyped) - places.keys() - infos.keys():
            raise Corrupt(f"the remote {self._remote.name} lacks {min(lacking)}, which is in use")
        nodes = []
        for hash, location in places.items():
            # It was purged here: a put of the same bytes would store nothing.
            if hash in infos and infos[hash].purged:
                continue
            in_nodes = location.kind == NODES
            if in_nodes and self._member(location.pack, location.number).type is not None:
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
            # The collectors of references check nothing, and a remote may send anything.
            schema.check(payload)
            followed = [ref.hash for ref in schema.refs(payload) if self._is_followed(ref)]
            return [type_hash, *dict.fromkeys(followed)]
        except (Invalid, NotFound) as error:
            raise self._corrupt(error) from None

    def _is_followed(self, ref: Ref) -> bool:
        """Returns whether to fetch the target: a local or weak one only where it was pushed."""
        if not ref.may_dangle:
            return True
        return bool(self._remote.state.locate([ref.hash]))

    def _need_type(self, type: str, *, is_outer: bool = False) -> None:
        """Stores a type, and the type of that, before a node of it is looked at. `is_outer`: it is
        the type of a type."""
        if self._store.blobs.info([type]):
            return
        location = self._remote.state.locate([type], kind=NODES).get(type)
        if location is None:
            raise self._corrupt(f"the type {type} is missing")
        outer = self._member(location.pack, location.number).type
        if outer not in (None, META):
            # Only the meta-schema is the type of types. An index that says more could go on for
            # ever, or in a circle.
            if is_outer:
                raise self._corrupt(f"the type {type} has a type that is not the meta-schema")
            self._need_type(str(outer), is_outer=True)
        # In a batch of its own: the registry reads a type from the store.
        with self._store.batch() as batch:
            self._put(batch, location)

    def _node(self, location: Place) -> bytes:
        # By its claim, before it is read: it would be in memory whole.
        if self._member(location.pack, location.number).size > MAX_NODE_BYTES:
            raise self._corrupt(f"member {location.number} of pack {location.pack} is too large")
        return self._reader(location.pack).read(location.number)

    def _reader(self, pack: str) -> LazyPack:
        # Threads that stage blobs of one pack share its reader: it caches the frames.
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
        # One that is there has frames which an earlier pull, or a reader, has fetched.
        if not mirror_path(root, name, pack).exists():
            size = self._packs[pack].size
            create_mirror(root, name, size=size, index=self._index(pack))

    def _prefetch(self, packs: list[str]) -> None:
        """Fetches the first frames of packs that were not read yet, at the same time. A pack of
        nodes has few frames; what is fetched is kept in its mirror, a sparse copy."""
        new = {*packs} - self._mirrored
        requests = [partial(self._first, name) for name in sorted(new)]
        # Waits for all requests, and raises the first error; they return nothing.
        for _ in parallel(requests):
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

    def totals(self) -> tuple[int, int, int]:
        """Returns the numbers of nodes and of blobs, and the bytes of the blobs."""
        packs_of_nodes = self._nodes.values()
        nodes = sum(map(len, packs_of_nodes))
        sizes: list[int] = []
        for pack, numbers in self._blobs.items():
            sizes += [self._member(pack, number).size for number in numbers]
        return nodes, len(sizes), sum(sizes)

    def adopt_blobs(self) -> None:
        """Notes where the blobs are: each is fetched when it is read."""
        for name, numbers in self._blobs.items():
            # Nobody reads them now, so nothing else would notice a size that the frames deny.
            for number in numbers:
                self._index(name).check_extent(number)
            members = [(n, self._member(name, n)) for n in sorted(numbers)]
            places = [(n, member.hash, member.size) for n, member in members]
            # Before the rows that lead readers there: they would fetch the index again.
            self._mirror(name)
            backend: Any = self._store.backend
            backend.adopt_pack(name, "remote", self._packs[name].size, self._remote.name, places)

    def store_blobs(self, begin: Begin) -> None:
        """Fetches and stores the blobs; what is committed now and then, the next pull has."""
        count = size = committed = 0
        _, total_count, total_size = self.totals()
        with begin(total_count, total_size) as progress, self._store.batch() as batch:
            # No more groups ahead than fetchers: what is staged is held in memory.
            for staged in parallel(self._groups(), FETCHERS, FETCHERS):
                for blob in staged:
                    batch.put_staged(blob)
                    count = count + 1
                    size = size + blob.digest.size_bytes
                progress(count, size)
                if size - committed >= COMMIT_BYTES:
                    batch.commit()
                    committed = size
            for name, number in self._changes():
                batch.commit()  # what it may be compared with
                staged_change = self._stage_change(name, number)
                batch.put_staged(staged_change)
                count = count + 1
                size = size + staged_change.digest.size_bytes
                progress(count, size)

    def _changes(self) -> list[tuple[str, int]]:
        """Returns the members that have blocks of others, in the order of their arrival."""
        return [
            (name, number)
            for name in self._packs
            for number in sorted(self._blobs.get(name, ()))
            if self._is_change(name, number)
        ]

    def _is_change(self, pack: str, number: int) -> bool:
        index = self._index(pack)
        if index.member(number).size < MIN_BYTES:
            return False
        return any(index.frame(frame).codec == REFERENCE for frame in index.frames_of(number))

    def _stage_change(self, pack: str, number: int) -> Staged:
        """Stages such a member as its differences from what is stored of those others."""
        blobs = self._store.blobs
        size = self._member(pack, number).size
        base = self._base(pack, number)
        if base is not None and isinstance(blobs, StagingChanges):
            staged = blobs.stage_change(self._stream(pack, number), size, base)
            if staged is not None:
                return staged
        return blobs.stage(self._stream(pack, number))

    def _base(self, pack: str, number: int) -> str | None:
        """Returns the version before: the large member before it, else one of the newest pack to
        which its own refers."""
        index = self._index(pack)
        referred = index.referred_packs()
        newest = [self._index(name) for name in self._packs if name in referred][-1:]
        earlier = [other.member(n) for other in newest for n in range(other.members)]
        earlier += [index.member(n) for n in range(number)]
        hashes = [member.hash for member in earlier if member.size >= MIN_BYTES]
        stored = self._store.blobs.info(hashes)
        return next((hash for hash in reversed(hashes) if hash in stored), None)

    def _stream(self, pack: str, number: int) -> BinaryIO:
        # Verified at its end: of damaged bytes the stream raises before they are staged.
        pieces: Any = PieceStream(self._reader(pack).pieces(number))
        return io.BufferedReader(pieces)

    def _groups(self) -> Iterator[Callable[[], list[Staged]]]:
        """Yields the calls that stage all blobs, some of one pack each."""
        for name, members in self._blobs.items():
            numbers = sorted(number for number in members if not self._is_change(name, number))
            for start in range(0, len(numbers), STAGED_AT_ONCE):
                yield partial(self._stage, name, numbers[start : start + STAGED_AT_ONCE])

    def _stage(self, pack: str, numbers: list[int]) -> list[Staged]:
        reader = self._reader(pack)
        stage = derived.stager(self._store.blobs)
        staged: list[Staged] = []
        try:
            for number in numbers:
                member = self._member(pack, number)
                if member.size <= FILE_MIN_BYTES:
                    data = reader.read(number)
                    # The reader has verified it, so it is not hashed again.
                    digest = Digest(BlobHash(member.hash), len(data))
                    staged.append(stage(digest, data))
                else:
                    staged.append(self._store.blobs.stage(self._stream(pack, number)))
        except BaseException:
            discard(staged)
            raise
        return staged

    def store_nodes(self) -> None:
        """Stores the nodes in the order of their packs, in which references come first; what a gc
        has moved out of that order waits for the next round. A node that refers to a purged one
        waits, too: the purged one gets its mark once its substitute is stored. Raises Corrupt."""
        self._mark_purged()
        waiting: list[Place] = []
        for name in self._packs:  # the oldest first
            if name in self._nodes:
                numbers = sorted(self._nodes[name])
                waiting += [Place(name, NODES, number) for number in numbers]
        while waiting:
            waiting = self._store_round(waiting)
        self._batch.commit()
        while self._tombstones and self._mark_purged():
            pass
        if self._tombstones:
            hash = min(self._tombstones)
            raise self._corrupt(f"{hash} was purged, and its substitute is missing")

    def _store_round(self, waiting: list[Place]) -> list[Place]:
        """Stores the nodes whose references are stored; returns the others, for the next round.
        Raises Corrupt where no round can store them."""
        refused: list[Place] = []
        reason: Exception | None = None
        for location in waiting:
            try:
                self._put(self._batch, location)
            except (Invalid, NotFound) as error:
                refused.append(location)
                reason = error
        # A round without progress may only wait for a mark, and a mark needs its substitute in the
        # store: so commit, mark, and try again.
        if len(refused) == len(waiting):
            self._batch.commit()
            if not self._mark_purged():
                raise self._corrupt(reason)
        return refused

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
        # Checks that expect a sound node raise these.
        except (KeyError, TypeError, AttributeError):
            raise self._corrupt(f"{location} is not one") from None

    def close(self) -> None:
        """Drops what was fetched and is in the store now, also by a pull that was killed."""
        self._lazy.close()
        root = self._lazy.root
        remote = self._lazy.name
        # Blobs that are in the remote only are read from their mirrors, so these stay.
        needed = {pack for _, pack in derived.in_remote(self._store.blobs, remote)}
        # Whatever the name, the mirrors of all packs are in one folder.
        mirrors = mirror_path(root, remote, "").parent
        for path in mirrors.glob("*.pack"):
            if path.stem not in needed:
                remove_mirror(root, remote, path.stem)
