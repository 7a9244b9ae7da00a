"""The rows of `store.db`: its tables, and what one transaction does to them.

Every function here takes a connection and is part of somebody's transaction; when one
begins and ends is decided in `casfs.backend.disk`, whose docstring explains the columns.
"""

from __future__ import annotations

from collections.abc import Collection

from .. import canonical
from ..digest import hash_bytes
from ..errors import Conflict, CorruptBlob, Invalid, NotFound
from . import MAX_RECORD, META, MOVES, Head, Staged, Swap
from .sqlite import Connection

RENEW = 60  # seconds; a younger blob's age is not worth a write


CHUNK = 500  # rows or parameters a statement


PRUNE = 1000  # moves between two times that the journal is cut


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
CREATE TABLE IF NOT EXISTS moves (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL,
  hash BLOB,
  at INTEGER NOT NULL
);
"""


INSERT = f"""
INSERT INTO blobs (hash, size, type, touched, data) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (hash) DO UPDATE SET touched = excluded.touched
WHERE touched < excluded.touched - {RENEW}
"""


TAKE_PLAIN = "DELETE FROM blobs WHERE hash = ? AND type IS NULL RETURNING data"


def verified(hash: str, data: bytes) -> bytes:
    if not isinstance(data, bytes) or hash_bytes(data) != hash:  # damage may make it text
        raise CorruptBlob(f"blob {hash}: its bytes do not hash to its name")
    return data


def parsed(hash: str) -> bytes | None:
    """The 32 bytes of a hash; None for what is none. Cheaper than a pattern."""
    try:
        key = bytes.fromhex(hash)
    except ValueError:
        return None
    return key if len(key) == 32 and key.hex() == hash else None


def key_of(hash: str) -> bytes:
    key = parsed(hash)
    if key is None:
        raise NotFound(f"no blob {hash!r} in this store: that is no hash")
    return key


def storable(name: str) -> bool:
    """False for what came from bytes that are not UTF-8: no head has such a name."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def type_of(key: bytes | None) -> str | None:
    """The type of a row from its `types.hash`."""
    if key is None:
        return None
    return META if key == META_KEY else key.hex()


def type_key(type: str) -> bytes:
    return META_KEY if type == META else key_of(type)


def type_id(db: Connection, type: str) -> int | None:
    row = db.execute("SELECT id FROM types WHERE hash = ?", (type_key(type),)).fetchone()
    return None if row is None else int(row[0])


def insert(db: Connection, batch: list[Staged], now: int) -> None:
    """The rows of a batch, in its order: a node comes after what it refers to."""
    ids: dict[str, int] = {}  # of this transaction only: a rollback may hand them out again
    plain = _plain(db, [one for one in batch if one.type is not None])
    rows: list[tuple[bytes, int, int | None, int, bytes | None]] = []
    for one in batch:
        key, id, data = key_of(one.digest.hash), None, one.data
        if one.type is not None:
            id = ids.get(one.type)
            if id is None:
                db.executemany(INSERT, rows)  # the type may be among them
                rows = []
                id = ids[one.type] = _new_type_id(db, one.type)
            if key in plain:  # it arrives anew, as a node; its bytes stay where they are
                ((data,),) = db.execute(TAKE_PLAIN, (key,)).fetchall() or [(data,)]
        rows.append((key, one.digest.size_bytes, id, now, data))
    db.executemany(INSERT, rows)


def _plain(db: Connection, nodes: list[Staged]) -> set[bytes]:
    """Which of these nodes are stored as plain bytes so far."""
    keys = [key_of(one.digest.hash) for one in nodes]
    found: set[bytes] = set()
    for start in range(0, len(keys), CHUNK):
        part = keys[start : start + CHUNK]
        marks = ",".join("?" * len(part))
        rows = db.execute(f"SELECT hash FROM blobs WHERE type IS NULL AND hash IN ({marks})", part)
        found.update(key for (key,) in rows)
    return found


def _new_type_id(db: Connection, type: str) -> int:
    """The row of a type, which must be a blob of this store by now. Raises NotFound."""
    if type != META and not _exists(db, type):
        raise NotFound(f"no blob {type} in this store, and it is to be the type of a node")
    db.execute("INSERT OR IGNORE INTO types (hash) VALUES (?)", (type_key(type),))
    id = type_id(db, type)
    assert id is not None
    return id


def _exists(db: Connection, hash: str) -> bool:
    return db.execute("SELECT 1 FROM blobs WHERE hash = ?", (key_of(hash),)).fetchone() is not None


def renew(db: Connection, hashes: Collection[str], now: int) -> None:
    """Check that all of `hashes` are still there, and make old ones young again."""
    keys = list({key_of(hash) for hash in hashes})
    stale = []
    for start in range(0, len(keys), CHUNK):
        part = keys[start : start + CHUNK]
        rows = db.execute(
            f"SELECT hash, id, touched FROM blobs WHERE hash IN ({','.join('?' * len(part))})", part
        ).fetchall()
        if len(rows) < len(part):
            gone = min(set(part).difference(row[0] for row in rows))
            raise NotFound(f"no blob {gone.hex()} in this store: it was collected meanwhile")
        stale += [(now, id) for _, id, touched in rows if touched < now - RENEW]
    db.executemany("UPDATE blobs SET touched = ? WHERE id = ?", stale)


def note_young(db: Connection, hashes: list[str], moves: list[Swap]) -> None:
    """Tell the collection that runs: what this transaction touches is needed."""
    keys = [key_of(hash) for hash in [*hashes, *(move.new.hash for move in moves if move.new)]]
    db.executemany(
        "INSERT OR IGNORE INTO young SELECT id FROM blobs WHERE hash = ?", [(key,) for key in keys]
    )


def swap(db: Connection, swap: Swap, at_ms: int) -> None:
    if not storable(swap.name):
        raise Invalid(f"head {swap.name!a}: a name must be UTF-8")
    row = db.execute("SELECT hash, record FROM heads WHERE name = ?", (swap.name,)).fetchone()
    if row != (None if swap.old is None else (key_of(swap.old.hash), _record(swap.old))):
        raise Conflict(f"head {swap.name}: moved by somebody else meanwhile")
    if swap.new is None:
        db.execute("DELETE FROM heads WHERE name = ?", (swap.name,))
        db.execute("DELETE FROM uses WHERE name = ?", (swap.name,))
    else:
        db.execute(
            "INSERT INTO heads (name, hash, record) VALUES (?, ?, ?)"
            " ON CONFLICT (name) DO UPDATE SET hash = excluded.hash, record = excluded.record",
            (swap.name, key_of(swap.new.hash), _record(swap.new)),
        )
    _note_move(db, swap, at_ms)


def _note_move(db: Connection, swap: Swap, at_ms: int) -> None:
    """A line of the journal, which is cut now and then."""
    key = None if swap.new is None else key_of(swap.new.hash)
    row = db.execute("INSERT INTO moves (name, hash, at) VALUES (?, ?, ?)", (swap.name, key, at_ms))
    seq = row.lastrowid
    if seq is not None and seq % PRUNE == 0:
        db.execute("DELETE FROM moves WHERE seq <= ?", (seq - MOVES,))


def head_of(hash: bytes, record: str) -> Head:
    return Head(hash.hex(), canonical.decode(record.encode()))


def _record(head: Head) -> str:
    text = canonical.encode(dict(head.record))
    if len(text) > MAX_RECORD:
        raise Invalid(f"a head's record of {len(text)} bytes is over {MAX_RECORD}")
    return text.decode()
