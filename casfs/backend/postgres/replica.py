"""A replica of heads and journal in a machine's directory, for processes that serve readers.

One thread on each machine, of the process that holds the file `replica.lock`, reads the journal
every POLL_S, and writes the moves with the heads that they moved to the local `store.db`, under
the names and the numbers that they have in the database; so all processes see them by SQLite alone.
A head may be newer than its move. Where the journal does not reach back, or has gone back as the
database was restored, all heads are copied first.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from casfs.backend.disk_heads import DiskHeads
from casfs.backend.postgres.connection import Pool
from casfs.backend.postgres.heads import AFTER, BEGINNING, NEWEST, POLL_S
from casfs.errors import CasfsError
from casfs.system.locks import lock_file

LOCK = "replica.lock"
PATIENCE_S = 2.0  # of a process that serves readers
PAUSE_S = 2.0  # after a failure, in which nothing is asked
FIRST_ANSWER_S = 0.3  # that a start waits for the database, where there is a replica
CATCH_UP_S = 2.0  # that it waits for the moves until then
TAKE_OVER_S = 0.5  # between two looks at the lock
COPY_ROWS = 5000
HEADS = "SELECT name, hash, record FROM casfs.heads"
MOVED = f"{HEADS} WHERE name = ANY(%s)"
NEXT = f"{HEADS} WHERE name > %s ORDER BY name LIMIT {COPY_ROWS}"


class Replica:
    def __init__(self, pool: Pool, heads: DiskHeads, root: Path) -> None:
        self._pool = pool
        self._heads = heads
        self._lock_path = root / LOCK
        self._closed = threading.Event()
        self._answered = threading.Event()
        self._fault: CasfsError | None = None
        self._target = -1  # number of the newest move at the start
        self._thread = threading.Thread(target=self._run, name="casfs-replica", daemon=True)

    def start(self) -> None:
        """Returns once the replica has what the database has now; one that is there already is
        not waited for longer than some seconds. Raises as `Pool.run` where there is none."""
        exists = self._heads.newest() > 0
        self._thread.start()
        self._answered.wait(FIRST_ANSWER_S if exists else None)
        end = time.monotonic() + CATCH_UP_S
        while self._heads.newest() < self._target and not (exists and time.monotonic() > end):
            if not exists and self._fault is not None:
                break
            time.sleep(POLL_S / 10)
        if not exists and self._fault is not None:
            raise self._fault

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            ((self._target, _, _),) = self._pool.run(NEWEST, BEGINNING)
        except CasfsError as error:
            self._fault = error
        self._answered.set()
        while not self._closed.is_set():
            if (lock := lock_file(self._lock_path)) is not None:
                try:
                    self._follow()
                except CasfsError as error:
                    self._fault = error
                finally:
                    os.close(lock)
            self._closed.wait(TAKE_OVER_S)

    def _follow(self) -> None:
        position = BEGINNING
        seq = self._heads.newest()
        ((newest, _, _),) = self._pool.run(NEWEST, position)
        if newest < seq:  # the database was restored
            self._copy()
            self._heads.forget_moves()
            seq = 0
        while not self._closed.is_set():
            rows = self._pool.run(AFTER, [*position, seq])
            self._fault = None
            if not rows:
                self._closed.wait(POLL_S)
                continue
            if rows[0][0] != seq + 1:
                self._copy()
            heads = self._pool.run(MOVED, [[*{name for _, name, *_ in rows}]])
            self._heads.replicate(seq, [row[:4] for row in rows], heads)
            seq, *_, xid, id = rows[-1]
            position = position._replace(seq=seq, xid=xid, id=id)

    def _copy(self) -> None:
        after: str | None = ""
        while after is not None and not self._closed.is_set():
            rows = self._pool.run(NEXT, [after])
            last = rows[-1][0] if len(rows) == COPY_ROWS else None
            self._heads.replace(after, last, rows)
            after = last
