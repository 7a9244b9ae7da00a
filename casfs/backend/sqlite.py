"""One SQLite file shared by several threads and processes; the only user of sqlite3.

WAL with synchronous=FULL: a commit is durable when it returns, and readers never wait
for a writer. Each statement outside `write` is its own short read transaction, so the
mount can stay up for months without holding the WAL back. A writer takes the lock at
BEGIN IMMEDIATE; there is never a read that is upgraded in the middle, the one case that
SQLite answers with SQLITE_BUSY at once instead of waiting.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from casfs.errors import Corrupt, Failed

WAIT = 60.0  # seconds that a writer waits for the other writers
MOMENT = 1.0  # seconds
CHECKPOINT = 4000  # pages of WAL before they are copied back: hashes touch pages all over
CACHE = 16384  # KiB of pages that a connection keeps
ROOM = 128 << 10  # bytes that SQLite's own files need at least
Connection = sqlite3.Connection


class Database:
    """A pool of connections to the file at `path`; a connection serves one user at a time."""

    def __init__(self, path: Path, schema: str = "", *, durable: bool = True) -> None:
        """Open the file; `schema` (idempotent SQL) is applied when given, else it must exist.
        What can be made again need not be `durable`."""
        self._path = path
        self._synchronous = "FULL" if durable else "OFF"
        self._create = bool(schema)
        self._idle: list[Connection] = []
        self._all: list[Connection] = []
        self._lock = threading.Lock()
        self._watch: Connection | None = None
        try:
            with self.read() as connection:
                connection.executescript(schema)
        except BaseException:
            self.close()
            raise

    def _connect(self) -> Connection:
        mode = "rwc" if self._create else "rw"
        connection = sqlite3.connect(
            f"{self._path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=WAIT,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        with self._lock:
            self._all.append(connection)
        try:
            if self._create:
                connection.execute("PRAGMA auto_vacuum=INCREMENTAL")  # `shrink` needs it
            _into_wal(connection, WAIT if self._create else MOMENT)
            connection.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT}")
            connection.execute(f"PRAGMA cache_size=-{CACHE}")
            connection.execute(f"PRAGMA synchronous={self._synchronous}")
        except BaseException:
            with self._lock:
                self._all.remove(connection)
            connection.close()
            raise
        return connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection in autocommit. Raises Failed, Corrupt for what SQLite reports."""
        try:
            connection = self._idle.pop() if self._idle else self._connect()
            try:
                yield connection
            finally:
                self._idle.append(connection)
        except sqlite3.DatabaseError as error:
            raise self._fault(error) from error

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A write transaction: all of the block or nothing, durable when it returns."""
        with self.read() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def version(self) -> int:
        """Changes whenever any connection, of any process, has committed."""
        try:
            if self._watch is None:
                self._watch = self._connect()
            with self._lock:
                (number,) = self._watch.execute("PRAGMA data_version").fetchone()
        except sqlite3.DatabaseError as error:
            raise self._fault(error) from error
        return int(number)

    def faults(self) -> Iterator[str]:
        """What SQLite's own check finds, a line each."""
        with self.read() as connection:
            for (line,) in connection.execute("PRAGMA integrity_check").fetchall():
                if line != "ok":
                    yield line

    def shrink(self) -> None:
        """Give the pages of deleted rows back to the file system, as far as readers allow."""
        with self.read() as connection:
            connection.execute("PRAGMA incremental_vacuum").fetchall()
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        with self._lock:
            for connection in self._all:
                connection.close()
            self._all.clear()
            self._idle.clear()
            self._watch = None

    def _fault(self, error: sqlite3.DatabaseError) -> Corrupt | Failed:
        """What SQLite reports, as an error of ours."""
        if isinstance(error, sqlite3.OperationalError):
            return Failed(f"{self._path}: {error}{self._hint(error)}")
        return Corrupt(f"{self._path}: {error}; try `casfs fsck`")

    def _hint(self, error: sqlite3.OperationalError) -> str:
        if str(error).startswith("no such"):  # table, or column
            return "; an older casfs made it: `casfs init` brings it up to date"
        return "; its disk is full" if _is_full(self._path.parent) else ""


def _is_full(folder: Path) -> bool:
    """SQLite often says `disk I/O error` where there was no room for its own small files."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < ROOM


def _into_wal(connection: Connection, patience: float) -> None:
    """The change to WAL needs the file alone for a moment, and SQLite does not wait for that.
    A database that was made is in it already, unless it is damaged: nobody waits long then."""
    deadline = time.monotonic() + patience
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.01)
