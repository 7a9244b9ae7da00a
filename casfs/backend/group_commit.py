"""Group commit: the write transactions of a process's threads share a BEGIN and a COMMIT.

A caller that finds no commit in progress commits by itself. Callers that arrive meanwhile queue;
the first of them leads the next group: it runs what is queued in one transaction, commits once,
and wakes the others. So no timer and no hand-over to another thread delays a lone writer. An
action that raises is rolled back alone. No caller returns before the COMMIT that holds its action,
so nothing is acknowledged that is not durable. The queue is bounded by the number of calling
threads: each waits for its own actions.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from casfs.backend.sqlite_connection import Connection, Database
from casfs.errors import CasfsError, Failed

GROUP_MAX_ACTIONS = 16
GROUP_MAX_S = 0.005  # after which no further action joins a transaction
T = TypeVar("T")


class _Request:
    """A queued action. `wake` is released when it is `done`, or when its caller must lead."""

    def __init__(self, action: Callable[[Connection], Any]) -> None:
        self.action = action
        self.wake = threading.Lock()
        self.wake.acquire()
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None


class GroupCommit:
    """Runs write transactions of `db`; thread-safe."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._lock = threading.Lock()
        self._queue: deque[_Request] = deque()
        self._has_leader = False

    def run(self, action: Callable[[Connection], T]) -> T:
        """Runs `action` in a write transaction and returns its result once that is durable. The
        transaction may hold actions of other threads; `action` must not begin or end one.
        Raises what `action` raises, and Failed where the transaction fails."""
        with self._lock:
            is_alone = not self._has_leader
            self._has_leader = True
        if not is_alone:
            (result,) = self._run_queued([action])
            if isinstance(result, BaseException):
                raise result
            return result
        try:
            with self._db.write() as db:
                return action(db)
        finally:
            with self._lock:
                self._appoint_leader()

    def run_all(self, actions: Sequence[Callable[[Connection], T]]) -> list[T | BaseException]:
        """`run` of each; what one raises is its result."""
        if len(actions) > 1:
            return self._run_queued(actions)
        try:
            return [self.run(action) for action in actions]
        except Exception as error:
            return [error]

    def _run_queued(self, actions: Sequence[Callable[[Connection], T]]) -> list[T | BaseException]:
        requests = [_Request(action) for action in actions]
        with self._lock:
            self._queue += requests
            leads = not self._has_leader
            self._has_leader = True
        try:
            for request in requests:
                if not leads:
                    request.wake.acquire()
                leads = False
                if not request.done:
                    self._lead()
        except BaseException:  # Ctrl-C in the main thread: another caller must lead instead
            self._withdraw(requests)
            raise
        return [request.result if request.error is None else request.error for request in requests]

    def _withdraw(self, requests: Sequence[_Request]) -> None:
        with self._lock:
            queued = [request for request in requests if request in self._queue]
            for request in queued:
                self._queue.remove(request)
            if any(request.wake.acquire(blocking=False) for request in queued):
                self._appoint_leader()

    def _appoint_leader(self) -> None:
        """Wakes the first of the queue to lead. The caller holds the lock."""
        self._has_leader = bool(self._queue)
        if self._queue:
            self._queue[0].wake.release()

    def _lead(self) -> None:
        """Commits the next group, which begins with the caller's own action."""
        group: list[_Request] = []
        try:
            with self._db.write() as db:
                self._run_group(db, group)
        except BaseException as error:
            if not group:
                with self._lock:
                    group.append(self._queue.popleft())
            for number, request in enumerate(group):
                request.error = error if number == 0 else error_copy(error)
        with self._lock:
            self._appoint_leader()
        for request in group:
            request.done = True
            request.wake.release()

    def _run_group(self, db: Connection, group: list[_Request]) -> None:
        end = time.monotonic() + GROUP_MAX_S
        while len(group) < GROUP_MAX_ACTIONS and (not group or time.monotonic() < end):
            with self._lock:
                if not self._queue:
                    return
                request = self._queue.popleft()
            group.append(request)
            self._run_action(db, request, is_first=len(group) == 1)

    def _run_action(self, db: Connection, request: _Request, *, is_first: bool) -> None:
        """Runs an action; the first without a savepoint, for which SQLite would keep a copy of each
        page that it changes. Raises only where SQLite has ended the transaction."""
        if not is_first:
            db.execute("SAVEPOINT action")
        try:
            request.result = request.action(db)
        except Exception as error:
            if not db.in_transaction:  # rolled back by SQLite: a full disk, an I/O error
                raise
            request.error = self._db.translated(error)
            if is_first:
                db.execute("ROLLBACK")
                db.execute("BEGIN IMMEDIATE")
            else:
                db.execute("ROLLBACK TO action")
        if not is_first:
            db.execute("RELEASE action")


def error_copy(error: BaseException) -> CasfsError:
    """Returns the error that ended a transaction, for another thread to raise."""
    if isinstance(error, CasfsError):
        return type(error)(*error.args)
    return Failed(f"the transaction failed: {error!r}")
