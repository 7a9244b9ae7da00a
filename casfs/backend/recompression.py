"""Trains dictionaries on the nodes of a store, and compresses the rows that are there.

A dictionary is published as a blob with its head first, then named in `dictionaries`; from then
on writers use it. A row is replaced only in the transaction that has decompressed the new form and
verified its hash, and only if it is still the row that was read, so a kill at any instant leaves
each node readable, and the next run goes on: rows up to the position in `recompressed` are done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from casfs.backend.group_commit import GroupCommit
from casfs.backend.objects import Objects
from casfs.backend.protocols import Head, HeadName, Staged, Swap
from casfs.backend.row_compression import MIN_BYTES, RowCompression
from casfs.backend.sqlite_connection import Connection, Database
from casfs.digest import Digest, NodeHash, hash_bytes
from casfs.errors import CasfsError, Corrupt
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
SELECT b.type, count(*), coalesce(max(d.nodes), 0) FROM blobs b
LEFT JOIN dictionaries d ON d.type = b.type
WHERE b.type IS NOT NULL AND b.data IS NOT NULL GROUP BY b.type
"""
SAMPLES = f"""
SELECT data FROM blobs WHERE type = ? AND size BETWEEN 32 AND {MAX_SAMPLE_BYTES}
AND data IS NOT NULL ORDER BY id DESC LIMIT {MAX_SAMPLES}
"""
PENDING = """
SELECT count(*) FROM blobs WHERE type IS NOT NULL
AND id > (SELECT coalesce(max(position), 0) FROM recompressed)
"""
ROWS = f"""
SELECT id, hash, type, data FROM blobs
WHERE id > ? AND type IS NOT NULL AND data IS NOT NULL ORDER BY id LIMIT {BATCH_ROWS}
"""
Publish = Callable[[list[Staged], list[Swap]], object]


@dataclass(slots=True)
class Recompressed:
    """Rows read, and the bytes that they took before and take now."""

    rows: int = 0
    before: int = 0
    after: int = 0


class Recompression:
    def __init__(
        self,
        db: Database,
        commits: GroupCommit,
        rows: RowCompression,
        objects: Objects,
        publish: Publish,
    ) -> None:
        self._db = db
        self._commits = commits
        self._rows = rows
        self._objects = objects
        self._publish = publish

    def train(self) -> int:
        """Trains a dictionary for each type that has enough nodes, and many more than at the last
        time. Returns how many were published."""
        with self._db.read() as db:
            counts = db.execute(COUNTS).fetchall()
        return sum(
            self._train_type(type, count)
            for type, count, trained in counts
            if count >= max(MIN_NODES, RETRAIN_FACTOR * trained)
        )

    def _train_type(self, type: int, count: int) -> bool:
        with self._db.read() as db:
            rows = db.execute(SAMPLES, (type,)).fetchall()
            (number,) = db.execute("SELECT coalesce(max(id), 0) + 1 FROM dictionaries").fetchone()
        samples = list(self._decoded(data for (data,) in rows))
        checks, training = samples[::8], [one for i, one in enumerate(samples) if i % 8]
        data = zstd.train(training, DICTIONARY_BYTES)
        if data is None or not _gains(data, checks):
            return False
        digest = Digest.of(data)
        name, head = HeadName(f"dictionaries/{number}"), Head(NodeHash(digest.hash))
        # the head's own transaction comes first: a row must never name a blob that gc may delete
        self._publish([self._objects.stage_bytes(digest, data)], [Swap(name, None, head)])
        insert = "INSERT INTO dictionaries (id, type, hash, nodes) VALUES (?, ?, ?, ?)"
        values = (number, type, bytes.fromhex(digest.hash), count)
        self._commits.run(lambda db: db.execute(insert, values))
        self._commits.run(lambda db: db.execute("DELETE FROM recompressed"))
        self._rows.refresh()
        return True

    def pending(self) -> int:
        """Returns the number of node rows that `recompress` would look at."""
        with self._db.read() as db:
            (count,) = db.execute(PENDING).fetchone()
        return int(count)

    def recompress(self, progress: Callable[[int], None] = lambda rows: None) -> Recompressed:
        """Compresses the rows that have arrived since the last run, or all of them after a new
        dictionary. `progress` gets the number of rows so far."""
        done = Recompressed()
        while True:
            with self._db.read() as db:
                row = db.execute("SELECT position FROM recompressed").fetchone()
                batch = db.execute(ROWS, (row[0] if row else 0,)).fetchall()
            if not batch:
                if done.after < done.before * REBUILD_MAX_RATIO:
                    self._db.rebuild()
                return done
            self._commits.run(partial(self._replace, batch, done))
            done.rows += len(batch)
            progress(done.rows)

    def _replace(
        self, batch: list[tuple[int, bytes, int, bytes]], done: Recompressed, db: Connection
    ) -> None:
        for id, key, type, old in batch:
            new = self._encoded(db, key, type, old)
            done.before += len(old)
            done.after += len(new)
            if new is not old:
                db.execute("UPDATE blobs SET data = ? WHERE id = ? AND data IS ?", (new, id, old))
        db.execute(
            "INSERT OR REPLACE INTO recompressed (id, position) VALUES (1, ?)", (batch[-1][0],)
        )

    def _encoded(self, db: Connection, key: bytes, type: int, old: bytes) -> bytes:
        """Returns the new form of a row, verified; the old one where that is shorter or damaged."""
        try:
            data = self._rows.decode(old)
            if len(data) < MIN_BYTES or hash_bytes(data) != key.hex():
                return old
            new = self._rows.encode(db, data, type)
            return new if len(new) < len(old) and self._rows.decode(new) == data else old
        except (CasfsError, TypeError, AttributeError):  # fsck's business
            return old

    def _decoded(self, rows: Iterable[bytes]) -> Iterator[bytes]:
        for row in rows:
            try:
                yield self._rows.decode(row)
            except Corrupt:
                continue


def _gains(dictionary: bytes, samples: list[bytes]) -> bool:
    trained, plain = zstd.Dictionary(dictionary), zstd.Dictionary()
    size = sum(len(trained.compress(one)) for one in samples)
    return size < (1 - MIN_GAIN) * sum(len(plain.compress(one)) for one in samples)
