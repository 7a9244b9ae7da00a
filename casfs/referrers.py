"""Reverse references: which nodes refer to a blob, from an index beside the store proper.

    edges.db    numbers(id, hash): blobs of the index; edges(child, parent): their numbers;
                progress: the position in the order of arrival up to which nodes are indexed

The index is derived data in its own file: a put pays nothing, since each question first indexes
the nodes that have arrived since the last one, and deleting the file loses nothing. A number stands
for a hash, so it outlives the blob's row. The reference of a node to its type is not an edge: the
store has an index by type. gc removes what is gone (`prune`), fsck deletes the index (`remove`).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Self

from casfs.backend.derived import find_missing, of_types
from casfs.backend.protocols import META
from casfs.backend.sqlite_connection import Connection, open_derived, remove_derived
from casfs.errors import CasfsError, Failed
from casfs.nodes import node
from casfs.store import Store

FILE = "edges.db"
SCHEMA = """
CREATE TABLE IF NOT EXISTS numbers (id INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS edges (
  child INTEGER, parent INTEGER, PRIMARY KEY (child, parent)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS progress (id INTEGER PRIMARY KEY, position INTEGER NOT NULL);
"""
INDEX_BATCH_BLOBS = 4000  # a transaction
BATCH_HASHES = 500  # a statement
PAGE_PARENTS = 1000  # a query
PARENTS = """
SELECT p.id, p.hash FROM numbers c JOIN edges e ON e.child = c.id JOIN numbers p ON p.id = e.parent
WHERE c.hash = ? AND e.parent > ? ORDER BY e.parent LIMIT ?
"""
DELETE_STALE = "DELETE FROM edges WHERE parent NOT IN (SELECT id FROM numbers)"


class Referrers:
    """The index of a store. That of a store in memory is a temporary file."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._temporary = None if store.root else tempfile.mkdtemp()
        self._path = Path(self._temporary or store.root or ".") / FILE
        self._db = open_derived(self._path, SCHEMA)
        self._inode = self._path.stat().st_ino

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
        key, last, more = bytes.fromhex(hash), 0, True
        while more:
            with self._db.read() as db:
                rows = db.execute(PARENTS, (key, last, PAGE_PARENTS)).fetchall()
            parents = [parent.hex() for _, parent in rows]
            infos = self._store.blobs.info(parents)
            yield from (one for one in parents if one in infos and infos[one].type != hash)
            more = len(rows) == PAGE_PARENTS
            last = rows[-1][0] if more else 0
        for node_of_type, _ in of_types(self._store.blobs, [hash]):
            yield node_of_type

    def walk_up(self, hash: str) -> Iterator[str]:
        """Yields the nodes from which a blob is reachable, each once, the nearest first."""
        seen, level = {hash}, [hash]
        while level:
            above: list[str] = []
            for one in level:
                for parent in self.of(one):
                    if parent not in seen:
                        seen.add(parent)
                        above.append(parent)
                        yield parent
            level = above

    # -- the index ------------------------------------------------------------------------

    def is_current(self) -> bool:
        """Returns False if the file was deleted, as by fsck, since it was opened."""
        try:
            return self._path.stat().st_ino == self._inode
        except FileNotFoundError:
            return False

    def catch_up(self, wanted: Callable[[], bool] = lambda: True) -> int:
        """Indexes the nodes that have arrived since the last time, as long as that is `wanted`;
        returns their number."""
        done, more = 0, True
        while more and wanted():
            count, more = self._index_batch()
            done += count
        return done

    def _index_batch(self) -> tuple[int, bool]:
        with self._db.read() as db:
            row = db.execute("SELECT position FROM progress").fetchone()
        begin = row[0] if row else 0
        arrived = list(islice(self._store.blobs.iterate(begin), INDEX_BATCH_BLOBS))
        if not arrived:
            return 0, False
        position, parents = arrived[-1][0], [hash for _, hash, info in arrived if info.type]
        edges = list(self._edges(parents))
        with self._db.write() as db:
            row = db.execute("SELECT position FROM progress").fetchone()
            if (row[0] if row else 0) == begin:  # else another process did the same
                self._add(db, edges)
                db.execute("INSERT OR REPLACE INTO progress VALUES (1, ?)", (position,))
        return len(parents), len(arrived) == INDEX_BATCH_BLOBS

    def _edges(self, parents: list[str]) -> Iterator[tuple[str, set[str]]]:
        """Yields the nodes with the hashes that they refer to."""
        try:
            contents = list(self._store.blobs.get_many(parents))
        except CasfsError:  # one of them is damaged, or was deleted by gc meanwhile
            contents = [None] * len(parents)
        for parent, data in zip(parents, contents, strict=True):
            try:
                type_hash, payload = node.decode(parent, data or self._store.get(parent))
                if type_hash != META:
                    _, schema = self._store.registry.compiled(type_hash)
                    yield parent, {ref.hash for ref in schema.refs(payload)}
            except CasfsError:
                continue

    def _add(self, db: Connection, edges: list[tuple[str, set[str]]]) -> None:
        hashes = {one for parent, children in edges for one in (parent, *children)}
        numbers = self._number(db, [bytes.fromhex(one) for one in hashes])
        rows = sorted(
            (numbers[bytes.fromhex(child)], numbers[bytes.fromhex(parent)])
            for parent, children in edges
            for child in children
        )
        db.executemany("INSERT OR IGNORE INTO edges VALUES (?, ?)", rows)

    def _number(self, db: Connection, keys: list[bytes]) -> dict[bytes, int]:
        """Returns the number of each hash; gives new ones."""
        keys = sorted(keys)
        db.executemany("INSERT OR IGNORE INTO numbers (hash) VALUES (?)", [(key,) for key in keys])
        found: dict[bytes, int] = {}
        for start in range(0, len(keys), BATCH_HASHES):
            part = keys[start : start + BATCH_HASHES]
            marks = ",".join("?" * len(part))
            rows = db.execute(f"SELECT hash, id FROM numbers WHERE hash IN ({marks})", part)
            found.update(rows.fetchall())
        return found

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
                gone = set(find_missing(self._store.blobs, [key.hex() for _, key in rows]))
                ids = [(id,) for id, key in rows if key.hex() in gone]
                db.executemany("DELETE FROM edges WHERE child = ?", ids)
                db.executemany("DELETE FROM numbers WHERE id = ?", ids)
                removed += len(ids)
                if not rows:
                    if removed:
                        db.execute(DELETE_STALE)
                    return removed
            last = rows[-1][0]


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
    path = None if store.root is None else store.root / FILE
    return path if path is not None and path.exists() else None
