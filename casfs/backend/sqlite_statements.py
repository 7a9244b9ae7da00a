"""The statements of a transaction that publishes to `store.db`.

Every function here takes a connection and runs inside the caller's transaction;
`casfs.backend.disk` decides when one begins and ends, and documents the columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from casfs import canonical
from casfs.backend.protocols import (
    JOURNAL_MIN_MOVES,
    MAX_RECORD_BYTES,
    META,
    DamagedHead,
    Head,
    HeadName,
    Staged,
    Swap,
)
from casfs.backend.purge_marks import IS_AWAITED, IS_PURGED
from casfs.backend.row_compression import RowCompression
from casfs.backend.sqlite_connection import Connection
from casfs.digest import NodeHash
from casfs.errors import Conflict, Invalid, NotFound

TOUCH_RESOLUTION_S = 60  # seconds; a more recent `touched` is not worth a write
BATCH_ROWS = 500  # or parameters, per statement
JOURNAL_PRUNE_INTERVAL = 1000  # moves
META_KEY = b""  # `types.hash` for META
IS_REMOTE = "(pack IS NOT NULL AND pack IN (SELECT id FROM packs WHERE kind = 'remote'))"
IS_ABSENT = f"(coalesce({IS_AWAITED}, 0) OR {IS_REMOTE})"  # a put brings the content
INSERT = f"""
INSERT INTO blobs (hash, size, type, touched, data, pack, member) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (hash) DO UPDATE SET touched = excluded.touched,
data = CASE WHEN {IS_ABSENT} THEN excluded.data ELSE data END,
pack = CASE WHEN {IS_ABSENT} THEN excluded.pack ELSE pack END,
member = CASE WHEN {IS_ABSENT} THEN excluded.member ELSE member END
WHERE touched < excluded.touched - {TOUCH_RESOLUTION_S} OR {IS_ABSENT}
"""
ADOPT = f"""
INSERT INTO blobs (hash, size, touched, pack, member) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (hash) DO UPDATE SET pack = excluded.pack, member = excluded.member WHERE {IS_REMOTE}
"""
MOVE = "UPDATE blobs SET pack = ?, member = ? WHERE hash = ?"
TOUCH = "UPDATE blobs SET touched = ? WHERE hash = ?"
FULL_SHARE = 0.9  # of the limit of a cache, down to which an eviction goes
EVICT = """
DELETE FROM blobs WHERE id IN (SELECT id FROM (
  SELECT id, sum(size) OVER (ORDER BY touched DESC, id DESC) AS sum FROM blobs WHERE pack IS NULL
) WHERE sum > ?) RETURNING hash, data IS NULL
"""
FOREVER = 1 << 62  # later than any `touched`
IS_FILE = "data IS NULL AND pack IS NULL"
IS_PLACED = f"(pack IS NOT NULL OR data IS NOT NULL) AND NOT {IS_ABSENT}"
ROWS = f"SELECT hash, id, type, touched, {IS_PLACED} FROM blobs WHERE hash IN"
DELETE_UNTYPED_BLOB = (
    f"DELETE FROM blobs WHERE hash = ? AND type IS NULL AND NOT coalesce({IS_PURGED}, 0)"
    f" RETURNING data, {IS_FILE}"
)
ADD = "INSERT OR IGNORE INTO heads (name, hash, record) VALUES (?, ?, ?)"
REPLACE = "UPDATE heads SET hash = ?, record = ? WHERE name = ? AND hash = ? AND record = ?"
REMOVE = "DELETE FROM heads WHERE name = ? AND hash = ? AND record = ?"
DAMAGED = "CAST(hash AS BLOB) IS ? AND CAST(record AS BLOB) IS ?"
MISTYPED = {  # table: the condition of a row that is not one of ours
    "blobs": "typeof(hash) != 'blob' OR length(hash) != 32 OR typeof(size) != 'integer'"
    " OR typeof(touched) != 'integer' OR typeof(type) NOT IN ('integer', 'null')"
    " OR typeof(pack) != typeof(member) OR typeof(pack) NOT IN ('integer', 'null')",
    "packs": "typeof(name) != 'blob' OR length(name) != 32 OR typeof(size) != 'integer'",
    "types": "typeof(hash) != 'blob' OR length(hash) NOT IN (0, 32)",
    "moves": "typeof(hash) NOT IN ('blob', 'null') OR typeof(at) != 'integer'",
    "uses": "typeof(at) != 'integer'",
}


class BlobRow(NamedTuple):
    """The row of a stored blob; `type` is a row of `types`, None for plain bytes. `is_placed`: its
    bytes are in the row or in a pack, so that it has no file."""

    hash: bytes
    id: int
    type: int | None
    touched: int
    is_placed: int


def parse_hash(hash: str) -> bytes | None:
    """Returns the 32 bytes of a hash; None where it is invalid. Cheaper than a regex."""
    try:
        key = bytes.fromhex(hash)
    except ValueError:
        return None
    return key if len(key) == 32 and key.hex() == hash else None


def key_of(hash: str) -> bytes:
    """Returns the 32 bytes of a hash. Raises NotFound where it is invalid."""
    key = parse_hash(hash)
    if key is None:
        raise NotFound(f"no blob {hash!r} in this store: not a valid hash")
    return key


def keys_of(hashes: Collection[str]) -> list[bytes]:
    """Returns the 32 bytes of each hash. Raises NotFound where one is invalid."""
    try:
        keys = list(map(bytes.fromhex, hashes))
    except ValueError:
        return [key_of(hash) for hash in hashes]  # raises for the one that is invalid
    if list(map(bytes.hex, keys)) != list(hashes) or not {32}.issuperset(map(len, keys)):
        return [key_of(hash) for hash in hashes]
    return keys


def is_storable(name: str) -> bool:
    """Returns False for text decoded from bytes that are not UTF-8: no head has such a name."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def type_of(key: object) -> str | None:
    """Returns the type that a row of `types` stands for; None where the row is damaged."""
    return META if key == META_KEY else key.hex() if isinstance(key, bytes) else None


def is_sound(hash: object, size: object) -> bool:
    """Returns False for a row of `blobs` whose columns damage has changed."""
    return isinstance(hash, bytes) and len(hash) == 32 and isinstance(size, int)


def mistyped(db: Connection) -> list[str]:
    """Returns a line for each table with rows that no version of casfs has written."""
    faults = []
    for table, condition in MISTYPED.items():
        (count,) = db.execute(f"SELECT count(*) FROM {table} WHERE {condition}").fetchone()
        if count:
            faults.append(f"{count} rows of the table {table} are damaged")
    return faults


def type_key(type: str) -> bytes:
    return META_KEY if type == META else bytes.fromhex(type)


def prepare(
    db: Connection,
    batch: Sequence[Staged],
    moves: Sequence[Swap],
    require: Iterable[str],
    now_s: int,
) -> dict[bytes, BlobRow]:
    """Checks, in one query, that everything a transaction relies on is still stored (`require`, the
    types of its nodes, the targets of its heads) and refreshes its `touched`. Returns the rows that
    its own blobs have already; in a large batch only nodes and files are looked up. Raises
    NotFound."""
    published = {blob.digest.hash for blob in batch}
    targets: set[str] = {move.new.hash for move in moves if move.new}
    targets.update(blob.type for blob in batch if blob.type is not None and blob.type != META)
    needed = keys_of((targets - published).union(require))
    is_small = len(batch) <= BATCH_ROWS
    own = [
        bytes.fromhex(blob.digest.hash)
        for blob in batch
        if is_small or blob.type is not None or (blob.temp is not None and blob.member is None)
    ]
    rows_by_key = {row[0]: row for row in rows_in(db, ROWS, list({*needed, *own}))}
    if gone := [key for key in needed if key not in rows_by_key]:
        raise NotFound(f"no blob {min(gone).hex()} in this store: it was collected meanwhile")
    stale = [
        (now_s, id)
        for _, id, _, touched, _ in map(rows_by_key.__getitem__, needed)
        if touched < now_s - TOUCH_RESOLUTION_S
    ]
    if stale:
        db.executemany("UPDATE blobs SET touched = ? WHERE id = ?", stale)
    return {key: BlobRow(*rows_by_key[key]) for key in own if key in rows_by_key}


def rows_in(db: Connection, query: str, keys: Sequence[bytes]) -> list[Any]:
    """Returns the rows of a query that ends in IN, for any number of keys."""
    rows: list[Any] = []
    for start in range(0, len(keys), BATCH_ROWS):
        part = keys[start : start + BATCH_ROWS]
        rows += db.execute(f"{query} ({','.join('?' * len(part))})", part)
    return rows


def insert(
    db: Connection,
    rows_of_nodes: RowCompression,
    batch: Sequence[Staged],
    stored: Mapping[bytes, BlobRow],
    type_ids: Mapping[str, int],
    packs: Mapping[str, int],
    now_s: int,
) -> None:
    """Inserts the rows of a batch, in its order: a node comes after its references. `stored`:
    the rows that exist already; `type_ids`: committed rows of `types`; `packs`: the rows of `packs`
    by their private files."""
    types = {blob.type for blob in batch if blob.type is not None}
    ids = type_ids if types <= type_ids.keys() else _type_ids(db, types)
    if types:
        rows_of_nodes.confirm(db)
    rows: list[tuple[bytes, int, int | None, int, bytes | None, int | None, int | None]] = []
    for staged_blob in batch:
        key = bytes.fromhex(staged_blob.digest.hash)
        data = staged_blob.data if staged_blob.block_map is None else staged_blob.block_map
        id = None if staged_blob.type is None else ids[staged_blob.type]
        known = stored.get(key)
        if id is not None and known is not None and known.type is None:
            # it arrives anew, as a node; its bytes stay in their file, if they have one
            for _, is_file in db.execute(DELETE_UNTYPED_BLOB, (key,)).fetchall():
                data = None if is_file else data
        if (
            staged_blob.type is not None
            and data is not None
            and (known is None or known.type is None)
        ):
            data = rows_of_nodes.encode(data, staged_blob.type)
        pack = (
            None
            if staged_blob.member is None or staged_blob.temp is None
            else packs[staged_blob.temp]
        )
        rows.append((key, staged_blob.digest.size_bytes, id, now_s, data, pack, staged_blob.member))
    db.executemany(INSERT, rows)


def mark_local(db: Connection, hashes: Collection[str]) -> None:
    """Marks blobs that only local trees reach, those that are new: no other row is to be hidden.
    Before they are inserted."""
    keys = keys_of(hashes)
    stored = {key for (key,) in rows_in(db, "SELECT hash FROM blobs WHERE hash IN", keys)}
    new = [(key,) for key in keys if key not in stored]
    db.executemany("INSERT OR IGNORE INTO local_blobs VALUES (?)", new)


def unmark_local(db: Connection, hashes: Collection[str]) -> None:
    """Takes marks away, of what work has as well."""
    rows_in(db, "DELETE FROM local_blobs WHERE hash IN", keys_of(hashes))


def is_placed(blob: Staged, stored: Mapping[bytes, BlobRow]) -> bool:
    """Returns True for a blob that is stored already, in a row or in a pack."""
    row = stored.get(bytes.fromhex(blob.digest.hash))
    is_new_node = row is not None and blob.type is not None and row.type is None
    return row is not None and bool(row.is_placed) and not is_new_node


def _type_ids(db: Connection, types: Collection[str]) -> dict[str, int]:
    """Valid in this transaction only: after a rollback new ids are given again."""
    ids = {}
    for type in types:
        key = (type_key(type),)
        row = db.execute("SELECT id FROM types WHERE hash = ?", key).fetchone()
        if row is None:
            row = db.execute("INSERT INTO types (hash) VALUES (?) RETURNING id", key).fetchone()
        (ids[type],) = row
    return ids


def record_touched(db: Connection, hashes: list[str], moves: Sequence[Swap]) -> None:
    """Write barrier: records the blobs that this transaction touches for the running gc."""
    keys = keys_of([*hashes, *(move.new.hash for move in moves if move.new)])
    db.executemany(
        "INSERT OR IGNORE INTO young SELECT id FROM blobs WHERE hash = ?", [(key,) for key in keys]
    )


def swap(db: Connection, swap: Swap, at_ms: int) -> None:
    """Moves a head by compare-and-swap, and appends to the journal. Raises Conflict, Invalid."""
    name = swap.name
    old = None if swap.old is None else _head_row(swap.old)
    new = None if swap.new is None else _head_row(swap.new)
    if not is_storable(name):
        raise Invalid(f"head {name!a}: a name must be UTF-8")
    statement = ADD
    values = (name, *(new or ()))
    if old is not None:
        statement, values = (REPLACE, (*new, name, *old)) if new else (REMOVE, (name, *old))
    if isinstance(swap.old, DamagedHead):
        statement = statement.replace("hash = ? AND record = ?", DAMAGED)
    if db.execute(statement, values).rowcount != 1:
        raise Conflict(f"head {name}: moved by another writer meanwhile")
    if new is None:
        db.execute("DELETE FROM uses WHERE name = ?", (name,))
    _append_move(db, name, key=None if new is None else new[0], at_ms=at_ms)


def _append_move(db: Connection, name: HeadName, key: bytes | None, at_ms: int) -> None:
    """Appends to the journal, which is pruned at intervals."""
    row = db.execute("INSERT INTO moves (name, hash, at) VALUES (?, ?, ?)", (name, key, at_ms))
    seq = row.lastrowid
    if seq is not None and seq % JOURNAL_PRUNE_INTERVAL == 0:
        db.execute("DELETE FROM moves WHERE seq <= ?", (seq - JOURNAL_MIN_MOVES,))


def head_of(hash: object, record: object) -> Head:
    """Returns the head of a row; a DamagedHead where the row does not decode."""
    key = cast(NodeHash, hash.hex() if isinstance(hash, bytes) and len(hash) == 32 else "")
    try:
        value = canonical.decode(record.encode()) if isinstance(record, str) else None
    except ValueError:  # not JSON, or not UTF-8
        value = None
    if not key or not isinstance(value, dict):
        return DamagedHead(key, row=(_stored_bytes(hash), _stored_bytes(record)))
    head = Head(key, value)
    head.__dict__["text"] = record  # as stored, to be compared by a swap
    return head


def _stored_bytes(value: object) -> bytes | None:
    """Returns what SQLite's CAST(… AS BLOB) makes of a value."""
    if value is None or isinstance(value, bytes):
        return value
    return str(value).encode("utf-8", "surrogateescape")


def _head_row(head: Head) -> tuple[Any, Any]:
    """Returns (hash, record) as they are stored. Raises Invalid."""
    if isinstance(head, DamagedHead):
        return head.row
    size = len(head.text) if head.text.isascii() else len(head.text.encode())
    if size > MAX_RECORD_BYTES:
        raise Invalid(f"a head's record of {size} bytes is over {MAX_RECORD_BYTES}")
    return key_of(head.hash), head.text
