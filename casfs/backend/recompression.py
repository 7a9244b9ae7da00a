"""Trains dictionaries on the nodes of a store, and compresses the rows that are there.

A dictionary is published with its head in one transaction; from then on writers use it. A row is
replaced only in the transaction that has decompressed the new form and verified its hash, so a kill
at any instant leaves each node readable, and the next run goes on: rows up to the position in
`recompressed` are done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from casfs.backend.disk_blobs import DiskBlobs
from casfs.backend.disk_heads import DiskHeads
from casfs.backend.protocols import Head, Staged, Swap
from casfs.backend.row_compression import DICTIONARIES, head_name, newest
from casfs.backend.sqlite_connection import Connection, Database
from casfs.backend.sqlite_statements import type_key, type_of
from casfs.digest import Digest, NodeHash, hash_bytes
from casfs.errors import CasfsError, Conflict, Corrupt, Failed
from casfs.system import zstd

DICTIONARY_BYTES = 16 << 10
MIN_NODES = 500  # of a type, before a dictionary is worth its room
RETRAIN_FACTOR = 10  # growth of a type since its dictionary was trained
MAX_SAMPLES = 2000
MAX_SAMPLE_BYTES = 8192  # longer nodes gain nothing by a dictionary
MIN_GAIN = 0.05  # of the compressed size
BATCH_ROWS = 200
REBUILD_MAX_RATIO = 0.9  # bytes after and before, up to which the file is rewritten
COUNTS = """
SELECT t.hash, count(*) FROM blobs b JOIN types t ON t.id = b.type
WHERE b.data IS NOT NULL GROUP BY b.type
"""
SAMPLES = f"""
SELECT data FROM blobs WHERE type = (SELECT id FROM types WHERE hash = ?)
AND size BETWEEN 32 AND {MAX_SAMPLE_BYTES} AND data IS NOT NULL ORDER BY id DESC LIMIT {MAX_SAMPLES}
"""
PENDING = """
SELECT count(*), coalesce(sum(length(data)), 0) FROM blobs WHERE type IS NOT NULL AND id > ?
"""
IS_FORMAT_2 = "SELECT 1 FROM sqlite_schema WHERE name = 'recompressed'"
POSITION = "SELECT coalesce(max(position), 0) FROM recompressed"
ROWS = f"""
SELECT b.id, b.hash, t.hash, b.data FROM blobs b JOIN types t ON t.id = b.type
WHERE b.id > ? AND b.data IS NOT NULL ORDER BY b.id LIMIT {BATCH_ROWS}
"""
Publish = Callable[[list[Staged], list[Swap]], object]


@dataclass(slots=True)
class Recompressed:
    """Rows read, and the bytes that they took before and take now."""

    rows: int = 0
    before: int = 0
    after: int = 0


class Pending(NamedTuple):
    """The node rows that `recompress` would look at, and their bytes."""

    rows: int
    bytes: int


def find_pending(db: Database) -> Pending:
    with db.read() as connection:
        is_format_2 = connection.execute(IS_FORMAT_2).fetchone()
        position = connection.execute(POSITION).fetchone() if is_format_2 else (0,)
        return Pending(*connection.execute(PENDING, position).fetchone())


class Recompression:
    def __init__(self, blobs: DiskBlobs, heads: DiskHeads, db: Database, publish: Publish) -> None:
        self._blobs = blobs
        self._heads = heads
        self._db = db
        self._publish = publish

    def train(self) -> int:
        """Trains a dictionary for each type that has enough nodes, and many more than at the last
        time. Returns how many were published."""
        trained = {
            head.record.get("type"): head.record.get("nodes")
            for _, head in self._heads.list(DICTIONARIES)
        }
        with self._db.read() as db:
            counts = db.execute(COUNTS).fetchall()
        published = 0
        for key, count in counts:
            type = type_of(key)
            before = trained.get(type)
            grown = count >= RETRAIN_FACTOR * (before if isinstance(before, int) else 0)
            if type is not None and count >= MIN_NODES and grown:
                published += self._train_type(type, count)
        return published

    def _train_type(self, type: str, count: int) -> bool:
        with self._db.read() as db:
            rows = db.execute(SAMPLES, (type_key(type),)).fetchall()
        samples = list(self._decoded(data for (data,) in rows))
        checks, training = samples[::8], [one for i, one in enumerate(samples) if i % 8]
        data = zstd.train(training, DICTIONARY_BYTES)
        if data is None or not _gains(data, checks):
            return False
        with self._db.write() as db:  # first: a kill in between costs another look at all rows
            db.execute("DELETE FROM recompressed")
        digest = Digest.of(data)
        head = Head(NodeHash(digest.hash), {"type": type, "nodes": count})
        name = head_name(max(newest(self._heads).values(), default=0) + 1)
        try:
            self._publish([self._blobs.stage_bytes(digest, data)], [Swap(name, None, head)])
        except Conflict:  # another process trained one
            return False
        self._blobs.rows.refresh()
        return True

    def recompress(self, progress: Callable[[int], None] = lambda rows: None) -> Recompressed:
        """Compresses the rows that have arrived since the last run, or all of them after a new
        dictionary. `progress` gets the number of rows so far."""
        done = Recompressed()
        while True:
            with self._db.read() as db:
                batch = db.execute(ROWS, db.execute(POSITION).fetchone()).fetchall()
            if not batch:
                if done.after < done.before * REBUILD_MAX_RATIO:
                    with suppress(Failed):  # it needs room for a second file
                        self._db.rebuild()
                return done
            with self._db.write() as db:
                self._replace(db, batch, done)
            done.rows += len(batch)
            progress(done.rows)

    def _replace(
        self, db: Connection, batch: list[tuple[int, bytes, bytes, bytes]], done: Recompressed
    ) -> None:
        for id, key, type, old in batch:
            new = self._encoded(key, type, old)
            done.before += len(old)
            done.after += len(new)
            if new is not old:
                db.execute("UPDATE blobs SET data = ? WHERE id = ? AND data IS ?", (new, id, old))
        db.execute(
            "INSERT OR REPLACE INTO recompressed (id, position) VALUES (1, ?)", (batch[-1][0],)
        )

    def _encoded(self, key: bytes, type: bytes, old: bytes) -> bytes:
        """Returns the new form of a row, verified; the old one where that is shorter or damaged."""
        rows = self._blobs.rows
        try:
            data, type_hash = rows.decode(old), type_of(type)
            if type_hash is None or hash_bytes(data) != key.hex():
                return old
            new = rows.encode(data, type_hash)
            return new if len(new) < len(old) and rows.decode(new) == data else old
        except (CasfsError, TypeError, AttributeError):  # fsck's business
            return old

    def _decoded(self, rows: Iterable[bytes]) -> Iterator[bytes]:
        for row in rows:
            try:
                yield self._blobs.rows.decode(row)
            except Corrupt:
                continue


def _gains(dictionary: bytes, samples: list[bytes]) -> bool:
    trained, plain = zstd.Dictionary(dictionary), zstd.Dictionary()
    size = sum(len(trained.compress(one)) for one in samples)
    return size < (1 - MIN_GAIN) * sum(len(plain.compress(one)) for one in samples)
