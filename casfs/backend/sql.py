"""The rows of `store.db`: its tables, and what one transaction does to them.

Every function here takes a connection and is part of somebody's transaction; when one
begins and ends is decided in `casfs.backend.disk`, whose docstring explains the columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from casfs import canonical
from casfs.backend.protocols import MAX_RECORD, META, MOVES, Head, Staged, Swap
from casfs.backend.sqlite import Connection
from casfs.digest import hash_bytes
from casfs.errors import Conflict, CorruptBlob, Invalid, NotFound

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


ADD = "INSERT OR IGNORE INTO heads (name, hash, record) VALUES (?, ?, ?)"
REPLACE = "UPDATE heads SET hash = ?, record = ? WHERE name = ? AND hash = ? AND record = ?"
REMOVE = "DELETE FROM heads WHERE name = ? AND hash = ? AND record = ?"


class Row(NamedTuple):
    """Of a blob; `type` is a row of `types`, None for plain bytes."""

    id: int
    type: int | None
    touched: int


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
        raise NotFound(f"no blob {hash!r} in this store: not a valid hash")
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


def prepare(
    db: Connection, batch: list[Staged], moves: list[Swap], require: Iterable[str], now: int
) -> dict[bytes, Row]:
    """What a transaction begins with, in one look at the rows: all that it relies on must still
    be there, `require`, the types of its nodes and what its heads will point to, and what is
    old of that is made young again. Returns the rows that its own blobs have already; of many
    blobs only the nodes are looked up.

    Raises NotFound.
    """
    brought = {one.digest.hash for one in batch}
    relied = {move.new.hash for move in moves if move.new}
    relied.update(one.type for one in batch if one.type is not None and one.type != META)
    needed = [key_of(hash) for hash in (relied - brought).union(require)]
    few = len(batch) <= CHUNK
    own = [key_of(one.digest.hash) for one in batch if few or one.type is not None]
    found = _found(db, list({*needed, *own}))
    if gone := [key for key in needed if key not in found]:
        raise NotFound(f"no blob {min(gone).hex()} in this store: it was collected meanwhile")
    stale = [(now, found[key].id) for key in needed if found[key].touched < now - RENEW]
    if stale:
        db.executemany("UPDATE blobs SET touched = ? WHERE id = ?", stale)
    return {key: found[key] for key in own if key in found}


def _found(db: Connection, keys: list[bytes]) -> dict[bytes, Row]:
    found: dict[bytes, Row] = {}
    for start in range(0, len(keys), CHUNK):
        part = keys[start : start + CHUNK]
        marks = ",".join("?" * len(part))
        rows = db.execute(
            f"SELECT hash, id, type, touched FROM blobs WHERE hash IN ({marks})", part
        )
        found.update((row[0], Row(*row[1:])) for row in rows)
    return found


def insert(db: Connection, batch: list[Staged], stored: Mapping[bytes, Row], now: int) -> None:
    """The rows of a batch, in its order: a node comes after what it refers to. `stored`: those
    that are there already."""
    ids = _type_ids(db, {one.type for one in batch if one.type is not None})
    rows: list[tuple[bytes, int, int | None, int, bytes | None]] = []
    for one in batch:
        key, data = key_of(one.digest.hash), one.data
        if one.type is not None and key in stored and stored[key].type is None:
            # it arrives anew, as a node; its bytes stay where they are
            ((data,),) = db.execute(TAKE_PLAIN, (key,)).fetchall() or [(data,)]
        id = None if one.type is None else ids[one.type]
        rows.append((key, one.digest.size_bytes, id, now, data))
    db.executemany(INSERT, rows)


def _type_ids(db: Connection, types: Collection[str]) -> dict[str, int]:
    """Of this transaction only: a rollback may hand out new ones again."""
    ids = {}
    for type in types:
        id = type_id(db, type)
        if id is None:
            id = db.execute("INSERT INTO types (hash) VALUES (?)", (type_key(type),)).lastrowid
        assert id is not None
        ids[type] = id
    return ids


def note_young(db: Connection, hashes: list[str], moves: list[Swap]) -> None:
    """Tell the collection that runs: what this transaction touches is needed."""
    keys = [key_of(hash) for hash in [*hashes, *(move.new.hash for move in moves if move.new)]]
    db.executemany(
        "INSERT OR IGNORE INTO young SELECT id FROM blobs WHERE hash = ?", [(key,) for key in keys]
    )


def swap(db: Connection, swap: Swap, at_ms: int) -> None:
    """Raises Conflict, Invalid."""
    name = swap.name
    old = None if swap.old is None else _row(swap.old)
    new = None if swap.new is None else _row(swap.new)
    if not storable(name):
        raise Invalid(f"head {name!a}: a name must be UTF-8")
    statement, values = ADD, (name, *(new or ()))
    if old is not None:
        statement, values = (REPLACE, (*new, name, *old)) if new else (REMOVE, (name, *old))
    if db.execute(statement, values).rowcount != 1:
        raise Conflict(f"head {name}: moved by somebody else meanwhile")
    if new is None:
        db.execute("DELETE FROM uses WHERE name = ?", (name,))
    _note_move(db, name, None if new is None else new[0], at_ms)


def _note_move(db: Connection, name: str, key: bytes | None, at_ms: int) -> None:
    """A line of the journal, which is cut now and then."""
    row = db.execute("INSERT INTO moves (name, hash, at) VALUES (?, ?, ?)", (name, key, at_ms))
    seq = row.lastrowid
    if seq is not None and seq % PRUNE == 0:
        db.execute("DELETE FROM moves WHERE seq <= ?", (seq - MOVES,))


def head_of(hash: bytes, record: str) -> Head:
    return Head(hash.hex(), canonical.decode(record.encode()))


def _row(head: Head) -> tuple[bytes, str]:
    """(hash, record) as they are stored. Raises Invalid."""
    size = len(head.text) if head.text.isascii() else len(head.text.encode())
    if size > MAX_RECORD:
        raise Invalid(f"a head's record of {size} bytes is over {MAX_RECORD}")
    return key_of(head.hash), head.text
