"""Leases: which daemon runs a thread of a shared store, and until when by the database's clock.

A daemon that takes a thread also moves its head, in the same transaction, to a record with a new
token. So a former owner, which may have been stopped for an hour, is in Conflict with its next
move, whatever its clock says. A lease that is given up has no row; the token stays in the record.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial

from casfs.backend.capabilities import Lease, Renewal, Wanted
from casfs.backend.postgres import publication
from casfs.backend.postgres.blobs import PostgresBlobs
from casfs.backend.postgres.connection import Connection, Pool, fetch
from casfs.backend.postgres.heads import PostgresHeads
from casfs.backend.postgres.publication import Placed
from casfs.backend.postgres.schema import GUARD
from casfs.backend.protocols import MAX_RECORD_BYTES, Head, HeadName, Publication, Swap
from casfs.backend.sqlite_statements import head_of
from casfs.errors import CasfsError

TTL_S = 10.0
PAGE = 64  # candidates of one query
ROOM = MAX_RECORD_BYTES - 32  # for the token
FREE = f"""
SELECT h.name, h.hash, h.record FROM casfs.heads h
  LEFT JOIN casfs.leases l ON l.thread = h.name AND l.expires > now()
    AND (l.owner <> %s OR l.thread = ANY(coalesce(%s::text[], ARRAY[l.thread])))
  WHERE h.running AND l.thread IS NULL AND octet_length(h.record) < {ROOM} AND h.name"""
AFTER = f"{FREE} > %s ORDER BY h.name LIMIT {PAGE}"
ONLY = f"{FREE} = %s"
LOCK = """
SELECT name, hash, record FROM casfs.heads WHERE running AND name = ANY(%s)
  ORDER BY name LIMIT %s FOR UPDATE SKIP LOCKED"""
TAKE = """
INSERT INTO casfs.leases AS l (thread, owner, token, expires)
  SELECT thread, %s, token + 1, now() + make_interval(secs => %s)
  FROM unnest(%s::text[], %s::bigint[]) n(thread, token)
  ON CONFLICT (thread) DO UPDATE SET owner = excluded.owner, expires = excluded.expires,
    token = greatest(l.token + 1, excluded.token) WHERE l.expires <= now()
  RETURNING thread, token"""
STATE = """
SELECT l.thread, coalesce(h.running, false)
  FROM {} l LEFT JOIN casfs.heads h ON h.name = l.thread"""
MINE = "owner = %s AND thread = ANY(%s) AND expires > now()"
CHECK = STATE.format(f"(SELECT thread FROM casfs.leases WHERE {MINE})")
RENEW = f"""
WITH seen AS (UPDATE casfs.machines SET seen = now() WHERE id = %s), kept AS (
  UPDATE casfs.leases SET expires = now() + make_interval(secs => %s) WHERE {MINE} RETURNING thread
) {STATE.format("kept")}"""
RELEASE = "DELETE FROM casfs.leases WHERE owner = %s AND thread = ANY(%s)"
ENTER = f"WITH gone AS ({RELEASE}) SELECT pg_advisory_xact_lock_shared({GUARD})"
BEGIN = """
WITH gone AS (DELETE FROM casfs.leases l USING casfs.machines m WHERE m.id = %s
  AND l.owner = m.daemon) UPDATE casfs.machines SET daemon = %s, seen = now() WHERE id = %s"""


class PostgresLeases:
    ttl_s = TTL_S

    def __init__(
        self, pool: Pool, heads: PostgresHeads, blobs: PostgresBlobs, machine: str, owner: str
    ) -> None:
        """Gives up the leases of the machine's former daemon, which must have ended."""
        self._pool = pool
        self._heads = heads
        self._blobs = blobs
        self._machine = machine
        self._owner = owner
        pool.run(BEGIN, [machine, owner, machine])

    def claim(
        self,
        limit: int,
        *,
        only: HeadName | None = None,
        wanted: Wanted | None = None,
        held: Collection[HeadName] | None = None,
    ) -> list[Lease]:
        known = None if held is None else [*held]
        taken: list[Lease] = []
        last = only or ""
        while len(taken) < limit:
            values = [self._owner, known, last]
            rows = self._pool.run(AFTER if only is None else ONLY, values)
            heads = {HeadName(name): head_of(hash, record) for name, hash, record in rows}
            names = [*heads] if wanted is None else [*wanted(heads)]
            if names:
                taken += self._pool.retrying(partial(self._take, names, limit - len(taken)))
            if len(rows) < PAGE:
                break
            last = rows[-1][0]
        with suppress(CasfsError):  # their runs will read it one by one
            self._blobs.prefetch([lease.head.hash for lease in taken])
        return taken

    def _take(self, names: Collection[HeadName], limit: int, db: Connection) -> list[Lease]:
        """Takes those that no other daemon is taking; and again, where the answer was lost."""
        with db.transaction():
            fetch(db, ENTER, [self._owner, [*names]])
            rows = fetch(db, LOCK, [[*names], limit])
            heads = {name: head_of(hash, record) for name, hash, record in rows}
            tokens = [head.record.get("lease", 0) for head in heads.values()]
            taken = [
                Lease(name, token, Head(heads[name].hash, {**heads[name].record, "lease": token}))
                for name, token in fetch(db, TAKE, [self._owner, TTL_S, [*heads], tokens])
            ]
            if taken:
                swaps = [Swap(lease.thread, heads[lease.thread], lease.head) for lease in taken]
                call = publication.arguments(Placed(Publication([], swaps), {}, {}))
                fetch(db, publication.ONE, call.values)
                self._heads.note_moves(len(swaps))
        return sorted(taken)

    def renew(self, held: Collection[HeadName]) -> Renewal:
        values = [self._machine, TTL_S, self._owner, [*held]]
        return _renewal(held, dict(self._pool.run(RENEW, values)))

    def check(self, held: Collection[HeadName]) -> Renewal:
        return _renewal(held, dict(self._pool.run(CHECK, [self._owner, [*held]])))

    def release(self, held: Collection[HeadName]) -> None:
        self._pool.run(RELEASE, [self._owner, [*held]])


def _renewal(held: Collection[HeadName], running: Mapping[HeadName, bool]) -> Renewal:
    return Renewal(
        {name for name in held if name not in running},
        {name for name in held if running.get(name) is False},
    )
