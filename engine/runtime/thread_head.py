"""The serialised mover of a running thread's head, and its orphaned processes.

A run moves the head from several tasks: its own, and those of the agent, which report
processes, turns and calls. Each move starts from what the last one left, or the run would be in
Conflict with itself. Moves run in a worker thread, and one that has begun is finished even
when its task is cancelled, so `thread` never lags behind the store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

from casfs.threads import Thread
from engine import processes

T = TypeVar("T")


class ThreadHead:
    """`thread`: as of the last move."""

    def __init__(self, thread: Thread) -> None:
        self.thread = thread
        self._lock = trio.Lock()

    async def move(self, transition: Callable[[Thread], Thread]) -> Thread:
        """Applies a transition to the current thread. Raises what the transition raises."""

        def apply() -> Thread:
            self.thread = transition(self.thread)
            return self.thread

        return await self.run_locked(apply)

    async def run_locked(self, function: Callable[[], T]) -> T:
        """Runs a function in a worker thread while no other task moves the head; the function
        may set `thread`."""
        async with self._lock:
            return await trio.to_thread.run_sync(function)


def end_orphans(thread: Thread) -> None:
    """Ends the processes of the pending step that a killed daemon left."""
    intent = thread.record["intent"]
    if intent is not None:
        processes.end_orphans(intent["run"], intent["pid"], intent["pidStart"])
