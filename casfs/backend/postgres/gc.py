"""Mark-sweep over a shared store. Rows decide; object storage is never listed.

A run holds a lease, the row of `collecting`: every transaction of it that deletes checks that the
token is its own still, so one that was taken over after TTL_S without a sign of life does no harm.
It begins with GUARD held alone: no publication is in flight as `last` is read and the write barrier
set, so what arrives later has a larger id and is left alone, and what publications touch from then
on is in `young`. Before each deletion the closure of those is marked; the deletion itself holds
GUARD alone again, sees that nothing was touched since, and is short. Nodes go before what they
refer to: the newest first, then plain bytes. `marks` is lost where the server crashes, with its row
of id 0, without which nothing is deleted.

A pack whose last member is deleted becomes a stray by the same transaction. Strays are deleted
after PACK_GRACE_S: until then a writer may publish what it has uploaded, and machines can read
whose cache has that place. First they are doomed (`since` is -infinity), so that no publication
takes them any more; then the object is deleted, then the row.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterator
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
WAIT = "SET LOCAL lock_timeout = '5s'"  # while publications wait too
ALONE = f"SELECT pg_advisory_xact_lock({GUARD})"
BEGIN = """
INSERT INTO casfs.collecting AS c (token, running, last, expires, owner)
SELECT 1, true, coalesce(max(id), 0), clock_timestamp() + make_interval(secs => %s), %s
FROM casfs.blobs
ON CONFLICT (one) DO UPDATE SET token = c.token + 1, running = true, last = excluded.last,
  expires = excluded.expires, owner = excluded.owner
WHERE NOT c.running OR c.expires < clock_timestamp() OR c.owner = excluded.owner
RETURNING token, last
"""
START = "INSERT INTO casfs.marks (token, id, batch) VALUES (%s, 0, 0)"
RENEW = """
UPDATE casfs.collecting SET expires = clock_timestamp() + make_interval(secs => %s)
WHERE running AND token = %s
AND EXISTS (SELECT FROM casfs.marks m WHERE m.token = collecting.token AND m.id = 0) RETURNING token
"""
RUNNING = """
SELECT coalesce(m.host || ':' || m.root, c.owner)
FROM casfs.collecting c LEFT JOIN casfs.machines m ON m.id = split_part(c.owner, '/', 1)
"""
END = "UPDATE casfs.collecting SET running = false WHERE running AND token = %s RETURNING token"
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
SETTLE = f"DELETE FROM casfs.young y WHERE {MARKED.format('y')}"
YOUNG = f"""
SELECT b.hash FROM casfs.young y JOIN casfs.blobs b ON b.id = y.id
WHERE NOT {MARKED.format("y")} LIMIT {PAGE_ROWS}
"""
PAGE = f"""
WITH page AS MATERIALIZED (
  SELECT id, hash, type, touched FROM casfs.blobs WHERE id < %s ORDER BY id DESC LIMIT {PAGE_ROWS}
)
SELECT min(id), array_agg({{}}) FILTER (WHERE {{}}) FROM page
"""
DOOMED = f"touched < %s AND NOT {MARKED.format('page')}"
ROWS = "hash, size, type, pack"
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
        self._owner = f"{machine}/{secrets.token_hex(8)}"
        self._token, self._last = pool.retrying(self._begin)
        self._renewed = time.monotonic()
        self._batch = 0
        self.marked = Total()

    def _begin(self, db: Connection) -> tuple[int, int]:
        with db.transaction():
            fetch(db, WAIT)
            fetch(db, ALONE)
            rows = fetch(db, BEGIN, [TTL_S, self._owner])
            if not rows:
                ((where,),) = fetch(db, RUNNING)
                raise Conflict(f"another gc is running on this store, on {where}; wait for it")
            fetch(db, "TRUNCATE casfs.young, casfs.marks")
            fetch(db, START, [rows[0][0]])
        return rows[0]

    def __enter__(self) -> SharedMarkSweep:
        return self

    def __exit__(self, *_: object) -> None:
        def end(db: Connection) -> None:
            with db.transaction():
                if fetch(db, END, [self._token]):
                    fetch(db, "TRUNCATE casfs.marks")

        self._pool.retrying(end)

    def _hold(self, db: Connection) -> None:
        """Renews the lease. Raises Conflict where it was lost."""
        if not fetch(db, RENEW, [TTL_S, self._token]):
            raise Conflict(
                "this gc has stopped: another one took over, or the database was restarted;"
                " run it again"
            )
        self._renewed = time.monotonic()

    def _keep_alive(self) -> None:
        interruption.check()
        if time.monotonic() > self._renewed + TTL_S / 4:
            self._pool.retrying(self._hold)

    # -- marks ----------------------------------------------------------------------------

    def reset(self) -> None:
        """What was marked before has a token of its own, so a run begins anew."""
        self._token, self._last = self._pool.retrying(self._begin)
        self.marked = Total()

    def mark(self, hashes: Collection[str]) -> list[str]:
        self._keep_alive()
        self._batch += 1  # run twice, since its answer was lost, a batch returns the same
        keys = [key_of(hash) for hash in hashes]
        batch_key = [self._token, self._batch]
        nodes = list[str]()
        rows = self._pool.run(MARK, [keys, self._last, *batch_key, *batch_key])
        for key, size, is_node, is_packed in rows:
            self.marked.blobs += 1
            self.marked.bytes += size
            self.marked.files += is_packed
            if is_node:
                nodes.append(key.hex())
        return nodes

    def unmarked_files(self, before: int) -> Iterator[tuple[str, int]]:
        return iter(())

    def recent(self, since: int) -> Iterator[list[str]]:
        for keys in self._pages("hash", "touched >= %s", since):
            yield [key.hex() for key in keys]

    def _pages(self, column: str, condition: str, *values: object) -> Iterator[list[Any]]:
        """Yields a column of the rows from before the run, newest first; every statement is
        short."""
        end = self._last + 1
        while True:
            self._keep_alive()
            ((end, page),) = self._pool.run(PAGE.format(column, condition), [end, *values])
            if end is None:
                return
            if page:
                yield page

    # -- deletion -------------------------------------------------------------------------

    def sweep(
        self, before: int, follow: Callable[[list[str]], None], *, dry_run: bool
    ) -> Iterator[tuple[str, BlobInfo]]:
        for kind in ("NOT NULL", "NULL"):  # nodes, then plain bytes
            for ids in self._pages("id", f"type IS {kind} AND {DOOMED}", before, self._token):
                if dry_run:
                    query = f"SELECT {ROWS} FROM casfs.blobs WHERE id = ANY(%s::bigint[])"
                    rows = self._pool.run(query, [ids])
                else:
                    rows = self._delete(ids, before, follow)
                for key, size, type, _ in rows:
                    yield key.hex(), BlobInfo(size, None if type is None else type_of(type))
        if not dry_run:
            self._remove_strays(max(PACK_GRACE_S, int(time.time()) - before))

    def _delete(
        self, ids: list[int], before: int, follow: Callable[[list[str]], None]
    ) -> list[Row]:
        while True:
            while young := self._pool.retrying(self._young):
                follow([key.hex() for (key,) in young])
            done = self._pool.retrying(partial(self._delete_once, ids, before))
            if done is not None:
                return done

    def _young(self, db: Connection) -> list[Row]:
        """Returns what was touched during the run and is not marked yet."""
        with db.transaction():
            self._hold(db)
            fetch(db, SETTLE, [self._token])
            return fetch(db, YOUNG, [self._token])

    def _delete_once(self, ids: list[int], before: int, db: Connection) -> list[Row] | None:
        """Returns the rows it has deleted; None where something was touched meanwhile."""
        with db.transaction():
            fetch(db, WAIT)
            fetch(db, ALONE)
            self._hold(db)
            if fetch(db, YOUNG, [self._token]):
                return None
            rows = fetch(db, DELETE, [ids, before, self._token])
            if packs := {row[3] for row in rows if row[3] is not None}:
                fetch(db, EMPTY, [[*packs]])
            return rows

    def _remove_strays(self, grace: int) -> None:
        storage = self._connect()
        while rows := self._pool.run(DOOM, [grace]):
            self._keep_alive()
            calls = (partial(storage.delete, f"packs/{name.hex()}.pack") for (name,) in rows)
            for _ in parallel(calls):
                pass
            self._pool.run(FORGET, [[name for (name,) in rows]])
