"""Mark-sweep over the disk backend: mark bits by row id, deletion in short transactions.

Marks cost a bit per row, so a million nodes need 125 KB. Rows that arrive during the run
lie above the bitmap and are never considered. Nodes are deleted before their references:
the newest first, then mapped blobs, then other plain bytes. Write barrier: a row that is
touched during the run (a dedup hit, a new node that refers to it, a head that moves to it)
is recorded in `young` by the writer's own transaction; each deleting transaction first marks
the closure of the recorded rows, so at its commit no live row refers to a deleted one,
wherever a crash ends the run.

A large blob is deleted in two transactions: its row, then, if it still has no row, its
file. `objects/` is thus changed under the write lock only, and a blob that a writer put
again in between is kept. A crash between the two leaves a file without a row, which the
next run removes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from casfs.backend.block_maps import IS_MAPPED, STORED_BYTES, source_keys
from casfs.backend.mapped_rows import MAPPED_AMONG
from casfs.backend.objects import Objects
from casfs.backend.pack_files import PackFiles
from casfs.backend.protocols import BlobInfo, Total
from casfs.backend.sqlite_connection import Connection, Database
from casfs.backend.sqlite_statements import BATCH_ROWS, IS_FILE, is_sound, rows_in, type_of
from casfs.errors import Conflict
from casfs.system.files import os_errors
from casfs.system.locks import lock_file

# Id, hash, size as stored, type's hash, whether it is a file, and whether it is mapped.
Row = tuple[int, bytes, int, bytes | None, int, int]
KINDS = (  # in the order of their deletion; `+`: scanned in the order of ids
    "+b.type IS NOT NULL",
    f"+b.type IS NULL AND {IS_MAPPED}",
    f"+b.type IS NULL AND NOT {IS_MAPPED}",
)


class MarkSweep:
    def __init__(self, db: Database, objects: Objects, packs: PackFiles, lock: Path) -> None:
        """Begins a run. Raises Conflict while another one holds `lock`."""
        self._db = db
        self._objects = objects
        self._packs = packs
        with os_errors(f"cannot lock {lock}"):
            fd = lock_file(lock)
        if fd is None:
            raise Conflict("another gc, or `casfs pack`, is running on this store; wait for it")
        self._lock = fd
        try:
            self._begin()
        except BaseException:
            os.close(self._lock)
            raise
        self.reset()

    def _begin(self) -> None:
        with self._db.write() as db:
            db.execute("DELETE FROM young")
            db.execute("INSERT OR REPLACE INTO collecting (id) VALUES (1)")
            (self._last,) = db.execute("SELECT coalesce(max(id), 0) FROM blobs").fetchone()

    def __enter__(self) -> MarkSweep:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            with self._db.write() as connection:
                connection.execute("DELETE FROM collecting")
                connection.execute("DELETE FROM young")
        finally:
            os.close(self._lock)

    def reset(self) -> None:
        self._bits = bytearray(self._last // 8 + 1)
        self.marked = Total()

    # -- marks ----------------------------------------------------------------------------

    def mark(self, hashes: Collection[str]) -> list[str]:
        keys = [bytes.fromhex(hash) for hash in hashes]
        with self._db.read() as db:
            rows = rows_in(db, f"{SELECT} WHERE b.hash IN", keys)
        marked = [row for row in rows if self._mark_row(row)]
        nodes = [row[1].hex() for row in marked if row[3] is not None]
        mapped = [row[1] for row in marked if row[5]]
        return nodes + (self._mark_sources(mapped) if mapped else [])

    def _mark_sources(self, mapped: list[bytes]) -> list[str]:
        sources: set[str] = set()
        with self._db.read() as db:
            for _, _, data in rows_in(db, MAPPED_AMONG, mapped):
                sources.update(key.hex() for key in source_keys(data))
        return self.mark(sources)

    def _mark_row(self, row: Row) -> bool:
        """Marks a row; returns False where it needs no marking, or is marked."""
        id, _, size, _, is_file, *_ = row
        if id > self._last or self._is_marked(id):
            return False  # a later row is never deleted, and its references are recorded
        self._bits[id >> 3] |= 1 << (id & 7)
        self.marked.blobs += 1
        self.marked.bytes += size if isinstance(size, int) else 0  # as a damaged row is not
        self.marked.files += is_file
        return True

    def _is_marked(self, id: int) -> bool:
        return bool(self._bits[id >> 3] & (1 << (id & 7)))

    def recent(self, since: int) -> Iterator[list[str]]:
        for rows in self._rows("AND b.touched >= ?", since):
            yield [row[1].hex() for row in rows]

    def _rows(self, condition: str, *values: int) -> Iterator[list[Row]]:
        """Yields rows from before the run, newest first, in batches; no read transaction stays
        open."""
        last = self._last + 1
        while True:
            with self._db.read() as db:
                rows: list[Row] = db.execute(
                    f"{SELECT} WHERE b.id < ? {condition} ORDER BY b.id DESC LIMIT {BATCH_ROWS}",
                    (last, *values),
                ).fetchall()
            if not rows:
                return
            yield [row for row in rows if is_sound(row[1], row[2])]
            last = rows[-1][0]

    def unmarked_files(self, before: int) -> Iterator[tuple[str, int]]:
        after = 0
        while True:
            with self._db.read() as db:
                rows = db.execute(OUTSIDE, (after, self._last, before)).fetchall()
            if not rows:
                return
            for after, key, size in rows:
                if is_sound(key, size) and not self._is_marked(after):
                    yield key.hex(), size

    # -- deletion -------------------------------------------------------------------------

    def sweep(
        self, before: int, follow: Callable[[list[str]], None], *, dry_run: bool
    ) -> Iterator[tuple[str, BlobInfo]]:
        for kind in KINDS:
            for rows in self._rows(f"AND b.touched < ? AND {kind}", before):
                doomed = [row for row in rows if not self._is_marked(row[0])]
                if doomed and not dry_run:
                    doomed = self._delete(doomed, before, follow)
                for _, key, size, type, *_ in doomed:
                    yield key.hex(), BlobInfo(size, None if type is None else type_of(type))
        if not dry_run:
            self._remove_strays(before)
            self._db.shrink()

    def _delete(
        self, doomed: list[Row], before: int, follow: Callable[[list[str]], None]
    ) -> list[Row]:
        with self._db.write() as db:
            while touched := self._drain_touched(db):
                follow(touched)
            delete = "DELETE FROM blobs WHERE id = ? AND touched < ?"
            unmarked = [row for row in doomed if not self._is_marked(row[0])]
            gone = [row for row in unmarked if db.execute(delete, (row[0], before)).rowcount]
        remove_files(self._db, self._objects, [row[1].hex() for row in gone if row[4]])
        return gone

    def _drain_touched(self, db: Connection) -> list[str]:
        rows = db.execute(
            "SELECT b.id, b.hash FROM young y CROSS JOIN blobs b ON b.id = y.id"
        ).fetchall()
        db.execute("DELETE FROM young")
        return [key.hex() for id, key in rows if id <= self._last and not self._is_marked(id)]

    def _remove_strays(self, before: int) -> None:
        """Removes files that a crash left without a row."""
        for hashes in self._objects.shards():
            with self._db.read() as db:
                stray = [
                    hash
                    for hash, changed_at in hashes
                    if changed_at < before and not _has_file(db, hash)
                ]
            if stray:
                remove_files(self._db, self._objects, stray)
        for name in list(self._packs.names()):
            with suppress(FileNotFoundError):
                if self._packs.path(name).stat().st_ctime < before:
                    self._packs.remove_stray(name)


def remove_files(db: Database, objects: Objects, hashes: Iterable[str]) -> None:
    """Removes the files of those blobs that have no row, or are in a pack by now."""
    with db.write() as connection:
        for hash in hashes:
            if not _has_file(connection, hash):
                objects.remove(hash)


def _has_file(db: Connection, hash: str) -> bool:
    key = (bytes.fromhex(hash),)
    return bool(db.execute(f"SELECT 1 FROM blobs WHERE hash = ? AND {IS_FILE}", key).fetchone())


SELECT = (
    f"SELECT b.id, b.hash, {STORED_BYTES}, t.hash, {IS_FILE}, {IS_MAPPED}"
    " FROM blobs b LEFT JOIN types t ON t.id = b.type"
)
OUTSIDE = f"""
SELECT id, hash, size FROM blobs WHERE id > ? AND id <= ? AND touched < ? AND type IS NULL
AND ({IS_FILE} OR pack IN (SELECT id FROM packs WHERE kind = 'hot')) ORDER BY id LIMIT {BATCH_ROWS}
"""
