"""Mark-sweep over a shared store. Rows decide; object storage is never listed.

A run goes as follows, while machines publish:
1. It takes the lease, the row of `collecting`, and notes the last id of `blobs` as `last`. It holds
   GUARD alone then, so no publication is in flight: what arrives later has a larger id and is left
   alone, and what publications touch from then on is in `young` (the write barrier).
2. The caller marks what is to stay, a row in `marks` each.
3. The sweep looks at the rows up to `last`: nodes, then plain bytes, the newest first, so a node
   goes before what it refers to.
4. Before each deletion the closure of what is in `young` is marked. The deletion holds GUARD alone
   again, sees that nothing was touched since, and is short.
5. A pack whose last member is deleted becomes a stray by the same transaction. Strays are deleted
   after PACK_GRACE_S: until then a writer may publish what it has uploaded, and machines can read
   whose cache has that place.

The lease is taken over after TTL_S without a sign of life. Every transaction that deletes blobs
checks that the token is its own still, so a run that lost its lease does no harm. `marks` is lost
where the server crashes, with its row of id 0, without which nothing is deleted.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from casfs.backend.postgres.connection import Connection, Pool, Row, fetch
from casfs.backend.postgres.schema import GUARD
from casfs.backend.protocols import BlobInfo, Total
from casfs.backend.sqlite_statements import key_of, type_of
from casfs.errors import Conflict
from casfs.object_storage.interface import ObjectStorage
from casfs.object_storage.retrying import parallel
from casfs.system import interruption

TTL_S = 60
PAGE_ROWS = 1000  # that are looked at, or deleted, at a time
PACK_GRACE_S = 24 * 3600  # at least
Follow = Callable[[list[str]], None]  # marks the closure of blobs
Page = list[Any]  # of one column

# Publications queue behind a transaction that waits for GUARD: so it gives up, and is tried again.
LOCK_TIMEOUT = "SET LOCAL lock_timeout = '5s'"
LOCK_GUARD = f"SELECT pg_advisory_xact_lock({GUARD})"

# The owner itself may begin again: its answer was lost, or it resets its marks.
BEGIN = """
INSERT INTO casfs.collecting AS c (token, running, last, expires, owner)
SELECT 1, true, coalesce(max(id), 0), clock_timestamp() + make_interval(secs => %s), %s
FROM casfs.blobs
ON CONFLICT (one) DO UPDATE SET token = c.token + 1, running = true, last = excluded.last,
  expires = excluded.expires, owner = excluded.owner
WHERE NOT c.running OR c.expires < clock_timestamp() OR c.owner = excluded.owner
RETURNING token, last
"""
RUNNING = """
SELECT coalesce(m.host || ':' || m.root, c.owner)
FROM casfs.collecting c LEFT JOIN casfs.machines m ON m.id = split_part(c.owner, '/', 1)
"""
START = "INSERT INTO casfs.marks (token, id, batch) VALUES (%s, 0, 0)"
RENEW = """
UPDATE casfs.collecting SET expires = clock_timestamp() + make_interval(secs => %s)
WHERE running AND token = %s
AND EXISTS (SELECT FROM casfs.marks m WHERE m.token = collecting.token AND m.id = 0) RETURNING token
"""
# The row stays: tokens count on, so that no two runs have the same.
END = "UPDATE casfs.collecting SET running = false WHERE running AND token = %s RETURNING token"

# What this batch itself has marked counts as new: it is run twice where its answer was lost.
MARK = """
WITH found AS MATERIALIZED (
  SELECT b.id, b.hash, b.size, b.type IS NOT NULL AS is_node, b.pack IS NOT NULL AS is_packed
  FROM casfs.blobs b WHERE b.hash = ANY(%b::bytea[]) AND b.id <= %s AND NOT EXISTS (
    SELECT FROM casfs.marks m WHERE m.token = %s AND m.id = b.id AND m.batch <> %s)
), made AS (
  INSERT INTO casfs.marks (token, id, batch) SELECT %s, id, %s FROM found ON CONFLICT DO NOTHING
)
SELECT hash, size, is_node, is_packed FROM found
"""
MARKED = "EXISTS (SELECT FROM casfs.marks m WHERE m.token = %s AND m.id = {}.id)"

# The limit comes before the condition, so that a page is short even where no row fulfils it.
PAGE = f"""
WITH page AS MATERIALIZED (
  SELECT id, hash, type, touched FROM casfs.blobs WHERE id < %s ORDER BY id DESC LIMIT {PAGE_ROWS}
)
SELECT min(id), array_agg({{}}) FILTER (WHERE {{}}) FROM page
"""
DOOMED = f"touched < %s AND NOT {MARKED.format('page')}"
ROWS = "hash, size, type, pack"
SELECT = f"SELECT {ROWS} FROM casfs.blobs WHERE id = ANY(%s::bigint[])"
SETTLE = f"DELETE FROM casfs.young y WHERE {MARKED.format('y')}"
YOUNG = f"""
SELECT b.hash FROM casfs.young y JOIN casfs.blobs b ON b.id = y.id
WHERE NOT {MARKED.format("y")} LIMIT {PAGE_ROWS}
"""
# All asked again: the page was read without a lock, and rows of it may be touched or marked by now.
DELETE = f"""
DELETE FROM casfs.blobs b WHERE id = ANY(%s::bigint[]) AND touched < %s
AND NOT {MARKED.format("b")} RETURNING {ROWS}
"""
EMPTY = """
WITH gone AS (
  DELETE FROM casfs.packs p WHERE id = ANY(%s::bigint[])
  AND NOT EXISTS (SELECT FROM casfs.blobs b WHERE b.pack = p.id) RETURNING name, size
)
INSERT INTO casfs.strays (name, size) SELECT name, size FROM gone
"""

# -infinity: no publication takes the pack any more. Those of a killed run are doomed once more.
DOOM = f"""
UPDATE casfs.strays SET since = '-infinity' WHERE name IN (
  SELECT name FROM casfs.strays WHERE since < clock_timestamp() - make_interval(secs => %s)
  LIMIT {PAGE_ROWS}
) RETURNING name
"""
FORGET = "DELETE FROM casfs.strays WHERE since = '-infinity' AND name = ANY(%b::bytea[])"


class SharedMarkSweep:
    def __init__(self, pool: Pool, connect: Callable[[], ObjectStorage], machine: str) -> None:
        """Begins a run. Raises Conflict while another one is under way."""
        self._pool = pool
        self._connect = connect
        # Of this run, not of the machine: another process here is another owner.
        self._owner = f"{machine}/{secrets.token_hex(8)}"
        self._batch = 0
        self.reset()
        self._renewed = time.monotonic()

    # -- beginning and end ------------------------------------------------------------------

    def reset(self) -> None:
        """What was marked before has a token of its own, so a run begins anew."""
        self._token, self._last = self._pool.retrying(self._begin)
        self.marked = Total()

    def _begin(self, db: Connection) -> tuple[int, int]:
        """Returns the token of the lease, and the last id."""
        with _alone(db):
            rows = fetch(db, BEGIN, [TTL_S, self._owner])
            if not rows:
                ((where,),) = fetch(db, RUNNING)
                raise Conflict(f"another gc is running on this store, on {where}; wait for it")
            ((token, last),) = rows
            fetch(db, "TRUNCATE casfs.young, casfs.marks")
            fetch(db, START, [token])
        return token, last

    def __enter__(self) -> SharedMarkSweep:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.retrying(self._end)

    def _end(self, db: Connection) -> None:
        with db.transaction():
            # Where another gc has taken the lease over, the marks in the table are its own.
            if fetch(db, END, [self._token]):
                fetch(db, "TRUNCATE casfs.marks")

    # -- marks ----------------------------------------------------------------------------

    def mark(self, hashes: Collection[str]) -> list[str]:
        self._keep_alive()
        self._batch += 1
        keys = [key_of(hash) for hash in hashes]
        batch_key = [self._token, self._batch]
        rows = self._pool.run(MARK, [keys, self._last, *batch_key, *batch_key])
        nodes = list[str]()
        for key, size, is_node, is_packed in rows:
            self.marked.blobs += 1
            self.marked.bytes += size
            self.marked.files += is_packed
            if is_node:
                nodes.append(key.hex())
        return nodes

    def recent(self, since: int) -> Iterator[list[str]]:
        for keys in self._pages("hash", "touched >= %s", since):
            yield [key.hex() for key in keys]

    def unmarked_files(self, before: int) -> Iterator[tuple[str, int]]:
        # Nothing is to be packed: longer blobs of a shared store are in packs from the beginning.
        return iter(())

    # -- deletion -------------------------------------------------------------------------

    def sweep(
        self, before: int, follow: Follow, *, dry_run: bool
    ) -> Iterator[tuple[str, BlobInfo]]:
        for kind in ("NOT NULL", "NULL"):  # nodes, then plain bytes
            condition = f"type IS {kind} AND {DOOMED}"
            for ids in self._pages("id", condition, before, self._token):
                rows = self._rows(ids) if dry_run else self._delete(ids, before, follow)
                for key, size, type, _ in rows:
                    type_hash = None if type is None else type_of(type)
                    yield key.hex(), BlobInfo(size, type_hash)
        if not dry_run:
            # A longer grace of blobs holds for packs as well.
            age_s = int(time.time()) - before
            self._remove_strays(max(PACK_GRACE_S, age_s))

    def _pages(self, column: str, condition: str, *values: object) -> Iterator[Page]:
        """Yields a column of the rows from before the run, newest first; every statement is
        short."""
        query = PAGE.format(column, condition)
        end = self._last + 1
        while True:
            self._keep_alive()
            ((end, page),) = self._pool.run(query, [end, *values])
            if end is None:
                return
            if page:
                yield page

    def _rows(self, ids: list[int]) -> list[Row]:
        return self._pool.run(SELECT, [ids])

    def _delete(self, ids: list[int], before: int, follow: Follow) -> list[Row]:
        """Deletes what is unmarked once all that was touched meanwhile is marked. Returns its
        rows."""
        while True:
            # Without GUARD, since following takes as long as it takes; so more may be touched.
            while touched := self._pool.retrying(self._touched):
                follow([key.hex() for (key,) in touched])
            rows = self._pool.retrying(partial(self._delete_untouched, ids, before))
            if rows is not None:
                return rows

    def _touched(self, db: Connection) -> list[Row]:
        """Returns what was touched during the run and is not marked yet."""
        with db.transaction():
            self._renew(db)
            fetch(db, SETTLE, [self._token])
            return fetch(db, YOUNG, [self._token])

    def _delete_untouched(self, ids: list[int], before: int, db: Connection) -> list[Row] | None:
        """Returns the rows it has deleted; None where something was touched meanwhile."""
        with _alone(db):
            # In this transaction: a run that was taken over must not delete by its old marks.
            self._renew(db)
            if fetch(db, YOUNG, [self._token]):
                return None
            rows = fetch(db, DELETE, [ids, before, self._token])
            packs = {pack for _, _, _, pack in rows if pack is not None}
            if packs:
                fetch(db, EMPTY, [[*packs]])
            return rows

    def _remove_strays(self, grace: int) -> None:
        storage = self._connect()
        while rows := self._pool.run(DOOM, [grace]):
            self._keep_alive()
            names = [name for (name,) in rows]
            keys = [f"packs/{name.hex()}.pack" for name in names]
            for _ in parallel(partial(storage.delete, key) for key in keys):
                pass
            # After the objects: a killed run leaves rows, by which the next one deletes them.
            self._pool.run(FORGET, [names])

    # -- the lease -------------------------------------------------------------------------

    def _keep_alive(self) -> None:
        """Between two statements: renews the lease in time, unless the run was interrupted."""
        interruption.check()
        if time.monotonic() > self._renewed + TTL_S / 4:
            self._pool.retrying(self._renew)

    def _renew(self, db: Connection) -> None:
        """Raises Conflict where the lease was lost, or the marks were."""
        if not fetch(db, RENEW, [TTL_S, self._token]):
            raise Conflict(
                "this gc has stopped: another one took over, or the database was restarted;"
                " run it again"
            )
        self._renewed = time.monotonic()


@contextmanager
def _alone(db: Connection) -> Iterator[None]:
    """A transaction during which no publication is in flight."""
    with db.transaction():
        fetch(db, LOCK_TIMEOUT)
        fetch(db, LOCK_GUARD)
        yield
