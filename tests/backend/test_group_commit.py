"""Group commit: what shares a transaction, what is rolled back alone, and who is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from casfs.backend import group_commit
from casfs.backend.group_commit import GROUP_MAX_ACTIONS, GroupCommit
from casfs.backend.sqlite_connection import Connection, Database
from casfs.errors import Conflict, Corrupt, Failed

SCHEMA = "CREATE TABLE IF NOT EXISTS t (x INTEGER PRIMARY KEY)"
WAIT_S = 30


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "test.db", SCHEMA)
    yield database
    database.close()


def rows(db: Database) -> list[int]:
    with db.read() as connection:
        return [x for (x,) in connection.execute("SELECT x FROM t ORDER BY x")]


def insert(x: int) -> Callable[[Connection], int]:
    def action(connection: Connection) -> int:
        connection.execute("INSERT INTO t VALUES (?)", (x,))
        return x

    return action


class Callers:
    """Threads that run actions while a first one holds its transaction open."""

    def __init__(self, commits: GroupCommit) -> None:
        self._commits = commits
        self.outcomes: dict[int, Any] = {}
        self._threads: list[threading.Thread] = []
        self._entered, self._go_on = threading.Event(), threading.Event()

    def hold(self, x: int, then: Callable[[Connection], Any] | None = None) -> None:
        def action(connection: Connection) -> Any:
            self._entered.set()
            assert self._go_on.wait(WAIT_S)
            return (then or insert(x))(connection)

        self._start(x, action)
        assert self._entered.wait(WAIT_S)

    def start(self, x: int, action: Callable[[Connection], Any]) -> None:
        before = len(self._commits._queue)
        self._start(x, action)
        while len(self._commits._queue) == before:
            pass

    def _start(self, key: int, action: Callable[[Connection], Any]) -> None:
        def run() -> None:
            try:
                self.outcomes[key] = self._commits.run(action)
            except BaseException as error:
                self.outcomes[key] = error

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def finish(self) -> None:
        self._go_on.set()
        for thread in self._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()


def transactions(db: Database) -> list[str]:
    """The BEGINs and COMMITs from now on, as they are run."""
    seen: list[str] = []
    with db.read() as connection:  # the pool's only connection
        connection.set_trace_callback(
            lambda text: seen.append(text) if text in ("BEGIN IMMEDIATE", "COMMIT") else None
        )
    return seen


def test_a_lone_action_is_durable_when_it_returns(db: Database) -> None:
    assert GroupCommit(db).run(insert(1)) == 1
    assert rows(db) == [1]


def test_waiting_actions_share_a_transaction(db: Database) -> None:
    seen = transactions(db)
    callers = Callers(GroupCommit(db))
    callers.hold(0)
    for x in range(1, 6):
        callers.start(x, insert(x))
    callers.finish()
    assert rows(db) == [0, 1, 2, 3, 4, 5]
    assert callers.outcomes == {x: x for x in range(6)}
    assert len(seen) in (2, 4)  # the first group may have taken them in, or left them all


def test_a_group_is_bounded(db: Database) -> None:
    seen = transactions(db)
    callers = Callers(GroupCommit(db))
    callers.hold(0)
    for x in range(1, 2 * GROUP_MAX_ACTIONS + 1):
        callers.start(x, insert(x))
    callers.finish()
    assert len(rows(db)) == 2 * GROUP_MAX_ACTIONS + 1
    assert seen.count("COMMIT") >= 3


def test_an_action_that_raises_is_rolled_back_alone(db: Database) -> None:
    def fail(connection: Connection) -> None:
        insert(99)(connection)
        raise Conflict("moved meanwhile")

    callers = Callers(GroupCommit(db))
    callers.hold(0)
    callers.start(1, insert(1))
    callers.start(2, fail)
    callers.start(3, insert(3))
    callers.finish()
    assert rows(db) == [0, 1, 3]
    assert isinstance(callers.outcomes.pop(2), Conflict)
    assert callers.outcomes == {0: 0, 1: 1, 3: 3}


def test_a_first_action_that_raises_is_rolled_back_alone(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "GROUP_MAX_S", WAIT_S)  # all in its group
    callers = Callers(GroupCommit(db))

    def fail(connection: Connection) -> None:
        insert(99)(connection)
        raise Conflict("moved meanwhile")

    callers.hold(0, fail)
    callers.start(1, insert(1))
    callers.start(2, fail)
    callers.start(3, insert(3))
    callers.finish()
    assert rows(db) == [1, 3]
    assert isinstance(callers.outcomes.pop(0), Conflict)
    assert isinstance(callers.outcomes.pop(2), Conflict)
    assert callers.outcomes == {1: 1, 3: 3}


def test_nobody_is_told_success_where_the_commit_fails(db: Database) -> None:
    """A transaction that SQLite ends inside an action takes its whole group along."""

    def end(connection: Connection) -> None:
        insert(99)(connection)
        connection.execute("ROLLBACK")
        raise Failed("the disk is full")

    commits = GroupCommit(db)
    callers = Callers(commits)
    callers.hold(0)
    callers.start(1, end)
    callers.finish()
    assert 99 not in rows(db)
    assert isinstance(callers.outcomes[1], Failed)
    assert rows(db) == [x for x, outcome in callers.outcomes.items() if outcome == x]
    assert commits.run(insert(7)) == 7  # and the next one leads


def test_where_the_transaction_cannot_begin(tmp_path: Path) -> None:
    db = Database(tmp_path / "other.db", SCHEMA)
    db.close()  # its idle connections
    (tmp_path / "other.db").write_bytes(b"no database at all" * 100)
    commits = GroupCommit(db)
    for _ in range(2):
        with pytest.raises(Corrupt):
            commits.run(insert(2))
    db.close()


def test_a_caller_that_is_interrupted_hands_the_lead_on(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while it waits: those behind it must not wait for ever."""
    commits = GroupCommit(db)
    callers = Callers(commits)
    callers.hold(0)
    interrupted: list[BaseException] = []

    class Interrupted:
        def __init__(self, lock: Any) -> None:
            self._lock = lock

        def acquire(self, blocking: bool = True) -> bool:
            if blocking and not interrupted:
                interrupted.append(KeyboardInterrupt())
                raise interrupted[0]
            return bool(self._lock.acquire(blocking))

        def release(self) -> None:
            self._lock.release()

    class Request(group_commit._Request):
        def __init__(self, action: Any) -> None:
            super().__init__(action)
            self.wake: Any = Interrupted(self.wake)

    monkeypatch.setattr(group_commit, "_Request", Request)
    with pytest.raises(KeyboardInterrupt):
        commits.run_all([insert(50), insert(51)])
    monkeypatch.undo()
    callers.start(1, insert(1))
    callers.finish()
    assert rows(db) == [0, 1]


def test_the_actions_of_one_caller(db: Database) -> None:
    """More than a group holds, each on its own; another caller's are in between."""
    commits = GroupCommit(db)
    callers = Callers(commits)
    callers.hold(0)
    callers.start(1, insert(1))
    many = [insert(x) for x in (2, 3, 2, *range(4, 40))]
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(commits.run_all(many)))
    thread.start()
    callers.finish()
    thread.join(WAIT_S)
    assert [isinstance(one, Corrupt) for one in found].count(True) == 1
    assert isinstance(found[2], Corrupt)
    assert rows(db) == list(range(40))


def test_many_threads(db: Database) -> None:
    commits = GroupCommit(db)

    def run(start: int) -> None:
        for x in range(start, start + 50):
            assert commits.run(insert(x)) == x
            if x % 10 == 0:
                with pytest.raises(Corrupt):
                    commits.run(insert(x))  # twice the same key

    threads = [threading.Thread(target=run, args=(100 * n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert len(rows(db)) == 400
