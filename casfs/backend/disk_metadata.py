"""The metadata of the blobs of `store.db`."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from casfs.backend.block_maps import STORED_BYTES
from casfs.backend.protocols import BlobInfo, Total
from casfs.backend.purge_marks import IS_AWAITED, IS_PURGED, substitute_of
from casfs.backend.sqlite_connection import Database
from casfs.backend.sqlite_statements import (
    BATCH_ROWS,
    IS_FILE,
    IS_REMOTE,
    is_sound,
    keys_of,
    parse_hash,
    rows_in,
    type_key,
    type_of,
)
from casfs.errors import NotFound

INFO = "SELECT id, hash, size, type FROM blobs WHERE"
IN_REMOTE = """
SELECT b.hash, p.name FROM blobs b JOIN packs p ON p.id = b.pack
WHERE p.kind = 'remote' AND p.remote = coalesce(?, p.remote) ORDER BY b.pack, b.member
"""
INFO_PLACE = (
    f"SELECT hash, size, type, CASE WHEN {IS_PURGED} THEN data END, {IS_REMOTE}, {IS_AWAITED}"
    " FROM blobs WHERE"
)


class DiskMetadata:
    def __init__(self, db: Database) -> None:
        self._db = db
        self._types: dict[int, str] = {}  # of committed rows of `types`, which never change
        self.type_ids: dict[str, int] = {}  # the same rows

    def info(self, hashes: Collection[str]) -> dict[str, BlobInfo]:
        infos: dict[str, BlobInfo] = {}
        keys = [key for hash in hashes if (key := parse_hash(hash)) is not None]
        if not keys:
            return infos
        with self._db.read() as db:
            rows = rows_in(db, f"{INFO_PLACE} hash IN", keys)
        for key, size, type, mark, remote, awaited in rows:
            info = self._blob_info(size, type)
            if mark is not None:
                info = info._replace(purged=True, substitute=substitute_of(mark))
            elif remote or awaited:
                info = info._replace(remote=bool(remote), awaited=bool(awaited))
            infos[key.hex()] = info
        return infos

    def local_among(self, hashes: Collection[str]) -> set[str]:
        try:
            keys = keys_of(hashes)  # faster than one by one
        except NotFound:
            keys = [key for hash in hashes if (key := parse_hash(hash)) is not None]
        with self._db.read() as db:
            rows = rows_in(db, "SELECT hash FROM local_blobs WHERE hash IN", keys)
        return {key.hex() for (key,) in rows}

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
            self._types.update((type_id, type) for type_id, key in rows if (type := type_of(key)))
            self.type_ids.update((type, type_id) for type_id, type in self._types.items())
        return self._types.get(id)  # None: the row was lost, as fsck reports

    def missing(self, hashes: Collection[str]) -> list[str]:
        keys_by_hash = {hash: parse_hash(hash) for hash in hashes}
        keys = [key for key in keys_by_hash.values() if key is not None]
        with self._db.read() as db:
            stored_keys = {
                key for (key,) in rows_in(db, "SELECT hash FROM blobs WHERE hash IN", keys)
            }
        return [hash for hash, key in keys_by_hash.items() if key not in stored_keys]

    def find(self, prefix: str, limit: int) -> list[str]:
        low = bytes.fromhex(prefix.ljust(64, "0"))
        high = bytes.fromhex(prefix.ljust(64, "f"))
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
                f"SELECT count(*), coalesce(sum({STORED_BYTES}), 0), coalesce(sum({IS_FILE}), 0)"
                " FROM blobs"
            ).fetchone()
        return Total(*map(int, row))

    def in_remote(self, remote: str | None = None) -> Iterator[tuple[str, str]]:
        with self._db.read() as db:
            rows = db.execute(IN_REMOTE, (remote,)).fetchall()
        return ((key.hex(), pack.hex()) for key, pack in rows)

    def types(self) -> dict[str, int]:
        with self._db.read() as db:
            rows = db.execute(
                "SELECT t.hash, count(*) FROM blobs b JOIN types t ON t.id = b.type GROUP BY b.type"
            ).fetchall()
        return {type: count for key, count in rows if (type := type_of(key)) is not None}

    def room(self) -> dict[str | None, Total]:
        with self._db.read() as db:
            rows = db.execute(
                f"SELECT t.hash, count(*), sum({STORED_BYTES}), sum({IS_FILE}) FROM blobs b"
                " LEFT JOIN types t ON t.id = b.type GROUP BY b.type"
            ).fetchall()
        known = [(key if key is None else type_of(key) or "", total) for key, *total in rows]
        return {type: Total(*map(int, total)) for type, total in known}
