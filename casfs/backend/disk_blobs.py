"""Blobs of the disk backend: a row of `store.db` each, the bytes there or in `objects/`."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from casfs.backend.disk_heads import DiskHeads
from casfs.backend.group_commit import GroupCommit
from casfs.backend.objects import Objects
from casfs.backend.protocols import INLINE_MAX_BYTES, Blob, BlobInfo, Staged, Total
from casfs.backend.row_compression import RowCompression
from casfs.backend.sqlite_connection import Connection, Database
from casfs.backend.sqlite_statements import (
    BATCH_ROWS,
    PURGE,
    PURGED,
    is_sound,
    key_of,
    mistyped,
    parse_hash,
    type_key,
    type_of,
    verified,
)
from casfs.digest import Digest
from casfs.errors import Corrupt, CorruptBlob, NotFound

BATCHED_ROW_MAX_BYTES = 1 << 16  # a longer row is read by itself, so that a batch stays small
PLAIN = "SELECT data FROM blobs WHERE hash = ? AND type IS NULL"
INFO = "SELECT id, hash, size, type FROM blobs WHERE"
INFO_PURGED = f"SELECT hash, size, type, {PURGED} FROM blobs WHERE"


class DiskBlobs:
    def __init__(
        self, db: Database, objects: Objects, heads: DiskHeads, commits: GroupCommit
    ) -> None:
        self._db = db
        self._objects = objects
        self.rows = RowCompression(self, heads)
        self._commits = commits
        self._types: dict[int, str] = {}  # of committed rows of `types`, which never change
        self.type_ids: dict[str, int] = {}  # the same rows

    def stage(self, source: BinaryIO) -> Staged:
        return self._objects.stage(source)

    def stage_bytes(self, digest: Digest, data: bytes) -> Staged:
        return self._objects.stage_bytes(digest, data)

    def staging_directory(self) -> Path:
        return self._objects.staging.directory()

    # -- content --------------------------------------------------------------------------

    def get(self, hash: str) -> Blob:
        _, type, data = self._row(hash)
        if data is None:
            with self._objects.open(hash) as source:
                data = source.read()
        return Blob(verified(hash, data), None if type is None else self._type(type))

    def open(self, hash: str) -> BinaryIO:
        data = self._row(hash)[2]
        return self._objects.open(hash) if data is None else io.BytesIO(verified(hash, data))

    def get_sized(self, hash: str, size: int) -> bytes:
        if size > INLINE_MAX_BYTES:
            try:
                data = self._objects.content(hash, size)
                if data is not None:
                    return data
            except NotFound:  # then it is a node, or absent
                pass
        with self._db.read() as db:
            row = db.execute(PLAIN, (key_of(hash),)).fetchone()
        return self.get(hash).data if row is None or row[0] is None else verified(hash, row[0])

    def get_many(self, hashes: Iterable[str]) -> Iterator[bytes | None]:
        remaining = iter(hashes)
        while batch := list(islice(remaining, BATCH_ROWS)):
            rows = self._contents(batch)
            for hash in batch:
                if hash not in rows:
                    raise NotFound(f"no blob {hash} in this store")
                data, is_file = rows[hash]
                if is_file:
                    yield self._objects.content(hash)
                else:
                    yield self.get(hash).data if data is None else verified(hash, data)

    def _contents(self, hashes: list[str]) -> dict[str, tuple[bytes | None, bool]]:
        """Returns of each: the data, None where it is long, and whether it is a file instead."""
        keys = [key for hash in hashes if (key := parse_hash(hash)) is not None]
        with self._db.read() as db:
            rows = db.execute(
                f"SELECT hash, CASE WHEN size <= {BATCHED_ROW_MAX_BYTES} THEN data END,"
                " data IS NULL, type IS NOT NULL"
                f" FROM blobs WHERE hash IN ({','.join('?' * len(keys))})",
                keys,
            ).fetchall()
        return {
            key.hex(): (self._decoded(data, node), bool(file)) for key, data, file, node in rows
        }

    def _decoded(self, data: bytes | None, is_node: bool) -> bytes | None:
        """Returns the bytes of a row, as they are stored where they do not decode."""
        try:
            return self.rows.decode(data) if is_node and data is not None else data
        except Corrupt:
            return data

    def _row(self, hash: str) -> tuple[int, int | None, bytes | None]:
        """Returns (size, id of the type, data). Raises NotFound."""
        with self._db.read() as db:
            row: tuple[int, int | None, bytes | None] | None = db.execute(
                "SELECT size, type, data FROM blobs WHERE hash = ?", (key_of(hash),)
            ).fetchone()
        if row is None:
            raise NotFound(f"no blob {hash} in this store")
        size, type, data = row
        return size, type, self._decoded(data, type is not None)

    # -- metadata -------------------------------------------------------------------------

    def info(self, hashes: Collection[str]) -> dict[str, BlobInfo]:
        found: dict[str, BlobInfo] = {}
        keys = [key for hash in hashes if (key := parse_hash(hash)) is not None]
        for start in range(0, len(keys), BATCH_ROWS):
            part = keys[start : start + BATCH_ROWS]
            with self._db.read() as db:
                marks = ",".join("?" * len(part))
                rows = db.execute(f"{INFO_PURGED} hash IN ({marks})", part).fetchall()
            for key, size, type, is_purged in rows:
                info = self._blob_info(size, type)
                found[key.hex()] = info._replace(purged=True) if is_purged else info
        return found

    def _blob_info(self, size: object, type: int | None) -> BlobInfo:
        """Returns the metadata of a row; a damaged size as -1, which no blob has."""
        whole = size if isinstance(size, int) else -1
        return BlobInfo(whole, None if type is None else self._type(type))

    def iterate(self, after: int = 0) -> Iterator[tuple[int, str, BlobInfo]]:
        return self._iterate(after, "")

    def _iterate(self, after: int, condition: str) -> Iterator[tuple[int, str, BlobInfo]]:
        while True:
            with self._db.read() as db:
                rows = db.execute(
                    f"{INFO} id > ? {condition} ORDER BY id LIMIT {BATCH_ROWS}", (after,)
                ).fetchall()
            for after, key, size, type in rows:
                if is_sound(key, size):  # else `faults` has it
                    yield after, key.hex(), self._blob_info(size, type)
            if len(rows) < BATCH_ROWS:
                return

    def _type(self, id: int) -> str | None:
        if id not in self._types:
            with self._db.read() as db:
                rows = db.execute("SELECT id, hash FROM types").fetchall()
            self._types.update((one, type) for one, key in rows if (type := type_of(key)))
            self.type_ids.update((type, one) for one, type in self._types.items())
        return self._types.get(id)  # None: the row was lost, as fsck reports

    def missing(self, hashes: Collection[str]) -> list[str]:
        asked = {hash: parse_hash(hash) for hash in hashes}
        keys = [key for key in asked.values() if key is not None]
        found: set[bytes] = set()
        for start in range(0, len(keys), BATCH_ROWS):
            part = keys[start : start + BATCH_ROWS]
            marks = ",".join("?" * len(part))
            with self._db.read() as db:
                rows = db.execute(f"SELECT hash FROM blobs WHERE hash IN ({marks})", part)
                found.update(key for (key,) in rows)
        return [hash for hash, key in asked.items() if key not in found]

    def find(self, prefix: str, limit: int) -> list[str]:
        low, high = bytes.fromhex(prefix.ljust(64, "0")), bytes.fromhex(prefix.ljust(64, "f"))
        with self._db.read() as db:
            rows = db.execute(
                "SELECT hash FROM blobs WHERE hash BETWEEN ? AND ? ORDER BY hash LIMIT ?",
                (low, high, limit),
            ).fetchall()
        return [key.hex() for (key,) in rows]

    def of_type(self, type: str) -> Iterator[tuple[str, BlobInfo]]:
        with self._db.read() as db:
            row = db.execute("SELECT id FROM types WHERE hash = ?", (type_key(type),)).fetchone()
        for _, hash, info in self._iterate(0, f"AND type = {row[0]}") if row else ():
            yield hash, info

    def total(self) -> Total:
        with self._db.read() as db:
            row = db.execute(
                "SELECT count(*), coalesce(sum(size), 0), coalesce(sum(data IS NULL), 0) FROM blobs"
            ).fetchone()
        return Total(*map(int, row))

    def types(self) -> dict[str, int]:
        with self._db.read() as db:
            rows = db.execute(
                "SELECT t.hash, count(*) FROM blobs b JOIN types t ON t.id = b.type GROUP BY b.type"
            ).fetchall()
        return {type: count for key, count in rows if (type := type_of(key)) is not None}

    def room(self) -> dict[str | None, Total]:
        with self._db.read() as db:
            rows = db.execute(
                "SELECT t.hash, count(*), sum(size), sum(data IS NULL) FROM blobs b"
                " LEFT JOIN types t ON t.id = b.type GROUP BY b.type"
            ).fetchall()
        known = [(key if key is None else type_of(key) or "", total) for key, *total in rows]
        return {type: Total(*map(int, total)) for type, total in known}

    # -- repair ---------------------------------------------------------------------------

    def faults(self) -> Iterator[str]:
        for fault in self._db.faults():
            yield f"store.db: {fault}"
        with self._db.read() as db:
            yield from (f"store.db: {fault}" for fault in mistyped(db))
        yield from (f"objects/{fault}" for fault in self._objects.faults())

    def verify(self, hash: str) -> None:
        size, _, data = self._row(hash)
        if data is None:
            self._objects.verify(hash, size)
        elif len(verified(hash, data)) != size:
            raise CorruptBlob(f"blob {hash}: its row is not {size} bytes long")

    def quarantine(self, hash: str) -> None:
        def move(db: Connection) -> None:
            row = db.execute(
                "SELECT CAST(data AS BLOB), type FROM blobs WHERE hash = ?", (key_of(hash),)
            ).fetchone()
            self._objects.quarantine(
                hash, self._decoded(row[0], row[1] is not None) if row else None
            )
            db.execute("DELETE FROM blobs WHERE hash = ?", (key_of(hash),))

        self._commits.run(move)

    def purge(self, hash: str) -> bool:
        with self._db.write(erasing=True) as db:
            if db.execute(PURGE, (key_of(hash),)).rowcount != 1:
                raise NotFound(f"no blob {hash} in this store that is not a node")
            self._objects.remove(hash, quarantined=True)
        return self._db.shrink()
