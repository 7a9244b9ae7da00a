"""Blobs of a shared store: rows of PostgreSQL, and packs in object storage, cached locally.

What is read is looked for in the local cache first, a disk backend whose content came from here:
bytes never change, so what it has is right. What it has not got is brought: a row with its bytes;
of a packed blob the places of all members of its pack, whose frames the cache then fetches as they
are read (`casfs.backend.lazy_packs`). With a node come the nodes of its type that it reaches, so a
tree's directories need as many round trips as it is deep.

Metadata are asked of the database, which decides what is stored, but for nodes that this process
has published within ANSWER_VALID_S; of the cache where the database is not reachable. A thread that
must not wait gets those of the cache, and of plain bytes, which may become a node, and of what is
not here what the database has said within ANSWER_VALID_S.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from casfs.backend.capabilities import PackPlace
from casfs.backend.lazy_packs import SHARED, NotLocal, waiting
from casfs.backend.postgres.cache import Cache
from casfs.backend.postgres.connection import Pool
from casfs.backend.postgres.fsck import PostgresRepair
from casfs.backend.postgres.prefetch import CONTENT, is_sound, related
from casfs.backend.postgres.schema import ARRIVED
from casfs.backend.protocols import META, Blob, BlobInfo, Staged, Total
from casfs.backend.sqlite_statements import (
    BATCH_ROWS,
    META_KEY,
    key_of,
    parse_hash,
    type_key,
    type_of,
)
from casfs.digest import BlobHash, Digest
from casfs.errors import Corrupt, CorruptBlob, NotFound, Unreachable
from casfs.object_storage.interface import ObjectStorage
from casfs.system.lru_cache import LruCache

ANSWER_VALID_S = 5.0  # for which an answer of the database stands
ANSWERS_KEPT = 100_000
INFO = "SELECT id, hash, size, type FROM casfs.blobs WHERE"
IN = "hash = ANY(%b::bytea[])"
MEMBERS = """
SELECT p.name, p.size, b.member, b.hash, b.size
FROM casfs.packs p JOIN casfs.blobs b ON b.pack = p.id WHERE p.id = ANY(%s) ORDER BY p.id, b.member
"""
ROOM = "count(*), coalesce(sum(size), 0)::bigint, count(pack) FROM casfs.blobs"
FIND = "SELECT hash FROM casfs.blobs WHERE hash BETWEEN %b AND %b ORDER BY hash LIMIT %s"
LOCAL_AMONG = "SELECT hash FROM casfs.local_blobs WHERE hash = ANY(%b::bytea[])"
UNMARK_LOCAL = "DELETE FROM casfs.local_blobs WHERE hash = ANY(%b::bytea[]) RETURNING hash"
T = TypeVar("T")


class PostgresBlobs(PostgresRepair):
    def __init__(self, pool: Pool, cache: Cache, connect: Callable[[], ObjectStorage]) -> None:
        super().__init__(pool, connect)
        self._cache = cache
        self._local = local = cache.local
        self._bringing = threading.Lock()
        self._answers = LruCache(ANSWERS_KEPT)
        self._marked = LruCache(ANSWERS_KEPT)  # when the database was asked, and what it said
        self.stage = local.blobs.stage
        self.stage_bytes = local.blobs.stage_bytes

    def staging_directory(self) -> Path:
        return self._local.blobs.staging_directory()

    # -- content ------------------------------------------------------------------------------

    def get(self, hash: str) -> Blob:
        blob = self._cached(hash, self._local.blobs.get)
        if blob.type is None:
            with suppress(Unreachable, KeyError):  # else, or collected: as it was known here
                if self.info([hash])[hash].type is not None:
                    self._need([hash], again=True)  # it has become a node
                    blob = self._local.blobs.get(hash)
        return blob

    def open(self, hash: str) -> BinaryIO:
        return self._cached(hash, self._local.blobs.open)

    def stream(self, hash: str) -> BinaryIO:
        return self._cached(hash, self._local.blobs.stream)

    def get_sized(self, hash: str, size: int) -> bytes:
        return self._cached(hash, lambda blob_hash: self._local.blobs.get_sized(blob_hash, size))

    def get_many(self, hashes: Iterable[str]) -> Iterator[bytes | None]:
        remaining = iter(hashes)
        while batch := list(islice(remaining, BATCH_ROWS)):
            self._need(self._local.blobs.missing(batch))
            done = 0
            try:
                for data in self._local.blobs.get_many(batch):
                    yield data
                    done += 1
            except Corrupt:  # `get` brings it again
                remaining = chain(batch[done + 1 :], remaining)
                yield self.get(batch[done]).data

    def places(self, hashes: Collection[str]) -> dict[str, PackPlace]:
        self._need(self._local.blobs.missing(hashes))
        return self._local.blobs.places(hashes)

    def _cached(self, hash: str, read: Callable[[str], T]) -> T:
        self._cache.used.put(hash, None, 1)
        try:
            return read(hash)
        except NotFound:
            self._need([hash])
        except Corrupt:  # damaged here, or at a place that gc has deleted
            if not waiting.allowed:
                raise NotLocal(partial(self._bring_again, hash)) from None
            self._bring_again(hash)
        return read(hash)

    def _bring_again(self, hash: str) -> None:
        if not self.info([hash]):
            raise NotFound(f"no blob {hash} in this store")
        self._local.blobs.quarantine(hash)
        self.bring([hash])

    def _need(self, hashes: Collection[str], *, again: bool = False) -> None:
        """As `bring`. Raises NotLocal in a thread that must not wait."""
        if hashes and not waiting.allowed:
            raise NotLocal(partial(self.bring, hashes, again=again))
        self.bring(hashes, again=again)

    def _ask(self, query: str, *values: object) -> list[Any]:
        """Returns the rows of a query. Raises NotLocal in a thread that must not wait, which has to
        leave what needs the query to another one."""
        if not waiting.allowed:
            raise NotLocal(partial(self._pool.run, query, values))
        return self._pool.run(query, values)

    def prefetch(self, hashes: Collection[str]) -> None:
        """As `bring`; nothing while another thread brings some, and may wait for the database."""
        if not self._bringing.locked():
            self.bring(hashes)

    def bring(self, hashes: Collection[str], *, again: bool = False) -> None:
        """Brings blobs into the local cache; `again`: also those that are there, as they have
        become nodes. Raises NotFound, Unreachable."""
        remaining = [*hashes]
        while remaining:
            part = remaining[: 10 * BATCH_ROWS]
            remaining = remaining[10 * BATCH_ROWS :]
            with self._bringing:
                if not again and (own := self._cache.published_rows(part)):
                    self._keep(own)
                keys = [
                    key_of(hash) for hash in (part if again else self._local.blobs.missing(part))
                ]
                if not keys:  # they are of this process, or another thread has brought them
                    continue
                rows = self._pool.run(CONTENT, [keys])
                if gone := {*keys} - {row[0] for row in rows}:
                    raise NotFound(f"no blob {min(gone).hex()} in this store")
                if bad := [row[0].hex() for row in rows if not is_sound(*row)]:
                    raise CorruptBlob(f"blob {min(bad)}: damaged in the database")
                self._keep(rows + related(self._pool, self._local.blobs, rows))

    def _keep(self, rows: list[Any]) -> None:
        types = {row[2].hex() for row in rows if row[2]}
        types -= {row[0].hex() for row in rows}
        if missing := self._local.blobs.missing(types):
            self._keep(self._pool.run(CONTENT, [[key_of(hash) for hash in missing]]))
        staged = []
        for key, size, type, data, _ in rows:
            if data is not None:
                kind = None if type is None else type_of(type)
                staged.append(Staged(Digest(BlobHash(key.hex()), size), data, type=kind))
        self._local.publish(staged, local=self.local_among([blob.digest.hash for blob in staged]))
        self._cache.note(sum(len(blob.data or b"") for blob in staged))
        if packs := {row[4] for row in rows if row[4] is not None}:
            self._adopt(packs)

    def _adopt(self, packs: Collection[int]) -> None:
        members: dict[tuple[str, int], list[tuple[int, str, int]]] = {}
        for name, whole, member, key, size in self._pool.run(MEMBERS, [[*packs]]):
            members.setdefault((name.hex(), whole), []).append((member, key.hex(), size))
        for (name, whole), pack_members in members.items():
            marked = self.local_among([hash for _, hash, _ in pack_members])
            self._local.adopt_pack(name, "remote", whole, SHARED, pack_members, marked)
            self._cache.note(whole)

    # -- metadata -----------------------------------------------------------------------------

    def info(self, hashes: Collection[str]) -> dict[str, BlobInfo]:
        if not waiting.allowed:
            return self._info_here(hashes)
        try:
            return self._info(hashes)
        except Unreachable:
            local_infos = self._local.blobs.info(hashes)
            if local_infos.keys() < {*hashes}:
                raise
        return {hash: BlobInfo(size, type) for hash, (size, type, *_) in local_infos.items()}

    def _info(self, hashes: Collection[str]) -> dict[str, BlobInfo]:
        published = self._cache.published_nodes(hashes, ANSWER_VALID_S)
        keys = [parse_hash(hash) for hash in hashes if hash not in published]
        keys = [key for key in keys if key is not None]
        rows = self._pool.run(f"{INFO} {IN}", [keys]) if keys else []
        return published | {key.hex(): _info(size, type) for _, key, size, type in rows}

    def _info_here(self, hashes: Collection[str]) -> dict[str, BlobInfo]:
        """Raises NotLocal."""
        infos = {}
        unknown = []
        local_infos = self._local.blobs.info(hashes)
        for hash in dict.fromkeys(hashes):
            info = local_infos.get(hash)
            if info is None or info.type is None:
                answered_at, info = self._answers.get(hash) or (-ANSWER_VALID_S, None)
                if time.monotonic() - answered_at > ANSWER_VALID_S:
                    unknown.append(hash)
            if info is not None:
                infos[hash] = BlobInfo(info.size, info.type)
        if unknown:
            raise NotLocal(partial(self._hear, unknown))
        return infos

    def _hear(self, hashes: Collection[str]) -> None:
        """Keeps what the database says of blobs for `_info_here`, and brings them."""
        infos = self.info(hashes)
        types = {hash: info.type for hash, info in self._local.blobs.info(infos.keys()).items()}
        self.bring([hash for hash in infos if types.get(hash, "") != infos[hash].type], again=True)
        for hash in hashes:
            self._answers.put(hash, (time.monotonic(), infos.get(hash)), 1)

    def local_among(self, hashes: Collection[str]) -> set[str]:
        if not waiting.allowed:
            return self._local_here(hashes)
        keys = [key for hash in hashes if (key := parse_hash(hash)) is not None]
        try:
            rows = self._pool.run(LOCAL_AMONG, [keys]) if keys else []
        except Unreachable:  # as it was when they were brought
            return self._local.blobs.local_among(hashes)
        return {key.hex() for (key,) in rows}

    def _local_here(self, hashes: Collection[str]) -> set[str]:
        """As was heard last: that a blob is not marked stands, a mark for ANSWER_VALID_S. Raises
        NotLocal."""
        oldest = time.monotonic() - ANSWER_VALID_S
        marked: set[str] = set()
        unknown = []
        for hash in hashes:
            answered_at, is_marked = self._marked.get(hash) or (-ANSWER_VALID_S, True)
            if is_marked and answered_at < oldest:
                unknown.append(hash)
            elif is_marked:
                marked.add(hash)
        if unknown:
            raise NotLocal(partial(self._hear_marks, unknown))
        return marked

    def _hear_marks(self, hashes: Collection[str]) -> None:
        marked = self.local_among(hashes)
        for hash in hashes:
            self._marked.put(hash, (time.monotonic(), hash in marked), 1)

    def unmark_local(self, hashes: Collection[str]) -> None:
        if hashes:
            self._pool.run(UNMARK_LOCAL, [[key_of(hash) for hash in hashes]])

    def missing(self, hashes: Collection[str]) -> list[str]:
        infos = self.info(hashes)
        return [hash for hash in dict.fromkeys(hashes) if hash not in infos]

    def iterate(self, after: int = 0) -> Iterator[tuple[int, str, BlobInfo]]:
        ((last,),) = self._ask(ARRIVED)
        return self._iterate("id <= %s AND", after, last)

    def of_type(self, type: str) -> Iterator[tuple[str, BlobInfo]]:
        return ((hash, info) for _, hash, info in self._iterate("type = %b AND", 0, type_key(type)))

    def _iterate(
        self, condition: str, after: int, *values: object
    ) -> Iterator[tuple[int, str, BlobInfo]]:
        query = f"{INFO} {condition} id > %s ORDER BY id LIMIT {BATCH_ROWS}"
        while True:
            rows = self._ask(query, *values, after)
            for after, key, size, type in rows:
                yield after, key.hex(), _info(size, type)
            if len(rows) < BATCH_ROWS:
                return

    def find(self, prefix: str, limit: int) -> list[str]:
        low, high = (bytes.fromhex(prefix.ljust(64, end)) for end in "0f")
        return [key.hex() for (key,) in self._ask(FIND, low, high, limit)]

    def total(self) -> Total:
        ((*total,),) = self._ask(f"SELECT {ROOM}")
        return Total(*total)

    def room(self) -> dict[str | None, Total]:
        rows = self._ask(f"SELECT type, {ROOM} GROUP BY type")
        return {None if type is None else type_of(type): Total(*counts) for type, *counts in rows}

    def types(self) -> dict[str, int]:
        return {type: total.blobs for type, total in self.room().items() if type is not None}


def _info(size: int, type: bytes | None) -> BlobInfo:
    return BlobInfo(size, None if type is None else META if type == META_KEY else type.hex())
