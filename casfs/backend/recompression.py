"""Trains dictionaries on the nodes of a store, and compresses the rows that are there.

A dictionary is published with its head in one transaction; from then on writers use it. A row is
replaced only in the transaction that has decompressed the new form and verified its hash, so a kill
at any instant leaves each node readable, and the next run goes on: rows up to the position in
`recompressed` are done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from casfs.backend.disk_blobs import DiskBlobs
from casfs.backend.disk_heads import DiskHeads
from casfs.backend.protocols import Head, HeadName, Purge, Staged, Swap
from casfs.backend.purge_marks import IS_PURGED
from casfs.backend.row_compression import (
    DICTIONARIES,
    HEADER_BYTES,
    MAGIC,
    RETIRED,
    head_name,
)
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
AND size BETWEEN 32 AND {MAX_SAMPLE_BYTES} AND data IS NOT NULL AND NOT {IS_PURGED}
ORDER BY id DESC LIMIT {MAX_SAMPLES}
"""
POSITION = "SELECT coalesce(max(position), 0) FROM recompressed"
ROWS = f"""
SELECT b.id, b.hash, t.hash, b.data FROM blobs b JOIN types t ON t.id = b.type
WHERE b.id > ? AND b.data IS NOT NULL ORDER BY b.id LIMIT {BATCH_ROWS}
"""
COMPRESSED_WITH = f"""
SELECT b.id, b.hash, t.hash, b.data FROM blobs b JOIN types t ON t.id = b.type
WHERE b.id > ? AND substr(b.data, 1, {HEADER_BYTES}) = ? ORDER BY b.id LIMIT {BATCH_ROWS}
"""
ERASED = "erased"  # key of the record of a retired dictionary that is not there any more
REPLACE = "UPDATE blobs SET data = ? WHERE id = ? AND data IS ?"
Publish = Callable[[list[Staged], list[Swap]], object]


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
        checks = samples[::8]
        training = [sample for i, sample in enumerate(samples) if i % 8]
        data = zstd.train(training, DICTIONARY_BYTES)
        if data is None or not _gains(data, checks):
            return False
        with self._db.write() as db:  # first: a kill in between costs another look at all rows
            db.execute("DELETE FROM recompressed")
        digest = Digest.of(data)
        head = Head(NodeHash(digest.hash), {"type": type, "nodes": count})
        numbers = (_number(name) for name, _ in self._heads.list(DICTIONARIES))
        name = head_name(max(numbers, default=0) + 1)
        try:
            self._publish([self._blobs.stage_bytes(digest, data)], [Swap(name, old=None, new=head)])
        except Conflict:  # another process trained one
            return False
        self._blobs.rows.refresh()
        return True

    def recompress(self) -> None:
        """Compresses the rows that have arrived since the last run, or all of them after a new
        dictionary."""
        before = 0  # bytes
        after = 0
        while True:
            with self._db.read() as db:
                batch = db.execute(ROWS, db.execute(POSITION).fetchone()).fetchall()
            if not batch:
                break
            with self._db.write() as db:
                after += self._replace(db, batch)
            before += sum(len(old) for _, _, _, old in batch)
        if after < before * REBUILD_MAX_RATIO:
            with suppress(Failed):  # it needs room for a second file
                self._db.rebuild()

    def _replace(self, db: Connection, batch: list[tuple[int, bytes, bytes, bytes]]) -> int:
        """Returns the bytes that the rows take now."""
        self._blobs.rows.confirm(db)
        size = 0
        for id, key, type, old in batch:
            new = self._encoded(key, type, old)
            size += len(new)
            if new is not old:
                db.execute(REPLACE, (new, id, old))
        db.execute(
            "INSERT OR REPLACE INTO recompressed (id, position) VALUES (1, ?)", (batch[-1][0],)
        )
        return size

    def retire(self, is_found: Callable[[bytes], bool]) -> int:
        """Takes those dictionaries out of use of whose bytes that is true, and those that a killed
        run has left retired; writes their rows anew, and erases them. Returns how many. Their heads
        stay, so that no number is given twice."""
        count = 0
        for name, head in list(self._heads.list(DICTIONARIES)):
            if head.record.get(ERASED):
                continue
            if not head.record.get(RETIRED):
                if not is_found(self._blobs.get(head.hash).data):
                    continue
                retired = Head(head.hash, {**head.record, RETIRED: True})
                self._publish([], [Swap(name, head, retired)])
                head = retired
            self._blobs.rows.refresh()
            self._rewrite(name)
            erased = Head(head.hash, {**head.record, ERASED: True})
            self._blobs.purge([Purge(head.hash)], [Swap(name, head, erased)])
            self._blobs.unpurge(head.hash)  # a dictionary's content may be stored again
            count += 1
        return count

    def _rewrite(self, dictionary: HeadName) -> None:
        """Writes the rows anew that are compressed with a retired dictionary."""
        header = MAGIC + _number(dictionary).to_bytes(HEADER_BYTES - 1, "big")
        last = 0
        while True:
            with self._db.read() as db:
                rows = db.execute(COMPRESSED_WITH, (last, header)).fetchall()
            if not rows:
                return
            last = rows[-1][0]
            with self._db.write(erasing=True) as db:
                self._blobs.rows.confirm(db)
                for id, key, type, old in rows:
                    db.execute(REPLACE, (self._encoded(key, type, old, longer=True), id, old))

    def _encoded(self, key: bytes, type: bytes, old: bytes, *, longer: bool = False) -> bytes:
        """Returns the new form of a row, verified; the old one where the row is damaged, and where
        the new one would be `longer` without need."""
        rows = self._blobs.rows
        try:
            data = rows.decode(old)
            type_hash = type_of(type)
            if type_hash is None or hash_bytes(data) != key.hex():
                return old
            new = rows.encode(data, type_hash)
            return new if (longer or len(new) < len(old)) and rows.decode(new) == data else old
        except (CasfsError, TypeError, AttributeError):  # fsck's business
            return old

    def _decoded(self, rows: Iterable[bytes]) -> Iterator[bytes]:
        for row in rows:
            try:
                yield self._blobs.rows.decode(row)
            except Corrupt:
                continue


def _number(dictionary: HeadName) -> int:
    return int(dictionary.removeprefix(DICTIONARIES))


def _gains(dictionary: bytes, samples: list[bytes]) -> bool:
    trained = zstd.Dictionary(dictionary)
    plain = zstd.Dictionary()
    size = sum(len(trained.compress(sample)) for sample in samples)
    return size < (1 - MIN_GAIN) * sum(len(plain.compress(sample)) for sample in samples)
