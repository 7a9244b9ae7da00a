"""The records of all threads in memory, brought up to date by the journal at each question.

So a list of 10,000 threads costs no read of a head. What a listing shows beside the record (the
task) is read for the rows that are shown, and kept, since it never changes.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from sys import intern
from typing import Any

import trio

from casfs.backend.journal import JournalReader
from casfs.backend.protocols import Head, HeadName
from casfs.directories import projects
from casfs.directories.projects import Project
from casfs.errors import CasfsError
from casfs.store.store import Store
from casfs.system.lru_cache import LruCache
from casfs.threads import threads
from casfs.threads.state import OPEN, QUEUED
from casfs.threads.summary import head_fields, task_line
from casfs.threads.threads import (
    BROKEN,
    CANCELLED,
    HEADS,
    RUNNING,
    SESSION,
    SUSPENDED,
    Thread,
    ThreadId,
    of_head,
)

RELOAD_MOVES = 1000  # from there on reading all heads again is quicker
MAX_TASKS = 200_000  # that are kept
WARM_AFTER_S = 1.0  # the first page comes first
WARM_ROWS = 100
WARM_PAUSE_S = 0.05
WAITING = ("child", "caller")  # causes of a suspension that ends by itself
NO_FAULTS = (*WAITING, SESSION, "human", "budget", "rounds")  # causes of a suspension
NEEDS = "needs"
ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Row:
    """A thread, as a listing shows it. `section`: needs (a person), running, queued, ended."""

    id: ThreadId
    head: str
    section: str
    state: str
    workflow: str
    name: str | None
    role: str | None
    attempt: int
    run: str | None
    since_ms: int
    updated_ms: int
    start: str | None
    reason: str | None
    cause: str | None
    question: str | None
    parent: str | None
    project: Project | None
    archived: bool
    pinned: bool
    tokens: int
    wall_ms: int

    @property
    def is_session(self) -> bool:
        return self.cause == SESSION

    @property
    def is_fault(self) -> bool:
        """Whether its reason says what went wrong, and not for what it waits."""
        return self.state not in (CANCELLED, QUEUED) and self.cause not in NO_FAULTS

    @property
    def may_be_stopped(self) -> bool:
        return self.state in (RUNNING, QUEUED, SUSPENDED) and not self.is_session

    @property
    def may_go_on(self) -> bool:
        return self.state == SUSPENDED and not self.is_session


class ThreadTable:
    """Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rows: dict[ThreadId, Row] = {}
        self._loaded = False
        self._tasks = LruCache(MAX_TASKS)
        store.purged.add_cache(self._tasks)
        self._journal = JournalReader(store.backend)
        self._lock = threading.Lock()

    def rows(self) -> list[Row]:
        """Returns all threads as they are now, in no order."""
        with self._lock:
            self._update()
            return list(self._rows.values())

    def children(self, id: ThreadId) -> list[Row]:
        """Returns the threads that a thread called, oldest first."""
        return sorted((row for row in self.rows() if row.parent == id), key=lambda row: row.id)

    def task(self, row: Row) -> str:
        """Returns the beginning of a thread's task; empty where it cannot be read."""
        if row.start is None:
            return ""
        self._store.purged.replaced()  # clears the cache, where something was purged
        generation = self._tasks.generation
        task: str | None = self._tasks.get(row.start)
        if task is None:
            task = task_line(self._store, row.start) or ""
            self._tasks.put(row.start, task, 1, generation)
        return task

    def title(self, row: Row) -> str:
        """Returns what a thread is called: its name, else the beginning of its task."""
        return row.name or self.task(row) or row.workflow

    async def warm(self) -> None:
        """Reads what the first questions need, while the server is idle otherwise."""
        try:
            rows = await trio.to_thread.run_sync(self.rows)
        except CasfsError:  # the first question says it
            return
        await trio.sleep(WARM_AFTER_S)
        for offset in range(0, len(rows), WARM_ROWS):
            await trio.sleep(WARM_PAUSE_S)
            await trio.to_thread.run_sync(list, map(self.task, rows[offset : offset + WARM_ROWS]))

    def _update(self) -> None:
        moves = self._journal.new_moves()
        moved = {move.name for move in moves if move.name.startswith(HEADS)}
        if not self._loaded or self._journal.lost or len(moved) > RELOAD_MOVES:
            moved.clear()
            rows = (row_of(name, head) for name, head in self._store.heads.list(HEADS))
            self._rows = {row.id: row for row in rows}
        self._loaded = False  # unless all goes well
        for name in moved:
            head = self._store.heads.get(name)
            if head is None:
                self._rows.pop(threads.thread_id(name), None)
            else:
                row = row_of(name, head)
                self._rows[row.id] = row
        self._loaded = True


def row_of(name: HeadName, head: Head) -> Row:
    thread = of_head(name, head)
    fields = head_fields(thread)
    intent: dict[str, Any] = fields["intent"] or {}
    spent: dict[str, Any] = fields["spent"] or {}
    return Row(
        id=thread.id,
        head=thread.hash,
        section=_section(thread, fields),
        state=intern(fields["status"]),
        workflow=intern(fields["workflow"]),
        name=thread.fields.get("name"),
        role=intent.get("role"),
        attempt=intent.get("attempt", 1),
        run=intent.get("run"),
        since_ms=intent.get("since") or fields["updatedAt"],
        updated_ms=fields["updatedAt"],
        start=fields["start"],
        reason=fields["reason"],
        cause=fields["cause"],
        question=thread.fields.get("question"),
        parent=fields["parent"],
        project=projects.recorded(thread),
        archived=thread.is_archived,
        pinned=thread.is_pinned,
        tokens=spent.get("tokens", 0),
        wall_ms=spent.get("wallMs", 0),
    )


def _section(thread: Thread, fields: dict[str, Any]) -> str:
    state = fields["status"]
    # An outside agent's session between two prompts needs no action.
    if state == OPEN:
        return RUNNING
    if state == SUSPENDED:
        return QUEUED if fields["cause"] in WAITING else NEEDS
    if state == BROKEN:
        return NEEDS
    return state if state in (RUNNING, QUEUED) else ENDED
