"""Heads of a shared store, and the journal of their moves.

Heads of LOCAL kinds belong to one machine, such as its open workspaces and the logs of its
directories: they are stored below `machines/<id>/`, where gc finds them, and have their plain names
on that machine alone.
A move's number is its rank in (xid, id), the order in which moves become readable. The place of
the last one read is kept, so that counting starts there; else it starts at the pruned end.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, cast

from casfs.backend.disk_heads import DiskHeads
from casfs.backend.postgres.connection import Pool
from casfs.backend.protocols import (
    JOURNAL_MIN_MOVES,
    MOVES_PER_READ,
    Head,
    HeadName,
    Move,
    Publication,
    Swap,
)
from casfs.backend.sqlite_statements import BATCH_ROWS, head_of, is_storable
from casfs.digest import NodeHash
from casfs.errors import CasfsError
from casfs.system.clock import now_ms

LOCAL = ("workspaces/", "operations/")
MACHINES = "machines/"
POLL_S = 0.05  # between two looks at the journal
PRUNE_INTERVAL = 1000  # moves
START = """
WITH start AS MATERIALIZED (
  SELECT seq, xid, id FROM casfs.journal
  UNION ALL SELECT %s::bigint, %s::text::xid8, %s::bigint ORDER BY seq DESC LIMIT 1
), found AS (
  SELECT start.seq + row_number() OVER (ORDER BY m.xid, m.id) AS seq,
    m.name, m.hash, m.at, m.xid::text AS xid, m.id
  FROM casfs.moves m, start
  WHERE m.xid < pg_snapshot_xmin(pg_current_snapshot()) AND (m.xid, m.id) > (start.xid, start.id)
)
"""
AFTER = f"{START} SELECT * FROM found WHERE seq > %s ORDER BY seq LIMIT {MOVES_PER_READ}"
NEWEST = f"""{START} SELECT seq, xid, id FROM
  (SELECT seq, xid, id FROM found UNION ALL SELECT seq, xid::text, id FROM start) last
  ORDER BY seq DESC LIMIT 1"""


class Place(NamedTuple):
    """The place of a move in the journal."""

    seq: int
    xid: str
    id: int


BEGINNING = Place(-1, "0", 0)


class PostgresHeads:
    def __init__(self, pool: Pool, machine: str) -> None:
        self._pool = pool
        self.replica: DiskHeads | None = None  # that answers in place of the database
        self._prefix = f"{MACHINES}{machine}/"
        self._lock = threading.Lock()
        self._newest = self._read = BEGINNING  # of the journal, and of the last answer
        self._looked = 0.0  # when `_newest` was read
        self._own = 0  # moves of this process

    # -- names ------------------------------------------------------------------------------

    def stored_name(self, name: str) -> str:
        return f"{self._prefix}{name}" if name.startswith(LOCAL) else name

    def _shown_name(self, name: str) -> HeadName:
        return HeadName(name.removeprefix(self._prefix))

    def stored(self, publication: Publication) -> Publication:
        """Returns a publication with the names that are stored."""
        swaps = [
            Swap(HeadName(self.stored_name(swap.name)), swap.old, swap.new)
            for swap in publication.swaps
        ]
        return publication._replace(swaps=swaps)

    # -- heads ------------------------------------------------------------------------------

    def get(self, name: HeadName) -> Head | None:
        if not _is_name(name):
            return None
        if self.replica is not None:
            return self.replica.get(HeadName(self.stored_name(name)))
        query = "SELECT hash, record FROM casfs.heads WHERE name = %s"
        rows = self._pool.run(query, [self.stored_name(name)])
        return head_of(*rows[0]) if rows else None

    def list(
        self, prefix: str = "", *, reverse: bool = False, containing: Collection[str] = ()
    ) -> Iterator[tuple[HeadName, Head]]:
        if not _is_name(prefix):
            return
        low = self.stored_name(prefix)
        if self.replica is not None:
            stored_heads = self.replica.list(low, reverse=reverse, containing=containing)
            yield from ((self._shown_name(name), head) for name, head in stored_heads)
            return
        high = low + chr(sys.maxunicode)
        order = "DESC" if reverse else "ASC"
        query = (
            "SELECT name, hash, record FROM casfs.heads WHERE name >= %s AND name < %s"
            f" ORDER BY name {order} LIMIT {BATCH_ROWS}"
        )
        while True:
            rows = self._pool.run(query, [low, high])
            for name, hash, record in rows:
                yield self._shown_name(name), head_of(hash, record)
            if len(rows) < BATCH_ROWS:
                return
            low, high = (low, rows[-1][0]) if reverse else (rows[-1][0] + "\x01", high)

    def note_use(self, names: Collection[HeadName]) -> None:
        query = """
        INSERT INTO casfs.uses SELECT name, %s FROM casfs.heads WHERE name = ANY(%s)
        ON CONFLICT (name) DO UPDATE SET at = excluded.at"""
        stored = [self.stored_name(name) for name in names if _is_name(name)]
        self._pool.run(query, [now_ms(), stored])

    def last_use(self, name: HeadName) -> int:
        query = "SELECT at FROM casfs.uses WHERE name = %s"
        rows = self._pool.run(query, [self.stored_name(name)]) if _is_name(name) else []
        return int(rows[0][0]) if rows else 0

    # -- the journal --------------------------------------------------------------------------

    def moves(self, after: int = 0) -> Sequence[Move]:
        if self.replica is not None:
            moves = self.replica.moves(after)
            return [move._replace(name=self._shown_name(move.name)) for move in moves]
        if after < 0:
            after = max(0, self._read_newest().seq + after)
        with self._lock:
            places = [position for position in (self._newest, self._read) if position.seq <= after]
        rows = self._pool.run(AFTER, [*_values(max(places, default=BEGINNING)), after])
        if rows:
            seq, *_, xid, id = rows[-1]
            self._read = Place(seq, xid, id)
        return [
            Move(
                seq,
                self._shown_name(name),
                hash=cast(NodeHash, hash.hex()) if hash else None,
                at_ms=at_ms,
            )
            for seq, name, hash, at_ms, _, _ in rows
        ]

    def version(self) -> int:
        """Returns a number that grows with every move of this process, and within POLL_S with
        those of others."""
        if time.monotonic() - self._looked > POLL_S:
            self._read_newest()
        return self._newest.seq + self._own

    def _read_newest(self) -> Place:
        looked_at = time.monotonic()
        ((seq, xid, id),) = self._pool.run(NEWEST, _values(self._newest))
        with self._lock:
            self._looked = looked_at
            if seq > self._newest.seq:
                self._newest = Place(seq, xid, id)
            return self._newest

    def note_moves(self, count: int) -> None:
        """Notes moves that this process has published, and prunes the journal now and then."""
        with self._lock:
            self._own += count
            self._looked = 0.0
        if random.random() * PRUNE_INTERVAL < count:  # few processes live for that many
            with suppress(CasfsError):  # they are published
                self._pool.run("SELECT casfs.prune_moves(%s)", [JOURNAL_MIN_MOVES])


def _values(position: Place) -> list[object]:
    return [position.seq, position.xid, position.id]


def _is_name(name: str) -> bool:
    return is_storable(name) and "\0" not in name
