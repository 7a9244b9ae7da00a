"""The store on a local disk: SQLite rows for what is small, plain files for what is large.

    store.db    blobs(hash, size, type, touched, data), types(hash), heads(name, hash, record)
    objects/    the bytes of every row whose `data` is NULL (`casfs.objects`)
    tmp/        private files of living writers

A blob exists when its row exists; a file without a row is garbage. `objects/` changes
only while the SQLite write lock is held, so rows and files cannot be caught disagreeing.
One transaction publishes blobs and moves heads: file contents are synced before it
begins, renames and their directories inside it, and the commit itself is one fsync of
the WAL. Nodes are rows whatever their size; other blobs up to `SMALL` bytes are rows.
`type` is a row of `types`, which holds the hashes of schema nodes (and META, empty, for
the meta-schema node's own type); it is NULL for bytes that are no node. `touched` (UTC
seconds) is the last time that somebody put the blob or published a node that refers to it.
While a collection runs (`casfs.sweep`), what is touched is noted in `young` as well.
`id` is the order of arrival and never given twice; plain bytes that become a node arrive
anew, so a node's id is above those of all that it refers to (what fsck took away and
somebody put back is the exception).
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from . import canonical
from .backend import MAX_RECORD, META, Blob, BlobInfo, Head, Staged, Swap, Total
from .digest import Digest, hash_bytes
from .errors import Conflict, CorruptBlob, Invalid, NotFound
from .objects import Objects
from .sqlite import Connection, Database
from .sweep import Sweep

RENEW = 60  # seconds; a younger blob's age is not worth a write
CHUNK = 500  # rows or parameters a statement
LONG = 1 << 16  # bytes; a longer row is read by itself, so that a portion stays small
META_KEY = b""

SCHEMA = """
CREATE TABLE IF NOT EXISTS blobs (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  hash BLOB NOT NULL UNIQUE,
  size INTEGER NOT NULL,
  type INTEGER,
  touched INTEGER NOT NULL,
  data BLOB
);
CREATE INDEX IF NOT EXISTS blobs_by_type ON blobs(type) WHERE type IS NOT NULL;
CREATE TABLE IF NOT EXISTS types (id INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS young (id INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS collecting (id INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS uses (name TEXT PRIMARY KEY, at INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS heads (
  name TEXT PRIMARY KEY,
  hash BLOB NOT NULL,
  record TEXT NOT NULL
) WITHOUT ROWID;
"""

INSERT = f"""
INSERT INTO blobs (hash, size, type, touched, data) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (hash) DO UPDATE SET touched = excluded.touched
WHERE touched < excluded.touched - {RENEW}
"""

TAKE_PLAIN = "DELETE FROM blobs WHERE hash = ? AND type IS NULL RETURNING data"


class DiskBackend:
    def __init__(self, root: Path) -> None:
        """Open what `create` made; sweeps what dead writers left in `tmp/`."""
        self._root = root
        self._db = Database(root / "store.db")
        self._objects = Objects(root / "objects")
        self._objects.sweep()
        self.blobs = DiskBlobs(self._db, self._objects)
        self.heads = DiskHeads(self._db)

    @classmethod
    def create(cls, root: Path) -> None:
        Database(root / "store.db", SCHEMA).close()
        Objects.create(root / "objects")

    def publish(
        self, staged: Iterable[Staged], swaps: Iterable[Swap] = (), require: Collection[str] = ()
    ) -> None:
        batch = list(staged)
        self._objects.sync(batch)
        now = int(time.time())
        with self._db.write() as db:
            moves = list(swaps)
            _renew(db, require, now)
            _insert(db, batch, now)
            _renew(db, [move.new.hash for move in moves if move.new], now)
            self._objects.place(batch)
            if db.execute("SELECT 1 FROM collecting").fetchone():
                _note_young(db, [*require, *(one.digest.hash for one in batch)], moves)
            for move in moves:
                _swap(db, move)

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
        self._objects.close()
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

    def get(self, hash: str) -> Blob:
        row = self._row(hash)
        type, data = _type(row[1]), row[2]
        if data is None:
            with self._objects.open(hash) as source:
                data = source.read()
        return Blob(_verified(hash, data), type)

    def open(self, hash: str) -> BinaryIO:
        data = self._row(hash)[2]
        return self._objects.open(hash) if data is None else io.BytesIO(_verified(hash, data))

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
                    yield self.get(hash).data if data is None else _verified(hash, data)

    def _rows(self, hashes: list[str]) -> dict[str, tuple[bytes | None, bool]]:
        """Of each: the data, None where it is long, and whether it is a file instead."""
        keys = [key for hash in hashes if (key := _parsed(hash)) is not None]
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
                (_key(hash),),
            ).fetchone()
        if row is None:
            raise NotFound(f"no blob {hash} in this store")
        return row

    def info(self, hashes: Collection[str]) -> dict[str, BlobInfo]:
        found: dict[str, BlobInfo] = {}
        keys = [key for hash in hashes if (key := _parsed(hash)) is not None]
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
                found[key.hex()] = BlobInfo(size, _type(type))
        return found

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
                yield after, key.hex(), BlobInfo(size, _type(type_key))
            if len(rows) < CHUNK:
                return

    def _type_id(self, type: str) -> int:
        with self._db.read() as db:
            return -1 if (id := _type_id(db, type)) is None else id

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
        elif len(_verified(hash, data)) != size:
            raise CorruptBlob(f"blob {hash}: its row is not {size} bytes long")

    def quarantine(self, hash: str) -> None:
        with self._db.write() as db:
            row = db.execute(
                "SELECT CAST(data AS BLOB) FROM blobs WHERE hash = ?", (_key(hash),)
            ).fetchone()
            self._objects.set_aside(hash, row[0] if row else None)
            db.execute("DELETE FROM blobs WHERE hash = ?", (_key(hash),))


class DiskHeads:
    def __init__(self, db: Database) -> None:
        self._db = db

    def get(self, name: str) -> Head | None:
        if not _storable(name):
            return None
        with self._db.read() as db:
            row = db.execute("SELECT hash, record FROM heads WHERE name = ?", (name,)).fetchone()
        return None if row is None else _head(*row)

    def list(self, prefix: str = "", *, reverse: bool = False) -> Iterator[tuple[str, Head]]:
        if not _storable(prefix):
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
                yield name, _head(hash, record)
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


def _verified(hash: str, data: bytes) -> bytes:
    if not isinstance(data, bytes) or hash_bytes(data) != hash:  # damage may make it text
        raise CorruptBlob(f"blob {hash}: its bytes do not hash to its name")
    return data


def _parsed(hash: str) -> bytes | None:
    """The 32 bytes of a hash; None for what is none. Cheaper than a pattern."""
    try:
        key = bytes.fromhex(hash)
    except ValueError:
        return None
    return key if len(key) == 32 and key.hex() == hash else None


def _key(hash: str) -> bytes:
    key = _parsed(hash)
    if key is None:
        raise NotFound(f"no blob {hash!r} in this store: that is no hash")
    return key


def _storable(name: str) -> bool:
    """False for what came from bytes that are not UTF-8: no head has such a name."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def _type(key: bytes | None) -> str | None:
    """The type of a row from its `types.hash`."""
    if key is None:
        return None
    return META if key == META_KEY else key.hex()


def _type_key(type: str) -> bytes:
    return META_KEY if type == META else _key(type)


def _type_id(db: Connection, type: str) -> int | None:
    row = db.execute("SELECT id FROM types WHERE hash = ?", (_type_key(type),)).fetchone()
    return None if row is None else int(row[0])


def _insert(db: Connection, batch: list[Staged], now: int) -> None:
    ids: dict[str, int] = {}  # of this transaction only: a rollback may hand them out again
    for one in batch:
        key, id, data = _key(one.digest.hash), None, [(one.data,)]
        if one.type is not None:
            id = ids.get(one.type)
            if id is None:
                id = ids[one.type] = _new_type_id(db, one.type)
            data = db.execute(TAKE_PLAIN, (key,)).fetchall() or data  # bytes stay where they are
        db.execute(INSERT, (key, one.digest.size_bytes, id, now, *data[0]))


def _new_type_id(db: Connection, type: str) -> int:
    """The row of a type, which must be a blob of this store by now. Raises NotFound."""
    if type != META and not _exists(db, type):
        raise NotFound(f"no blob {type} in this store, and it is to be the type of a node")
    db.execute("INSERT OR IGNORE INTO types (hash) VALUES (?)", (_type_key(type),))
    id = _type_id(db, type)
    assert id is not None
    return id


def _exists(db: Connection, hash: str) -> bool:
    return db.execute("SELECT 1 FROM blobs WHERE hash = ?", (_key(hash),)).fetchone() is not None


def _renew(db: Connection, hashes: Collection[str], now: int) -> None:
    """Check that all of `hashes` are still there, and make old ones young again."""
    stale = []
    for hash in hashes:
        row = db.execute("SELECT id, touched FROM blobs WHERE hash = ?", (_key(hash),)).fetchone()
        if row is None:
            raise NotFound(f"no blob {hash} in this store: it was collected meanwhile")
        if row[1] < now - RENEW:
            stale.append((now, row[0]))
    db.executemany("UPDATE blobs SET touched = ? WHERE id = ?", stale)


def _note_young(db: Connection, hashes: list[str], moves: list[Swap]) -> None:
    """Tell the collection that runs: what this transaction touches is needed."""
    keys = [_key(hash) for hash in [*hashes, *(move.new.hash for move in moves if move.new)]]
    db.executemany(
        "INSERT OR IGNORE INTO young SELECT id FROM blobs WHERE hash = ?", [(key,) for key in keys]
    )


def _swap(db: Connection, swap: Swap) -> None:
    if not _storable(swap.name):
        raise Invalid(f"head {swap.name!a}: a name must be UTF-8")
    row = db.execute("SELECT hash, record FROM heads WHERE name = ?", (swap.name,)).fetchone()
    if row != (None if swap.old is None else (_key(swap.old.hash), _record(swap.old))):
        raise Conflict(f"head {swap.name}: moved by somebody else meanwhile")
    if swap.new is None:
        db.execute("DELETE FROM heads WHERE name = ?", (swap.name,))
        db.execute("DELETE FROM uses WHERE name = ?", (swap.name,))
    else:
        db.execute(
            "INSERT INTO heads (name, hash, record) VALUES (?, ?, ?)"
            " ON CONFLICT (name) DO UPDATE SET hash = excluded.hash, record = excluded.record",
            (swap.name, _key(swap.new.hash), _record(swap.new)),
        )


def _head(hash: bytes, record: str) -> Head:
    return Head(hash.hex(), canonical.decode(record.encode()))


def _record(head: Head) -> str:
    text = canonical.encode(dict(head.record))
    if len(text) > MAX_RECORD:
        raise Invalid(f"a head's record of {len(text)} bytes is over {MAX_RECORD}")
    return text.decode()
