"""The store on a local disk: SQLite rows for what is small, plain files for what is large.

    store.db    blobs(hash, size, type, touched, data), types(hash), heads(name, hash, record),
                moves(seq, name, hash, at): the journal of the heads' last moves
    objects/    the bytes of every row whose `data` is NULL (`casfs.backend.objects`)
    tmp/        private files of living writers

A blob exists when its row exists; a file without a row is garbage. `objects/` changes
only while the SQLite write lock is held, so rows and files cannot be caught disagreeing.
One transaction publishes blobs and moves heads: file contents are synced before it
begins, renames and their directories inside it, and the commit itself is one fsync of
the WAL. Nodes are rows whatever their size; other blobs up to `SMALL` bytes are rows.
`type` is a row of `types`, which holds the hashes of schema nodes (and META, empty, for
the meta-schema node's own type); it is NULL for bytes that are no node. `touched` (UTC
seconds) is the last time that somebody put the blob or published a node that refers to it.
While a collection runs (`casfs.backend.mark_sweep`), what is touched is noted in `young` as well.
`id` is the order of arrival and never given twice; plain bytes that become a node arrive
anew, so a node's id is above those of all that it refers to (what fsck took away and
somebody put back is the exception).
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from casfs.backend.mark_sweep import Sweep
from casfs.backend.objects import Objects
from casfs.backend.protocols import (
    META,
    MOVES_AT_ONCE,
    SMALL,
    Blob,
    BlobInfo,
    Head,
    Move,
    Staged,
    Swap,
    Total,
)
from casfs.backend.sql import (
    CHUNK,
    SCHEMA,
    head_of,
    insert,
    key_of,
    note_young,
    parsed,
    prepare,
    storable,
    swap,
    type_id,
    type_of,
    verified,
)
from casfs.backend.sqlite import Database
from casfs.digest import Digest
from casfs.errors import CorruptBlob, NotFound

LONG = 1 << 16  # bytes; a longer row is read by itself, so that a portion stays small


class DiskBackend:
    def __init__(self, root: Path, objects: Objects | None = None) -> None:
        """Open what `create` made; sweeps what dead writers left in `tmp/`."""
        self._root = root
        self._db = Database(root / "store.db")
        self._objects = objects or Objects(root / "objects")
        self._objects.private.sweep()
        self.blobs = DiskBlobs(self._db, self._objects)
        self.heads = DiskHeads(self._db)

    @classmethod
    def assisting(cls, private: Path) -> DiskBackend:
        """For a process that stages for another one, into that one's `Blobs.private`."""
        root = private.parent.parent
        return cls(root, Objects(root / "objects", private))

    @classmethod
    def create(cls, root: Path) -> None:
        Database(root / "store.db", SCHEMA).close()
        Objects.create(root / "objects")

    def publish(
        self, staged: Iterable[Staged], swaps: Iterable[Swap] = (), require: Collection[str] = ()
    ) -> set[str]:
        batch = list(staged)
        self._objects.sync(batch)
        now = int(time.time())
        with self._db.write() as db:
            at_ms = time.time_ns() // 1_000_000
            moves = list(swaps)
            stored = prepare(db, batch, moves, require, now)
            insert(db, batch, stored, now)
            self._objects.place(batch)
            if db.execute("SELECT 1 FROM collecting").fetchone():
                note_young(db, [*require, *(one.digest.hash for one in batch)], moves)
            for move in moves:
                swap(db, move, at_ms)
        return {key.hex() for key in stored}

    def version(self) -> int:
        return self._db.version()

    def faults(self) -> Iterator[str]:
        for fault in self._db.faults():
            yield f"store.db: {fault}"
        for stray in self._objects.strays():
            yield f"objects/{stray}: no blob has that name; not ours, or damage"

    def collection(self) -> Sweep:
        return Sweep(self._db, self._objects, self._root / "gc.lock")

    def close(self) -> None:
        self._objects.private.close()
        self._db.close()


class DiskBlobs:
    def __init__(self, db: Database, objects: Objects) -> None:
        self._db = db
        self._objects = objects

    def stage(self, source: BinaryIO) -> Staged:
        return self._objects.stage(source)

    def stage_bytes(self, digest: Digest, data: bytes) -> Staged:
        return self._objects.stage_bytes(digest, data)

    def discard(self, staged: Iterable[Staged]) -> None:
        self._objects.discard(staged)

    def private(self) -> Path:
        return self._objects.private.directory()

    def get(self, hash: str) -> Blob:
        row = self._row(hash)
        type, data = type_of(row[1]), row[2]
        if data is None:
            with self._objects.open(hash) as source:
                data = source.read()
        return Blob(verified(hash, data), type)

    def open(self, hash: str) -> BinaryIO:
        data = self._row(hash)[2]
        return self._objects.open(hash) if data is None else io.BytesIO(verified(hash, data))

    def content(self, hash: str, size: int) -> bytes:
        if size > SMALL:
            try:
                data = self._objects.content(hash, size)
                if data is not None:
                    return data
            except NotFound:  # then it is a node, or is not there
                pass
        with self._db.read() as db:
            row = db.execute("SELECT data FROM blobs WHERE hash = ?", (key_of(hash),)).fetchone()
        return self.get(hash).data if row is None or row[0] is None else verified(hash, row[0])

    def contents(self, hashes: Iterable[str]) -> Iterator[bytes | None]:
        remaining = iter(hashes)
        while portion := list(islice(remaining, CHUNK)):
            rows = self._rows(portion)
            for hash in portion:
                if hash not in rows:
                    raise NotFound(f"no blob {hash} in this store")
                data, is_file = rows[hash]
                if is_file:
                    yield self._objects.content(hash)
                else:
                    yield self.get(hash).data if data is None else verified(hash, data)

    def _rows(self, hashes: list[str]) -> dict[str, tuple[bytes | None, bool]]:
        """Of each: the data, None where it is long, and whether it is a file instead."""
        keys = [key for hash in hashes if (key := parsed(hash)) is not None]
        with self._db.read() as db:
            rows = db.execute(
                f"SELECT hash, CASE WHEN size <= {LONG} THEN data END, data IS NULL"
                f" FROM blobs WHERE hash IN ({','.join('?' * len(keys))})",
                keys,
            ).fetchall()
        return {key.hex(): (data, bool(is_file)) for key, data, is_file in rows}

    def _row(self, hash: str) -> tuple[int, bytes | None, bytes | None]:
        """(size, key of the type, data). Raises NotFound."""
        with self._db.read() as db:
            row: tuple[int, bytes | None, bytes | None] | None = db.execute(
                "SELECT b.size, t.hash, b.data"
                " FROM blobs b LEFT JOIN types t ON t.id = b.type WHERE b.hash = ?",
                (key_of(hash),),
            ).fetchone()
        if row is None:
            raise NotFound(f"no blob {hash} in this store")
        return row

    def info(self, hashes: Collection[str]) -> dict[str, BlobInfo]:
        found: dict[str, BlobInfo] = {}
        keys = [key for hash in hashes if (key := parsed(hash)) is not None]
        for start in range(0, len(keys), CHUNK):
            part = keys[start : start + CHUNK]
            with self._db.read() as db:
                rows = db.execute(
                    "SELECT b.hash, b.size, t.hash"
                    " FROM blobs b LEFT JOIN types t ON t.id = b.type"
                    f" WHERE b.hash IN ({','.join('?' * len(part))})",
                    part,
                ).fetchall()
            for key, size, type in rows:
                found[key.hex()] = BlobInfo(size, type_of(type))
        return found

    def missing(self, hashes: Collection[str]) -> list[str]:
        asked = {hash: parsed(hash) for hash in hashes}
        keys = [key for key in asked.values() if key is not None]
        found: set[bytes] = set()
        for start in range(0, len(keys), CHUNK):
            part = keys[start : start + CHUNK]
            marks = ",".join("?" * len(part))
            with self._db.read() as db:
                rows = db.execute(f"SELECT hash FROM blobs WHERE hash IN ({marks})", part)
                found.update(key for (key,) in rows)
        return [hash for hash, key in asked.items() if key not in found]

    def find(self, prefix: str, limit: int = 2) -> list[str]:
        low, high = bytes.fromhex(prefix.ljust(64, "0")), bytes.fromhex(prefix.ljust(64, "f"))
        with self._db.read() as db:
            rows = db.execute(
                "SELECT hash FROM blobs WHERE hash BETWEEN ? AND ? ORDER BY hash LIMIT ?",
                (low, high, limit),
            ).fetchall()
        return [key.hex() for (key,) in rows]

    def iterate(self, type: str | None = None) -> Iterator[tuple[str, BlobInfo]]:
        chosen = "" if type is None else f"AND b.type = {self._type_id(type)}"
        return ((hash, info) for _, hash, info in self._arrivals(0, chosen))

    def arrivals(self, after: int = 0) -> Iterator[tuple[int, str, BlobInfo]]:
        return self._arrivals(after, "")

    def _arrivals(self, after: int, condition: str) -> Iterator[tuple[int, str, BlobInfo]]:
        while True:
            with self._db.read() as db:
                rows = db.execute(
                    "SELECT b.id, b.hash, b.size, t.hash"
                    " FROM blobs b LEFT JOIN types t ON t.id = b.type"
                    f" WHERE b.id > ? {condition} ORDER BY b.id LIMIT {CHUNK}",
                    (after,),
                ).fetchall()
            for after, key, size, type_key in rows:
                yield after, key.hex(), BlobInfo(size, type_of(type_key))
            if len(rows) < CHUNK:
                return

    def _type_id(self, type: str) -> int:
        with self._db.read() as db:
            return -1 if (id := type_id(db, type)) is None else id

    def total(self) -> Total:
        with self._db.read() as db:
            row = db.execute(
                "SELECT count(*), coalesce(sum(size), 0), coalesce(sum(data IS NULL), 0) FROM blobs"
            ).fetchone()
        return Total(*row)

    def types(self) -> dict[str, int]:
        with self._db.read() as db:
            rows = db.execute(
                "SELECT t.hash, count(*) FROM blobs b JOIN types t ON t.id = b.type GROUP BY b.type"
            ).fetchall()
        return {key.hex() or META: count for key, count in rows}

    def verify(self, hash: str) -> None:
        size, _, data = self._row(hash)
        if data is None:
            self._objects.verify(hash, size)
        elif len(verified(hash, data)) != size:
            raise CorruptBlob(f"blob {hash}: its row is not {size} bytes long")

    def quarantine(self, hash: str) -> None:
        with self._db.write() as db:
            row = db.execute(
                "SELECT CAST(data AS BLOB) FROM blobs WHERE hash = ?", (key_of(hash),)
            ).fetchone()
            self._objects.set_aside(hash, row[0] if row else None)
            db.execute("DELETE FROM blobs WHERE hash = ?", (key_of(hash),))


class DiskHeads:
    def __init__(self, db: Database) -> None:
        self._db = db

    def get(self, name: str) -> Head | None:
        if not storable(name):
            return None
        with self._db.read() as db:
            row = db.execute("SELECT hash, record FROM heads WHERE name = ?", (name,)).fetchone()
        return None if row is None else head_of(*row)

    def list(self, prefix: str = "", *, reverse: bool = False) -> Iterator[tuple[str, Head]]:
        if not storable(prefix):
            return
        low, high = prefix, prefix + chr(sys.maxunicode)
        order, portion = ("DESC", 8) if reverse else ("ASC", CHUNK)
        while True:
            with self._db.read() as db:
                rows = db.execute(
                    "SELECT name, hash, record FROM heads WHERE name >= ? AND name < ?"
                    f" ORDER BY name {order} LIMIT {portion}",
                    (low, high),
                ).fetchall()
            for name, hash, record in rows:
                yield name, head_of(hash, record)
            if len(rows) < portion:
                return
            portion = CHUNK
            low, high = (low, rows[-1][0]) if reverse else (rows[-1][0] + "\0", high)

    def note_use(self, names: Collection[str]) -> None:
        now = time.time_ns() // 1_000_000
        with self._db.write() as db:
            db.executemany(
                "INSERT OR REPLACE INTO uses SELECT name, ? FROM heads WHERE name = ?",
                [(now, name) for name in names],
            )

    def last_use(self, name: str) -> int:
        with self._db.read() as db:
            row = db.execute("SELECT at FROM uses WHERE name = ?", (name,)).fetchone()
        return 0 if row is None else int(row[0])

    def moves(self, after: int = 0) -> Sequence[Move]:
        with self._db.read() as db:
            rows = db.execute(
                "SELECT seq, name, hash, at FROM moves WHERE seq > ?"
                f" ORDER BY seq LIMIT {MOVES_AT_ONCE}",
                (after,),
            ).fetchall()
        return [Move(seq, name, key and key.hex(), at) for seq, name, key, at in rows]

    def moved(self) -> int:
        with self._db.read() as db:
            row = db.execute("SELECT max(seq) FROM moves").fetchone()
        return int(row[0] or 0)
