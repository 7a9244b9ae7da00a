"""Heads of the disk backend: rows of `heads`, their last uses, and the journal of moves."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from typing import cast

from casfs.backend.group_commit import GroupCommit
from casfs.backend.protocols import JOURNAL_MIN_MOVES, MOVES_PER_READ, Head, HeadName, Move
from casfs.backend.sqlite_connection import Connection, Database
from casfs.backend.sqlite_statements import BATCH_ROWS, head_of, is_storable
from casfs.digest import NodeHash
from casfs.system.clock import now_ms

INSERT_HEAD = "INSERT OR REPLACE INTO heads (name, hash, record) VALUES (?, ?, ?)"
MoveRow = tuple[int, str, bytes | None, int]  # number, name, hash, time in ms
HeadRow = tuple[str, bytes, str]  # name, hash, record
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

    def list(
        self, prefix: str = "", *, reverse: bool = False, containing: Collection[str] = ()
    ) -> Iterator[tuple[HeadName, Head]]:
        if not is_storable(prefix):
            return
        low = prefix
        high = prefix + chr(sys.maxunicode)
        test = " OR ".join(["instr(name, ?) OR instr(record, ?)"] * len(containing)) or "1"
        texts = [text for needle in containing for text in (needle, needle)]
        order, limit = ("DESC", REVERSED_FIRST_BATCH_ROWS) if reverse else ("ASC", BATCH_ROWS)
        while True:
            with self._db.read() as db:
                rows = db.execute(
                    "SELECT name, hash, record FROM heads WHERE name >= CAST(? AS TEXT)"
                    f" AND name < CAST(? AS TEXT) AND ({test}) ORDER BY name {order} LIMIT {limit}",
                    (_stored_name(low), _stored_name(high), *texts),
                ).fetchall()
            for name, hash, record in rows:
                yield name, head_of(hash, record)
            if len(rows) < limit:
                return
            limit = BATCH_ROWS
            low, high = (low, rows[-1][0]) if reverse else (rows[-1][0] + "\0", high)

    def note_use(self, names: Collection[HeadName]) -> None:
        used_at_ms = now_ms()
        statement = "INSERT OR REPLACE INTO uses SELECT name, ? FROM heads WHERE name = ?"
        self._commits.run(
            lambda db: db.executemany(statement, [(used_at_ms, name) for name in names])
        )

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
            Move(
                seq,
                name,
                hash=cast(NodeHash, key.hex()) if isinstance(key, bytes) else None,
                at_ms=at_ms,
            )
            for seq, name, key, at_ms in rows
        ]

    # -- a replica of other heads ---------------------------------------------------------------

    def newest(self) -> int:
        """Returns the number of the newest move, 0 before the first."""
        with self._db.read() as db:
            return int(db.execute("SELECT coalesce(max(seq), 0) FROM moves").fetchone()[0])

    def replicate(self, after: int, moves: Sequence[MoveRow], heads: Sequence[HeadRow]) -> None:
        """Takes over the moves of another journal behind number `after`, and the heads that they
        moved, as far as these exist; nothing where the newest move is another one by now. Moves
        that do not follow on the newest replace the journal."""

        def write(db: Connection) -> None:
            (newest,) = db.execute("SELECT coalesce(max(seq), 0) FROM moves").fetchone()
            if newest != after:
                return
            last = moves[-1][0] - JOURNAL_MIN_MOVES if moves[0][0] == after + 1 else after
            db.execute("DELETE FROM moves WHERE seq <= ?", (last,))
            db.executemany("DELETE FROM heads WHERE name = ?", {(name,) for _, name, _, _ in moves})
            db.executemany(INSERT_HEAD, heads)
            db.executemany("INSERT INTO moves (seq, name, hash, at) VALUES (?, ?, ?, ?)", moves)

        self._commits.run(write)

    def replace(self, after: str, last: str | None, heads: Sequence[HeadRow]) -> None:
        """Puts `heads` in the place of all behind the name `after`, up to `last`."""

        def write(db: Connection) -> None:
            end = chr(sys.maxunicode) if last is None else last
            db.execute("DELETE FROM heads WHERE name > ? AND name <= ?", (after, end))
            db.executemany(INSERT_HEAD, heads)

        self._commits.run(write)

    def forget_moves(self) -> None:
        self._commits.run(lambda db: db.execute("DELETE FROM moves"))


def _stored_name(name: str) -> bytes:
    """Returns a name's bytes; that of a damaged row may not be UTF-8."""
    return name.encode("utf-8", "surrogateescape")
