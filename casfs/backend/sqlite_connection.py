"""One SQLite file shared by several threads and processes; the only user of sqlite3.

WAL with synchronous=FULL: a commit is durable when it returns, and readers never block
on a writer. Each statement outside `write` is its own short read transaction, so the
mount can stay up for months without holding the WAL back. A writer takes the lock at
BEGIN IMMEDIATE; a read transaction is never upgraded, the one case where SQLite returns
SQLITE_BUSY at once instead of waiting.

On a full disk SQLite cannot make the index of the WAL that its processes share. Then each read has
the file to itself, with an index in its own memory (`_exclusive`); nothing can be written. In a
directory that cannot be written, it is read as `casfs.backend.sqlite_read_only` says.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Literal

from casfs.backend import wal_index
from casfs.backend.wal_checkpoints import BACKSTOP_PAGES, Result, WalCheckpoints
from casfs.errors import Corrupt, Failed
from casfs.system.files import SHARED_MEMORY, is_writable, os_errors

WRITE_LOCK_TIMEOUT_S = 60.0  # that a writer waits for other writers
SOLE_READ_TIMEOUT_S = 5.0  # that a reader on a full disk waits for other processes
READ_ONLY_TIMEOUT_S = 1.0
WAL_MODE_TIMEOUT_S = 1.0  # for a database that exists
PAGE_CACHE_KIB = 16384  # per connection
FULL = "database or disk is full"
Connection = sqlite3.Connection
Synchronous = Literal["FULL", "NORMAL", "OFF"]


class _Full(sqlite3.OperationalError):
    """The disk is too full for the WAL index (`store.db-shm`)."""


class Database:
    """A pool of connections to the file at `path`; each serves one caller at a time."""

    def __init__(self, path: Path, schema: str = "", *, synchronous: Synchronous = "FULL") -> None:
        """Opens the file; `schema` (idempotent SQL) is applied when given, else it must exist.
        `synchronous`: as SQLite's; of data that can be had again NORMAL, which loses the last
        commits with the power, or OFF, which may lose the file."""
        self.path = path
        self._is_read_only = not is_writable(path.parent)
        self._synchronous = synchronous
        self._create = bool(schema)
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        self._closings = 0
        self._watch: Connection | None = None
        self._checkpoints = WalCheckpoints(path.with_name(path.name + "-wal"), self._checkpoint)
        self._exclusive_lock = threading.RLock()
        self._sole: Connection | None = None
        try:
            with self.read() as connection:
                connection.executescript(schema)
        except BaseException:
            self.close()
            raise

    def _connect(self) -> Connection:
        if self._is_read_only:
            return _open_read_only(self.path)
        has_small_blocks = wal_index.has_small_blocks(self.path.parent)
        if has_small_blocks and wal_index.is_full(self.path.parent):
            raise _Full(FULL)  # before the index is mapped
        mode = "rwc" if self._create else "rw"
        connection = _open(self.path, mode, WRITE_LOCK_TIMEOUT_S)
        try:
            if self._create and connection.execute("PRAGMA page_count").fetchone() == (0,):
                connection.execute("PRAGMA auto_vacuum=INCREMENTAL")  # `shrink` needs it
            _enable_wal(connection, WRITE_LOCK_TIMEOUT_S if self._create else WAL_MODE_TIMEOUT_S)
            connection.execute(f"PRAGMA wal_autocheckpoint={BACKSTOP_PAGES}")
            connection.execute(f"PRAGMA cache_size=-{PAGE_CACHE_KIB}")
            connection.execute(f"PRAGMA synchronous={self._synchronous}")
            # FAST overwrites what is deleted in pages that are written anyway, at no cost
            overwrite = "ON" if self._synchronous == "OFF" else "FAST"
            connection.execute(f"PRAGMA secure_delete={overwrite}").fetchall()
            if has_small_blocks:
                connection.execute("PRAGMA schema_version").fetchone()  # opens the index
                wal_index.allocate(self.path)
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError):
                raise _Full(FULL) from error
            raise
        return connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Lends a connection in autocommit mode. Turns SQLite's errors into Failed, Corrupt."""
        try:
            if self._is_read_only and not self._has_index():
                with self._unlocked() as connection:
                    yield connection
                return
            closings = self._closings
            try:
                connection = self._idle.pop() if self._idle else self._connect()
            except IndexError:  # another thread has taken it
                connection = self._connect()
            except sqlite3.OperationalError as error:
                if not self._has_no_room(error):
                    raise
                with self._exclusive() as connection:
                    yield connection
                return
            try:
                yield connection
            finally:
                if closings == self._closings:
                    self._idle.append(connection)
                else:
                    connection.close()
        except sqlite3.DatabaseError as error:
            raise self.translated(error) from error

    def _has_index(self) -> bool:
        """Returns whether readers of a directory that cannot be written can lock what they read."""
        return self.path.with_name(f"{self.path.name}-shm").exists()

    @contextmanager
    def _unlocked(self) -> Iterator[Connection]:
        """Lends a connection for one read that locks nothing. Raises Failed where the file was
        written meanwhile."""
        from casfs.backend import sqlite_read_only

        before = sqlite_read_only.stamp(self.path)
        options = sqlite_read_only.unlocked_options(self.path)
        try:
            with closing(_open(self.path, f"ro&{options}", WRITE_LOCK_TIMEOUT_S)) as connection:
                # The index is in this process's memory then.
                connection.execute("PRAGMA locking_mode=EXCLUSIVE").fetchall()
                yield connection
        finally:
            # Also where it has failed: what was half written looks damaged.
            if sqlite_read_only.stamp(self.path) != before:
                raise Failed(f"{self.path} was written while it was read without a lock; try again")

    def _has_no_room(self, error: sqlite3.DatabaseError) -> bool:
        """Returns whether the disk is too full for what a connection needs."""
        is_full = isinstance(error, _Full) or wal_index.is_full(self.path.parent)
        return is_full and isinstance(error, sqlite3.OperationalError)

    @contextmanager
    def _exclusive(self) -> Iterator[Connection]:
        """Lends a connection that needs no index on disk, to one thread at a time; other processes
        wait meanwhile."""
        with self._exclusive_lock:
            outermost = self._sole is None
            if self._sole is None:
                self._sole = _open(self.path, "rw", SOLE_READ_TIMEOUT_S)
                self._sole.execute("PRAGMA locking_mode=EXCLUSIVE")
            try:
                yield self._sole
            finally:
                if outermost:
                    self._sole.close()
                    self._sole = None

    @contextmanager
    def write(self, *, erasing: bool = False) -> Iterator[Connection]:
        """Runs the block as a write transaction: atomic, and durable when it returns. `erasing`:
        what this connection deletes from now on is overwritten; in the WAL only by `shrink`.
        Raises Failed where the directory cannot be written."""
        if self._is_read_only:
            from casfs.system import sandbox

            raise Failed(sandbox.cannot_write(self.path.parent))
        self._checkpoints.before_transaction()
        with self.read() as connection:
            if erasing:
                connection.execute("PRAGMA secure_delete=ON").fetchall()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        self._checkpoints.after_commit()

    def _checkpoint(self, mode: str = "PASSIVE") -> Result:
        with self.read() as connection:
            rows: list[Result] = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
        return rows[0]

    def version(self) -> int:
        """Returns a number that changes when any connection of any process has committed; on a
        full disk, where no connection stays open, another one at each call."""
        if self._is_read_only and not self._has_index():
            from casfs.backend import sqlite_read_only

            return hash(tuple(sqlite_read_only.stamp(self.path)))
        try:
            if self._watch is None:
                self._watch = self._connect()
            with self._lock:
                (number,) = self._watch.execute("PRAGMA data_version").fetchone()
        except sqlite3.DatabaseError as error:
            if self._has_no_room(error):
                return time.monotonic_ns()
            raise self.translated(error) from error
        return int(number)

    def faults(self) -> Iterator[str]:
        """Yields the findings of SQLite's integrity check, a line each."""
        with self.read() as connection:
            for (line,) in connection.execute("PRAGMA integrity_check").fetchall():
                if line != "ok":
                    yield line

    def files(self) -> list[Path]:
        """Returns the files that hold content: the database and its WAL."""
        return [self.path, self.path.with_name(self.path.name + "-wal")]

    def rebuild(self) -> bool:
        """Rewrites the file, without the room of deleted rows. Returns as `shrink`."""
        with self.read() as connection:
            connection.execute("VACUUM")
        return self.shrink()

    def shrink(self) -> bool:
        """Returns the pages of deleted rows and of the WAL to the file system, as far as readers
        allow; False where they keep the WAL."""
        with self.read() as connection:
            connection.execute("PRAGMA incremental_vacuum").fetchall()
        with self._checkpoints.running:  # SQLite runs one at a time
            is_busy, _, _ = self._checkpoint("TRUNCATE")
        return not is_busy

    def close(self) -> None:
        """Closes the file. A connection that another thread reads with is closed when it has
        read: SQLite would crash the process."""
        with self._checkpoints.running, self._lock:
            for connection in self._idle:
                connection.close()
            if self._watch is not None:
                self._watch.close()
            self._idle.clear()
            self._watch = None
            self._closings += 1

    def translated(self, error: Exception) -> Exception:
        """Returns Failed or Corrupt for an error of SQLite, any other error as it is."""
        if not isinstance(error, sqlite3.DatabaseError):
            return error
        if isinstance(error, sqlite3.OperationalError):
            return Failed(f"{self.path}: {error}{self._hint(error)}")
        return Corrupt(f"{self.path}: {error}; try `casfs fsck`")

    def _hint(self, error: sqlite3.OperationalError) -> str:
        if str(error).startswith("no such"):  # table, or column
            return "; an older casfs made it: `casfs init` brings it up to date"
        if not wal_index.is_full(self.path.parent):
            return ""
        if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
            return "; its disk is full, so one process reads at a time: free space"
        return "; its disk is full"


def _open(path: Path, mode: str, timeout_s: float) -> Connection:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=timeout_s,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )
    # so that damage never fails the read of other rows; no text of ours is not UTF-8
    connection.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
    return connection


def _open_read_only(path: Path) -> Connection:
    """Opens a file whose directory cannot be written, with the index that others keep."""
    deadline = time.monotonic() + READ_ONLY_TIMEOUT_S
    while True:
        connection = _open(path, "ro", WRITE_LOCK_TIMEOUT_S)
        try:
            connection.execute("PRAGMA schema_version").fetchone()  # opens the index
            return connection
        except sqlite3.OperationalError:  # the last of them goes, or the first one comes
            connection.close()
            if time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _enable_wal(connection: Connection, timeout_s: float) -> None:
    """Switches to WAL, which needs brief exclusive access, for which SQLite does not wait.
    An existing database is in WAL mode already, unless it is damaged: then the wait is short."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


class _TemporaryCopy(Database):
    """A copy of a database of derived data, for who can read it and not bring it up to date."""

    def __init__(self, origin: Path, schema: str) -> None:
        import shutil
        import weakref

        with os_errors(f"cannot copy {origin} into a temporary directory"):
            folder = _make_temporary_directory()
        self._remove = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        copy = folder / origin.name
        # Without a copy that is whole, the index is made again here.
        if not _copied(origin, copy):
            copy.unlink(missing_ok=True)
        super().__init__(copy, schema, synchronous="OFF")

    def close(self) -> None:
        super().close()
        self._remove()


def _make_temporary_directory() -> Path:
    import tempfile

    try:
        return Path(tempfile.mkdtemp(prefix="casfs-"))
    except FileNotFoundError:  # none can be written: codex's `read-only` has this one of its own
        return Path(tempfile.mkdtemp(prefix="casfs-", dir=SHARED_MEMORY))


def _copied(origin: Path, copy: Path) -> bool:
    """Copies a database; returns whether there is one, and it is sound."""
    try:
        with (
            closing(Database(origin)) as database,
            database.read() as connection,
            closing(_open(copy, "rwc", WRITE_LOCK_TIMEOUT_S)) as target,
        ):
            connection.backup(target)
            rows = target.execute("PRAGMA quick_check(1)").fetchall()
    except (Failed, Corrupt):
        return False
    return rows == [("ok",)]


def open_derived(path: Path, schema: str) -> Database:
    """Opens a database of data that can be recomputed; makes it anew where it is damaged. Where its
    directory cannot be written, this is a copy that goes when it is closed."""
    if not is_writable(path.parent):
        return _TemporaryCopy(path, schema)
    try:
        return Database(path, schema, synchronous="OFF")
    except Corrupt:
        remove_derived(path)
        return Database(path, schema, synchronous="OFF")


def remove_derived(path: Path) -> None:
    """Deletes a database of derived data, where its directory can be written. A process that has it
    open keeps the deleted one."""
    if not is_writable(path.parent):
        return
    for end in ("", "-wal", "-shm"):
        path.with_name(path.name + end).unlink(missing_ok=True)
