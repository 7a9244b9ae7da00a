"""The threads of the search index: which of them began with a thread-start, or failed with an
attempt. Kept by the journal of head moves, so that a search reads the heads that have moved since
the last one, not all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from casfs.backend.journal import JournalReader
from casfs.backend.protocols import HeadName
from casfs.backend.sqlite_connection import Connection, Database
from casfs.errors import NotFound
from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.threads import Thread, ThreadId

SCHEMA = """
CREATE TABLE IF NOT EXISTS starts (thread TEXT PRIMARY KEY, start TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS starts_by_start ON starts(start);
CREATE TABLE IF NOT EXISTS attempts (attempt TEXT NOT NULL, thread TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS attempts_by_attempt ON attempts(attempt);
CREATE INDEX IF NOT EXISTS attempts_by_thread ON attempts(thread);
CREATE TABLE IF NOT EXISTS journal (id INTEGER PRIMARY KEY, seq INTEGER NOT NULL);
"""


def catch_up(store: Store, database: Database) -> None:
    """Reads the heads of threads that have moved since the last time; all where that is unknown."""
    with database.read() as db:
        row = db.execute("SELECT seq FROM journal").fetchone()
    journal = JournalReader(store.backend, row[0] if row else 0)
    moved = {move.name for move in journal.new_moves() if move.name.startswith(threads.HEADS)}
    if row and journal.seq == row[0]:
        return
    with database.write() as db:
        if row is None or journal.lost:
            db.execute("DELETE FROM starts")
            db.execute("DELETE FROM attempts")
            _add(db, threads.newest_first(store))
        else:
            _update(store, db, moved)
        db.execute("INSERT OR REPLACE INTO journal (id, seq) VALUES (1, ?)", (journal.seq,))


def began_with(store: Store, db: Connection, start: str) -> list[Thread]:
    """Returns the threads with this thread-start, oldest first."""
    return _threads(store, db, query="SELECT thread FROM starts WHERE start = ?", hash=start)


def failed_with(store: Store, db: Connection, attempt: str) -> list[Thread]:
    """Returns the threads at whose pending step this attempt failed, oldest first."""
    return _threads(
        store, db, query="SELECT DISTINCT thread FROM attempts WHERE attempt = ?", hash=attempt
    )


def _threads(store: Store, db: Connection, query: str, hash: str) -> list[Thread]:
    matching_threads = []
    for (id,) in db.execute(f"{query} ORDER BY thread", (hash,)).fetchall():
        try:
            matching_threads.append(threads.get(store, ThreadId(id)))
        except NotFound:  # removed meanwhile
            continue
    return matching_threads


def _update(store: Store, db: Connection, moved: Iterable[HeadName]) -> None:
    for name in moved:
        id = threads.thread_id(name)
        db.execute("DELETE FROM starts WHERE thread = ?", (id,))
        db.execute("DELETE FROM attempts WHERE thread = ?", (id,))
        head = store.heads.get(name)
        if head is not None:
            _add(db, [threads.of_head(name, head)])


def _add(db: Connection, added: Iterable[Thread]) -> None:
    attempts: list[tuple[str, ThreadId]] = []

    def starts() -> Iterator[tuple[ThreadId, str]]:
        for thread in added:
            attempts.extend((str(hash), thread.id) for hash in thread.fields.get("attempts") or ())
            if isinstance(start := thread.fields.get("start"), str):
                yield thread.id, start

    db.executemany("INSERT OR REPLACE INTO starts VALUES (?, ?)", starts())
    db.executemany("INSERT INTO attempts VALUES (?, ?)", attempts)
