"""Reverse references: which nodes refer to a blob, from an index beside the store proper.

    edges.db    numbers(id, hash): blobs of the index; edges(child, parent): their numbers;
                progress: the position in the order of arrival up to which nodes are indexed, and
                the last number that was given: none is given twice

The index is derived data in its own file: a put pays nothing, since each question first indexes
the nodes that have arrived since the last one, and deleting the file loses nothing. A number stands
for a hash, so it outlives the blob's row. The reference of a node to its type is not an edge: the
store has an index by type. gc removes what is gone (`prune`), fsck deletes the index (`remove`).
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Self, TypeAlias

from casfs.backend.derived import find_missing, of_types
from casfs.backend.protocols import META
from casfs.backend.sqlite_connection import Connection, open_derived, remove_derived
from casfs.errors import CasfsError, Failed
from casfs.store import local_trees
from casfs.store.store import Store

FILE = "edges.db"
SCHEMA = """
CREATE TABLE IF NOT EXISTS numbers (id INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS edges (
  child INTEGER, parent INTEGER, PRIMARY KEY (child, parent)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS progress (id INTEGER PRIMARY KEY, position INTEGER NOT NULL);
"""
Batch: TypeAlias = list[tuple[bytes, set[bytes]]]  # nodes, with what they refer to

READ_BLOBS = 2000  # at once
BATCH_EDGES = 200_000  # a transaction: each rewrites most pages of `edges`
BATCH_NODES = 50_000
BATCH_HASHES = 500  # a statement
POSITION = 1  # rows of `progress`
LAST_NUMBER = 2
PAGE_PARENTS = 1000  # a query
PARENTS = """
SELECT p.id, p.hash FROM numbers c JOIN edges e ON e.child = c.id JOIN numbers p ON p.id = e.parent
WHERE c.hash = ? AND e.parent > ? ORDER BY e.parent LIMIT ?
"""
ADD_EDGES = """
INSERT OR IGNORE INTO edges SELECT value >> 32, value & 4294967295 FROM json_each(?)
"""
DELETE_STALE = "DELETE FROM edges WHERE parent NOT IN (SELECT id FROM numbers)"


class Referrers:
    """The index of a store. That of a store in memory is a temporary file. It is of all nodes; what
    a view of the store hides is in no answer."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._temporary = None if store.root else tempfile.mkdtemp()
        self._path = Path(self._temporary or store.root or ".") / FILE
        self._db = open_derived(self._path, SCHEMA)
        self._inode = self._db.path.stat().st_ino

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()
        if self._temporary is not None:
            shutil.rmtree(self._temporary)

    # -- questions ------------------------------------------------------------------------

    def of(self, hash: str) -> list[str]:
        """Returns the stored nodes that refer to a blob, sorted. For a schema node these are all
        nodes of its type as well."""
        self.catch_up()
        return sorted(self.iterate(hash))

    def iterate(self, hash: str) -> Iterator[str]:
        """Yields the same as of the last `catch_up`, in the order of their numbers, a page at a
        time; between two pages no transaction is open."""
        of_type = (node_hash for node_hash, _ in of_types(self._store.blobs, [hash]))
        first = next(of_type, None)  # None: no schema
        key = bytes.fromhex(hash)
        last = 0
        has_more = True
        while has_more:
            with self._db.read() as db:
                rows = db.execute(PARENTS, (key, last, PAGE_PARENTS)).fetchall()
            parents = [parent.hex() for _, parent in rows]
            skipped = set(find_missing(self._store.blobs, parents))
            if first is not None:
                infos = self._store.blobs.info(parents)
                skipped.update(
                    parent_hash for parent_hash, info in infos.items() if info.type == hash
                )
            yield from (parent_hash for parent_hash in parents if parent_hash not in skipped)
            has_more = len(rows) == PAGE_PARENTS
            last = rows[-1][0] if has_more else 0
        if first is not None:
            yield first
            yield from of_type

    def walk_up(self, hash: str) -> Iterator[str]:
        """Yields the nodes from which a blob is reachable, or whose local tree has it, each once,
        the nearest first."""
        return self.walker()(hash)

    def walker(self) -> Callable[[str], Iterator[str]]:
        """Returns a `walk_up` for many blobs, of the store as it is now: what refers to a node is
        read once."""
        self.catch_up()
        owners = local_trees.owners(self._store)

        @cache
        def parents(child: str) -> list[str]:
            return [*sorted(self.iterate(child)), *owners.get(child, ())]

        def walk_up(hash: str) -> Iterator[str]:
            seen = {hash}
            level = [hash]
            while level:
                above: list[str] = []
                for parent in chain.from_iterable(map(parents, level)):
                    if parent not in seen:
                        seen.add(parent)
                        above.append(parent)
                        yield parent
                level = above

        return walk_up

    # -- the index ------------------------------------------------------------------------

    def is_current(self) -> bool:
        """Returns False if the file was deleted, as by fsck, since it was opened."""
        try:
            return self._db.path.stat().st_ino == self._inode
        except FileNotFoundError:
            return False

    def catch_up(self, wanted: Callable[[], bool] = lambda: True) -> int:
        """Indexes the nodes that have arrived since the last time, as long as that is `wanted`;
        returns their number."""
        done = 0
        with self._db.read() as db:
            position = _progress(db, POSITION)
        with ThreadPoolExecutor(1) as writer:  # SQLite writes a batch while the next one is read
            written: Future[int] | None = None
            while True:
                batch, end = self._read_batch(position, wanted)
                if written is not None and written.result() != position:  # so did another process
                    position = written.result()
                    written = None
                elif end == position:
                    return done
                else:
                    written = writer.submit(self._write_batch, position, end, batch)
                    position = end
                    done += len(batch)

    def _read_batch(self, begin: int, wanted: Callable[[], bool]) -> tuple[Batch, int]:
        """Returns nodes with the hashes that they refer to, and the position behind them."""
        arrivals = self._store.whole.blobs.iterate(begin)
        batch: Batch = []
        position = begin
        edges = 0
        while edges < BATCH_EDGES and len(batch) < BATCH_NODES and wanted():
            arrived = list(islice(arrivals, READ_BLOBS))
            for parent, children in self._edges([hash for _, hash, info in arrived if info.type]):
                batch.append((bytes.fromhex(parent), children))
                edges += len(children)
            position = arrived[-1][0] if arrived else position
            if len(arrived) < READ_BLOBS:
                break
        return batch, position

    def _edges(self, parents: list[str]) -> Iterator[tuple[str, set[bytes]]]:
        for node in self._store.whole.readable_nodes(parents):
            if node.type_hash != META:
                with suppress(CasfsError):
                    _, schema = self._store.registry.compiled(node.type_hash)
                    refs = schema.refs(node.payload)
                    yield node.hash, {bytes.fromhex(ref.hash) for ref in refs}

    def _write_batch(self, begin: int, end: int, batch: Batch) -> int:
        """Returns the position that the index has reached: not `end` if another process has moved
        it from `begin`."""
        with self._db.write() as db:
            reached = _progress(db, POSITION)
            if reached != begin:
                return reached
            _add(db, batch)
            _set_progress(db, POSITION, end)
        return end

    # -- maintenance ----------------------------------------------------------------------

    def prune(self) -> int:
        """Removes blobs that are not stored any more; returns their number."""
        removed = last = 0
        while True:
            # looked up under the index's write lock, or a blob that is put and indexed again
            # meanwhile would lose its edges
            with self._db.write() as db:
                rows = db.execute(
                    f"SELECT id, hash FROM numbers WHERE id > ? ORDER BY id LIMIT {BATCH_HASHES}",
                    (last,),
                ).fetchall()
                gone = set(find_missing(self._store.whole.blobs, [key.hex() for _, key in rows]))
                ids = [(id,) for id, key in rows if key.hex() in gone]
                db.executemany("DELETE FROM edges WHERE child = ?", ids)
                db.executemany("DELETE FROM numbers WHERE id = ?", ids)
                removed += len(ids)
                if not rows:
                    if removed:
                        db.execute(DELETE_STALE)
                    return removed
            last = rows[-1][0]


def _progress(db: Connection, row: int) -> int:
    position_row = db.execute("SELECT position FROM progress WHERE id = ?", (row,)).fetchone()
    return position_row[0] if position_row else 0


def _set_progress(db: Connection, row: int, value: int) -> None:
    db.execute("INSERT OR REPLACE INTO progress VALUES (?, ?)", (row, value))


def _add(db: Connection, batch: Batch) -> None:
    """Adds nodes with their references to the index."""
    keys = {parent for parent, _ in batch}.union(*(children for _, children in batch))
    numbers = _number(db, keys)
    rows: list[int] = []
    for parent, children in batch:
        number = numbers[parent]
        rows.extend([numbers[child] << 32 | number for child in children])
    rows.sort()
    db.execute(ADD_EDGES, (json.dumps(rows),))


def _number(db: Connection, keys: set[bytes]) -> dict[bytes, int]:
    """Returns the number of each hash; gives new ones."""
    numbers: dict[bytes, int] = {}
    ordered = sorted(keys)
    for start in range(0, len(ordered), BATCH_HASHES):
        part = ordered[start : start + BATCH_HASHES]
        marks = ",".join("?" * len(part))
        rows = db.execute(f"SELECT hash, id FROM numbers WHERE hash IN ({marks})", part)
        numbers.update(rows.fetchall())
    (highest,) = db.execute("SELECT coalesce(max(id), 0) FROM numbers").fetchone()
    last = max(highest, _progress(db, LAST_NUMBER))
    new = {key: number for number, key in enumerate(sorted(keys - numbers.keys()), last + 1)}
    db.executemany("INSERT INTO numbers (hash, id) VALUES (?, ?)", new.items())
    _set_progress(db, LAST_NUMBER, last + len(new))
    numbers.update(new)
    return numbers


def prune(store: Store) -> None:
    """Removes what gc deleted from a store's index; the index itself where there is no room."""
    if (path := _existing(store)) is not None:
        try:
            with Referrers(store) as index:
                index.prune()
        except Failed:
            remove_derived(path)


def remove(store: Store) -> None:
    """Deletes a store's index; the next question makes it anew."""
    if (path := _existing(store)) is not None:
        remove_derived(path)


def _existing(store: Store) -> Path | None:
    path = store.root / FILE
    return path if path.exists() else None
