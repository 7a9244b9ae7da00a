"""Checkpoints of the WAL: who runs them; it is begun anew under commits without a pause."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from casfs.backend import wal_checkpoints
from casfs.backend.sqlite_connection import Database
from casfs.backend.wal_checkpoints import count_pages

SCHEMA = "CREATE TABLE IF NOT EXISTS t (x INTEGER PRIMARY KEY, data BLOB)"
LIMIT_PAGES = 60
ROW = b"x" * 10_000  # three pages
WAIT_S = 30


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.setattr(wal_checkpoints, "CHECKPOINT_PAGES", LIMIT_PAGES)
    database = Database(tmp_path / "test.db", SCHEMA)
    yield database
    database.close()


@pytest.fixture
def wal(tmp_path: Path) -> Path:
    return tmp_path / "test.db-wal"


def insert(db: Database, count: int) -> None:
    for _ in range(count):
        with db.write() as connection:
            connection.execute("INSERT INTO t (data) VALUES (?)", (ROW,))


def finish(db: Database) -> None:
    """Waits for the thread."""
    with db._checkpoints.running:
        pass


def runs(db: Database, monkeypatch: pytest.MonkeyPatch) -> list[tuple[threading.Thread, int]]:
    """The checkpoints from now on: by which thread, and how many pages were copied after it."""
    seen: list[tuple[threading.Thread, int]] = []
    run = db._checkpoints._run

    def noted() -> wal_checkpoints.Result:
        found = run()
        seen.append((threading.current_thread(), found[2]))
        return found

    monkeypatch.setattr(db._checkpoints, "_run", noted)
    return seen


def test_pages_are_those_since_the_wal_was_begun_anew(db: Database, wal: Path) -> None:
    insert(db, 10)
    _, before, _ = db._checkpoint()
    assert count_pages(wal) == before > 30
    insert(db, 1)  # begins it anew; older frames follow in the file
    assert 0 < count_pages(wal) < 10
    assert count_pages(wal) == db._checkpoint()[1]
    assert count_pages(wal.with_name("absent")) == 0


def test_a_thread_copies_and_a_writer_only_what_arrived_meanwhile(
    db: Database, wal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = runs(db, monkeypatch)
    while not seen:
        insert(db, 1)
        finish(db)
    thread, copied = seen[0]
    assert thread is not threading.current_thread()
    assert copied >= LIMIT_PAGES
    insert(db, 1)
    (last, then_copied) = seen[-1]
    assert last is threading.current_thread()
    assert then_copied == copied  # nothing had arrived
    assert count_pages(wal) < LIMIT_PAGES  # begun anew


def test_the_wal_is_begun_anew_under_commits_without_a_pause(db: Database, wal: Path) -> None:
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            insert(db, 1)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        end = time.monotonic() + WAIT_S
        while (times := begun(wal)) < 5 and time.monotonic() < end:
            time.sleep(0.01)
    finally:
        ended.set()
        for thread in threads:
            thread.join(WAIT_S)
    assert times >= 5


def begun(wal: Path) -> int:
    """How often, by the header."""
    return int.from_bytes(wal.read_bytes()[12:16], "big") if wal.exists() else 0


def test_a_reader_with_an_old_snapshot_delays_it(db: Database, wal: Path, tmp_path: Path) -> None:
    reader = sqlite3.connect(tmp_path / "test.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM t").fetchone()
    insert(db, 200)
    finish(db)
    assert count_pages(wal) >= 600
    assert reader.execute("SELECT count(*) FROM t").fetchone() == (0,)
    reader.close()
    for _ in range(2 * wal_checkpoints.CHECK_INTERVAL):
        insert(db, 1)
        finish(db)
    assert count_pages(wal) < 600


def test_shrink_and_close_wait_for_the_thread(db: Database, wal: Path) -> None:
    insert(db, 5)
    db._checkpoints.running.acquire()
    timer = threading.Timer(0.2, db._checkpoints.running.release)
    timer.start()
    assert db.shrink()
    assert timer.finished.is_set()
    insert(db, 5)
    db.close()
    assert not wal.exists()  # SQLite's own checkpoint by the last connection


def test_a_failing_thread_hurts_no_commit(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", lambda self: fail())
    insert(db, 100)
    finish(db)
    with db.read() as connection:
        limit = connection.execute("PRAGMA wal_autocheckpoint").fetchone()
    assert limit == (wal_checkpoints.BACKSTOP_PAGES,)
