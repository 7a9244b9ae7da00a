"""Heads of the disk backend: rows of `heads`, their last uses, and the journal of moves."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from typing import cast

from casfs.backend.group_commit import GroupCommit
from casfs.backend.protocols import MOVES_PER_READ, Head, HeadName, Move
from casfs.backend.sqlite_connection import Database
from casfs.backend.sqlite_statements import BATCH_ROWS, head_of, is_storable
from casfs.digest import NodeHash
from casfs.system.clock import now_ms

REVERSED_FIRST_BATCH_ROWS = 8  # a reversed listing is mostly read for its first rows


class DiskHeads:
    def __init__(self, db: Database, commits: GroupCommit) -> None:
        self._db = db
        self._commits = commits

    def get(self, name: HeadName) -> Head | None:
        if not is_storable(name):
            return None
        with self._db.read() as db:
            row = db.execute("SELECT hash, record FROM heads WHERE name = ?", (name,)).fetchone()
        return None if row is None else head_of(*row)

    def list(self, prefix: str = "", *, reverse: bool = False) -> Iterator[tuple[HeadName, Head]]:
        if not is_storable(prefix):
            return
        low, high = prefix, prefix + chr(sys.maxunicode)
        order, limit = ("DESC", REVERSED_FIRST_BATCH_ROWS) if reverse else ("ASC", BATCH_ROWS)
        while True:
            with self._db.read() as db:
                rows = db.execute(
                    "SELECT name, hash, record FROM heads WHERE name >= CAST(? AS TEXT)"
                    f" AND name < CAST(? AS TEXT) ORDER BY name {order} LIMIT {limit}",
                    (_stored_name(low), _stored_name(high)),
                ).fetchall()
            for name, hash, record in rows:
                yield name, head_of(hash, record)
            if len(rows) < limit:
                return
            limit = BATCH_ROWS
            low, high = (low, rows[-1][0]) if reverse else (rows[-1][0] + "\0", high)

    def note_use(self, names: Collection[HeadName]) -> None:
        now = now_ms()
        statement = "INSERT OR REPLACE INTO uses SELECT name, ? FROM heads WHERE name = ?"
        self._commits.run(lambda db: db.executemany(statement, [(now, name) for name in names]))

    def last_use(self, name: HeadName) -> int:
        with self._db.read() as db:
            row = db.execute("SELECT at FROM uses WHERE name = ?", (name,)).fetchone()
        return row[0] if row is not None and isinstance(row[0], int) else 0

    def moves(self, after: int = 0) -> Sequence[Move]:
        start = "?" if after >= 0 else "(SELECT coalesce(max(seq), 0) FROM moves) + ?"
        with self._db.read() as db:
            rows = db.execute(
                f"SELECT seq, name, hash, at FROM moves WHERE seq > {start}"
                f" ORDER BY seq LIMIT {MOVES_PER_READ}",
                (after,),
            ).fetchall()
        return [
            Move(seq, name, cast(NodeHash, key.hex()) if isinstance(key, bytes) else None, at)
            for seq, name, key, at in rows
        ]


def _stored_name(name: str) -> bytes:
    """Returns a name's bytes; that of a damaged row may not be UTF-8."""
    return name.encode("utf-8", "surrogateescape")
