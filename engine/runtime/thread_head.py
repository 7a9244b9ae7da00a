"""The serialised mover of a running thread's head, and its orphaned subprocesses.

A run moves the head from several tasks: its own, and those of the agent, which report
processes, turns and calls. Each move starts from what the last one left, or the run would be in
Conflict with itself. Moves run in a worker thread, and one that has begun is finished even
when its task is cancelled, so `thread` never lags behind the store.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

import trio

from casfs.errors import CasfsError, Conflict, Unreachable
from casfs.threads.threads import Thread
from engine.blocking import blocking
from engine.processes import subprocesses
from engine.runtime.commit_queue import CommitQueue, Committable
from engine.runtime.open_question import OpenQuestion


class MovesHead(Committable, Protocol):
    """`moved`: the thread after its head was moved by `batch`."""

    @property
    def moved(self) -> Thread: ...


M = TypeVar("M", bound=MovesHead)
T = TypeVar("T")
Guard = Callable[[], None]
GRACE_S = 0.5  # in which a cancelled run ends by itself
PAUSE_S = 2.0  # before what needs a server that did not answer is tried again


class ThreadHead:
    """`thread`: as of the last move; `interrupted`: the detail that a cancelled program of the
    pending step has left, to be recorded with the end of the attempt; `guard`: of a shared store,
    raises Conflict once the lease is over; `lost_errors`: those that say that the head is not ours
    any more. They end a run and leave the thread as it is; `question`: for whose answer the agent
    waits; `on_question`: called when that changes."""

    def __init__(self, thread: Thread, guard: Guard | None = None) -> None:
        self.thread = thread
        lost_errors = (Conflict, Unreachable) if guard else (Conflict,)
        self.lost_errors: tuple[type[CasfsError], ...] = lost_errors
        self.is_shared = guard is not None
        self._guard = guard or (lambda: None)
        self.interrupted: str | None = None
        self.question: OpenQuestion | None = None
        self.on_question: Callable[[], None] = lambda: None
        self._lock = trio.Lock()

    def set_question(self, question: OpenQuestion | None) -> None:
        self.question = question
        self.on_question()

    async def move(self, transition: Callable[[Thread], Thread]) -> Thread:
        """Applies a transition to the current thread. Raises what the transition raises."""

        def apply() -> Thread:
            self._guard()
            self.thread = transition(self.thread)
            return self.thread

        async with self._lock:
            return await trio.to_thread.run_sync(apply)

    async def commit(self, queue: CommitQueue, prepare: Callable[[Thread], M]) -> M:
        """Commits what `prepare` makes of the current thread. Raises what these raise."""
        try:
            self._lock.acquire_nowait()  # without a turn of the loop
        except trio.WouldBlock:
            await self._lock.acquire()
        try:
            self._guard()
            done = await queue.commit(lambda: prepare(self.thread))
            self.thread = done.moved
            return done
        finally:
            self._lock.release()

    async def while_unreachable(self, call: Callable[[], T]) -> T:
        """Runs a blocking call; on a shared store again while a server does not answer."""
        while True:
            try:
                return await blocking(call)
            except Unreachable:
                if not self.is_shared:
                    raise
            await trio.sleep(PAUSE_S)


def unreachable(error: BaseException | None) -> bool:
    """Returns whether an error is, holds or was caused by Unreachable."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(unreachable, error.exceptions))
    return isinstance(error, Unreachable) or (error is not None and unreachable(error.__cause__))


async def end_programs(head: ThreadHead, done: trio.Event) -> None:
    """Ends the programs of a cancelled run that waits for a server, so that it is not done soon."""
    with trio.move_on_after(GRACE_S):
        await done.wait()
    if not done.is_set():
        end = partial(end_orphans, head.thread)
        limiter = trio.CapacityLimiter(1)
        await trio.to_thread.run_sync(end, limiter=limiter)


def end_orphans(thread: Thread) -> None:
    """Ends the processes of the pending step that a killed daemon left."""
    intent = thread.pending
    if intent is not None:
        subprocesses.end_orphans(intent["run"], intent["pid"], intent["pidStart"])
