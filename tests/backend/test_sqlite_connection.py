"""A SQLite file that several threads read: a close while another thread has a connection."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Thread

from casfs.backend.sqlite_connection import Database

SCHEMA = "CREATE TABLE IF NOT EXISTS numbers (number INTEGER)"


def test_a_close_lets_other_threads_read_to_the_end(tmp_path: Path) -> None:
    """SQLite crashes the process where a connection is closed that another thread uses."""
    path = tmp_path / "a.db"
    database = Database(path, SCHEMA)
    with database.write() as db:
        db.executemany("INSERT INTO numbers VALUES (?)", [(number,) for number in range(1000)])
    begun, closed = Event(), Event()
    read: list[int] = []

    def reading() -> None:
        with database.read() as db:
            for (number,) in db.execute("SELECT number FROM numbers"):
                read.append(number)
                begun.set()
                closed.wait()

    thread = Thread(target=reading)
    thread.start()
    begun.wait()
    database.close()
    assert path.with_name("a.db-wal").exists(), "as long as one has it open"
    closed.set()
    thread.join()
    assert read == list(range(1000))
    assert not path.with_name("a.db-wal").exists()
