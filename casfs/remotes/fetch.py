"""Fetches what refs of a remote reach and a store lacks. Everything from there is verified."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from casfs.backend import derived
from casfs.backend.frame_mirror import create_mirror, mirror_path, remove_mirror
from casfs.backend.lazy_packs import LazyPack, LazyRemote
from casfs.backend.protocols import MAX_NODE_BYTES, META, Staged, discard
from casfs.digest import BlobHash, Digest
from casfs.errors import Corrupt, Invalid, NotFound
from casfs.lru_cache import LruCache
from casfs.nodes import node
from casfs.object_storage.retrying import parallel
from casfs.packs.index import PackIndex
from casfs.packs.layout import Member
from casfs.packs.reader import PackReader
from casfs.remotes.log import NODES, pack_key
from casfs.remotes.remote import Remote
from casfs.remotes.state import LIVE, Place
from casfs.store import Store
from casfs.write_batch import Batch

PART_BYTES = 8 << 20  # of a pack of blobs, that are read at once
GAP_BYTES = 256 << 10  # rather read than skipped
NODES_AT_ONCE = 256
FETCHERS = 6
OPEN_READERS = 16  # each caches frames
COMMIT_BYTES = 64 << 20
Progress = Callable[[int, int], None]  # blobs and bytes so far


class Missing:
    """What refs reach and the store lacks: by pack, the members' numbers. `whole`: it is probably
    most of what the remote has."""

    def __init__(self, store: Store, remote: Remote, *, whole: bool) -> None:
        self._store, self._remote = store, remote
        self._nodes: dict[str, set[int]] = defaultdict(set)
        self._blobs: dict[str, set[int]] = defaultdict(set)
        self._packs = {one.name: one for one in remote.state.packs(LIVE)}
        self._indexes: dict[str, PackIndex] = {}
        self._mirrored: set[str] = set()
        self._readers = LruCache(OPEN_READERS)
        self._batch = store.batch()
        assert store.root is not None
        self._lazy = LazyRemote(store.root, remote.name, 0, lambda: remote.storage)
        if whole:
            self._prefetch([one.name for one in self._packs.values() if one.kind == NODES])

    def close(self) -> None:
        """Drops what was fetched of packs of nodes: the nodes are in the store."""
        self._lazy.close()
        for name in self._mirrored:
            remove_mirror(self._lazy.root, self._lazy.name, name)

    def totals(self) -> tuple[int, int, int]:
        """Returns the numbers of nodes and of blobs, and the bytes of the blobs."""
        sizes = [self._member(name, n).size for name, all in self._blobs.items() for n in all]
        return sum(map(len, self._nodes.values())), len(sizes), sum(sizes)

    # -- finding --------------------------------------------------------------------------

    def find(self, roots: set[str]) -> None:
        """Walks from the roots, some nodes at a time, and stops at what is stored."""
        seen, waiting = set(roots), list(roots)
        while waiting:
            part, waiting = waiting[-NODES_AT_ONCE:], waiting[:-NODES_AT_ONCE]
            found = self._note(part)
            self._prefetch([place.pack for place in found])
            for place in sorted(found):
                new = [ref for ref in self._refs(place) if ref not in seen]
                seen.update(new)
                waiting += new

    def _note(self, hashes: list[str]) -> list[Place]:
        """Notes where what is missing lies; returns the places of the nodes among it."""
        infos = self._store.blobs.info(hashes)
        untyped = [one for one in hashes if one not in infos or infos[one].type is None]
        places = self._remote.state.locate(untyped)
        if lacking := set(untyped) - places.keys() - infos.keys():
            raise Corrupt(f"the remote {self._remote.name} lacks {min(lacking)}, which is in use")
        nodes = []
        for hash, place in places.items():
            if place.kind == NODES and self._member(place.pack, place.number).type is not None:
                self._nodes[place.pack].add(place.number)
                nodes.append(place)
            elif hash not in infos:
                self._blobs[place.pack].add(place.number)
        return nodes

    def _refs(self, place: Place) -> list[str]:
        data, member = self._node(place), self._member(place.pack, place.number)
        try:
            if member.type in (None, META):
                return []
            self._need_type(str(member.type))
            type_hash, payload = node.decode(member.hash, data)
            schema = self._store.registry.compiled(type_hash)[1]
            schema.check(payload)
            return [type_hash, *dict.fromkeys(ref.hash for ref in schema.refs(payload))]
        except (Invalid, NotFound) as error:
            raise self._corrupt(error) from None

    def _need_type(self, type: str) -> None:
        """Stores a type, and the type of that, before a node of it is looked at."""
        if self._store.blobs.info([type]):
            return
        place = self._remote.state.locate([type], kind=NODES).get(type)
        if place is None:
            raise self._corrupt(f"the type {type} is missing")
        outer = self._member(place.pack, place.number).type
        if outer not in (None, META, type):
            self._need_type(str(outer))
        with self._store.batch() as batch:
            self._put(batch, place)

    def _node(self, place: Place) -> bytes:
        pack, number = place.pack, place.number
        if self._member(pack, number).size > MAX_NODE_BYTES:
            raise self._corrupt(f"pack {pack}: member {number} is too large")
        reader = self._readers.get(pack)
        if reader is None:
            reader = self._opened(pack)
            self._readers.put(pack, reader, 1)
        data: bytes = reader.read(number)
        return data

    def _prefetch(self, packs: list[str]) -> None:
        """Fetches the first frames of packs that were not read yet, at the same time."""
        new = {*packs} - self._mirrored
        for _ in parallel(partial(self._first, name) for name in sorted(new)):
            pass

    def _first(self, pack: str) -> None:
        with suppress(Corrupt):  # said when it is read
            self._opened(pack).frame(0)

    def _opened(self, pack: str) -> LazyPack:
        self._mirrored.add(pack)
        root, name = self._lazy.root, self._lazy.name
        if not mirror_path(root, name, pack).exists():
            create_mirror(root, name, self._packs[pack].size, self._index(pack))
        return LazyPack(self._lazy, pack)

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
        has moved out of that order waits for the next round."""
        packs = [name for name in self._packs if name in self._nodes]  # the oldest first
        waiting = [
            Place(name, NODES, number) for name in packs for number in sorted(self._nodes[name])
        ]
        while waiting:
            again, why = [], None
            for place in waiting:
                try:
                    self._put(self._batch, place)
                except (Invalid, NotFound) as error:
                    again.append(place)
                    why = error
            if len(again) == len(waiting):
                raise self._corrupt(why)
            waiting = again
        self._batch.commit()

    def _put(self, batch: Batch, place: Place) -> None:
        try:
            batch.put_encoded(self._node(place))
        except (KeyError, TypeError, AttributeError):
            raise self._corrupt(f"{place} is not one") from None

    def adopt_blobs(self) -> None:
        """Notes where the blobs are: each is fetched when it is read."""
        for name, numbers in self._blobs.items():
            found = [(n, self._member(name, n)) for n in sorted(numbers)]
            places = [(n, member.hash, member.size) for n, member in found]
            size = self._packs[name].size
            if not mirror_path(self._lazy.root, self._lazy.name, name).exists():
                create_mirror(self._lazy.root, self._lazy.name, size, self._index(name))
            backend: Any = self._store.backend
            backend.adopt_pack(name, "remote", size, self._remote.name, places)

    def store_blobs(self, progress: Progress) -> None:
        """Fetches and stores the blobs; committed now and then, to be found by the next pull."""
        count = size = held = 0
        parts = (one for name in self._blobs for one in self._parts(name))
        with self._store.batch() as batch:
            for staged in parallel(parts, FETCHERS, FETCHERS):
                for one in staged:
                    batch.put_staged(one)
                    held += one.digest.size_bytes
                    size += one.digest.size_bytes
                count += len(staged)
                progress(count, size)
                if held >= COMMIT_BYTES:
                    batch.commit()
                    held = 0

    def _parts(self, pack: str) -> Iterator[Callable[[], list[Staged]]]:
        """Yields functions that fetch and stage some members of a pack: those that lie together, by
        one request; a large one, by several."""
        group: list[int] = []
        begin = end = 0
        for number in sorted(self._blobs[pack]):
            first, last = _extent(self._index(pack), self._member(pack, number))
            if group and (first > end + GAP_BYTES or last - begin > PART_BYTES):
                yield partial(self._stage, pack, group, end)
                group = []
            begin = begin if group else first
            end = max(end, last) if group else last
            group = [*group, number]
        if group:
            yield partial(self._stage, pack, group, end)

    def _stage(self, pack: str, numbers: list[int], end: int) -> list[Staged]:
        window = _Window(partial(self._remote.storage.get_range, pack_key(pack)), end)
        reader = PackReader(self._index(pack), window.read_at)
        stage, found = derived.stager(self._store.blobs), []
        for number in numbers:
            member = self._member(pack, number)
            if member.size <= PART_BYTES:
                data = reader.read(number)
                found.append(stage(Digest(BlobHash(member.hash), len(data)), data))
                continue
            pieces: Any = _Pieces(reader.pieces(number))
            found.append(self._store.blobs.stage(io.BufferedReader(pieces)))
            if found[-1].digest.hash != member.hash:
                discard(found)
                raise Corrupt(f"pack {pack} of the remote: its member {member.hash} is damaged")
        return found


def _extent(index: PackIndex, member: Member) -> tuple[int, int]:
    """Returns the range of a pack that holds a member. Raises Corrupt."""
    number, frame = member.frame, index.frame(member.frame) if member.size else None
    if frame is None:
        return 0, 0
    begin, left = frame.offset, member.offset + member.size - frame.size
    while left > 0:
        number += 1
        frame = index.frame(number)
        left -= frame.size
    return begin, frame.offset + frame.stored


class _Window:
    """Reads a range that is read in order, a part at a time."""

    def __init__(self, read: Callable[[int, int], bytes], end: int) -> None:
        self._read, self._end = read, end
        self._begin, self._held = 0, b""

    def read_at(self, offset: int, size: int) -> bytes:
        if not self._begin <= offset <= offset + size <= self._begin + len(self._held):
            self._begin = offset
            self._held = self._read(offset, max(size, min(PART_BYTES, self._end - offset)))
        return self._held[offset - self._begin : offset - self._begin + size]


class _Pieces(io.RawIOBase):
    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._rest = self._rest or next(self._pieces, b"")
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count
