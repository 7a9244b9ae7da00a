"""A run's hold on its thread: where the head is, one move at a time; its directory and processes.

A run moves the head from several tasks: its own, and those of the agent, which report
processes, turns and calls. Each move has to start from what the last one left, or it would be a
Conflict with ourselves. Moves run in a worker thread, and one that has begun is finished even
when its task is cancelled, so `thread` never lags behind the store.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import trio

from casfs.errors import Failed
from casfs.store import Store
from casfs.threads import Thread
from engine import processes
from engine.runtime.workspace import COPYING, Workspace, Workspaces

T = TypeVar("T")


class ThreadHead:
    def __init__(self, thread: Thread) -> None:
        self.thread = thread
        self._lock = trio.Lock()

    async def move(self, change: Callable[[Thread], Thread]) -> Thread:
        """Let `change` move the head from where it is. Raises what that raises."""

        def moving() -> Thread:
            self.thread = change(self.thread)
            return self.thread

        return await self.still(moving)

    async def still(self, function: Callable[[], T]) -> T:
        """Run it in a worker thread, while nobody else moves the head; it may set `thread`."""
        async with self._lock:
            return await trio.to_thread.run_sync(function)


def workspace(store: Store, thread: Thread, workspaces: Workspaces = COPYING) -> Workspace:
    """The private directory of a thread. Raises Failed for a store in memory."""
    if store.root is None:
        raise Failed("a store in memory has no place for workspaces")
    return workspaces.open(store, Path(store.root) / "workspaces" / thread.id)


def end_orphans(thread: Thread) -> None:
    """End the processes that a dead daemon left of the step in flight."""
    intent = thread.record["intent"]
    if intent is not None:
        processes.end_orphans(intent["run"], intent["pid"], intent["pidStart"])
