"""Which threads this daemon runs: a task each, with a limit on how many run at once.

A thread that another one called runs inside its caller's task and takes no place of its own; it
is known here all the same, so that it can be waited for and cancelled by itself. A thread that
fails, even by a bug, is suspended and logged; it takes nothing else with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import trio

from casfs import threads
from casfs.errors import CasfsError, Conflict
from casfs.store import Store
from casfs.system.log import Log
from casfs.threads import RUNNING, Thread
from engine.blocking import blocking
from engine.llm.llm_extractor import Extractor
from engine.moderator.decision import Evaluator
from engine.runtime.step_cache import SingleFlight
from engine.runtime.thread_head import ThreadHead, end_orphans, workspace
from engine.runtime.thread_run import ThreadRun
from engine.runtime.workspace import Workspaces
from engine.threads import call_stack, transitions


@dataclass
class Task:
    """A thread that is being run. `over`: what cancelled it has ended it in the store."""

    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    done: trio.Event = field(default_factory=trio.Event)
    over: trio.Event = field(default_factory=trio.Event)
    hold: ThreadHead | None = None


class Supervisor:
    def __init__(
        self,
        store: Store,
        env: Mapping[str, str],
        log: Log,
        limit: int,
        workspaces: Workspaces,
        judge: Evaluator,
        extractor: Extractor | None = None,
    ) -> None:
        self._extractor = extractor
        self._store = store
        self._env = env
        self._log = log
        self._slots = trio.CapacityLimiter(limit)
        self._workspaces = workspaces
        self._judge = judge
        self._turns = SingleFlight()
        self._tasks: dict[str, Task] = {}
        self.nursery: trio.Nursery

    @property
    def running(self) -> list[str]:
        """Threads that run or wait for a place, those that others called included."""
        return sorted(self._tasks)

    def hold(self, id: str) -> ThreadHead | None:
        """The hold of whoever runs the thread now."""
        task = self._tasks.get(id)
        return task.hold if task else None

    async def carry_on(self) -> None:
        """Launch every thread whose head says `running`, but those that others will."""
        found = await blocking(lambda: threads.list_threads(self._store))
        known = {thread.id: thread for thread in found}
        for thread in found:
            if thread.status == RUNNING and not _is_called(thread, known):
                self.launch(thread.id)

    def launch(self, id: str) -> None:
        self._tasks[id] = Task()
        self.nursery.start_soon(self._run, id, self._tasks[id])

    async def nest(self, child: Thread) -> Thread:
        """Run a thread for the one that called it, until it rests."""
        while (other := self._tasks.get(child.id)) is not None:
            await other.done.wait()
        task = self._tasks[child.id] = Task()
        try:
            with task.scope:
                await self._guarded(child.id, task)
        finally:
            self._finish(child.id, task)
        if task.scope.cancelled_caught:
            await task.over.wait()
        return await blocking(lambda: threads.get(self._store, child.id))

    async def wait(self, id: str) -> Thread:
        """Until the thread rests. Raises NotFound."""
        while (task := self._tasks.get(id)) is not None:
            await task.done.wait()
        return await blocking(lambda: threads.get(self._store, id))

    async def cancel(self, id: str) -> None:
        """End a thread, what runs for it, and the threads that it called.

        Raises NotFound, Conflict.
        """
        task = self._tasks.get(id)
        try:
            if task is not None:
                task.scope.cancel()
                await task.done.wait()
            await blocking(lambda: self._end(id))
        finally:
            if task is not None:
                task.over.set()

    def _end(self, id: str) -> None:
        thread = threads.get(self._store, id)
        found = [thread, *call_stack.open_children(self._store, thread)]
        transitions.cancel(self._store, thread)
        for one in found:
            end_orphans(one)
            workspace(self._store, one, self._workspaces).remove()

    async def _run(self, id: str, task: Task) -> None:
        try:
            with task.scope:
                async with self._slots:
                    await self._guarded(id, task)
        finally:
            self._finish(id, task)

    def _finish(self, id: str, task: Task) -> None:
        if self._tasks.get(id) is task:  # it may have been resumed already
            del self._tasks[id]
        task.done.set()

    async def _guarded(self, id: str, task: Task) -> None:
        """Run a thread from where its head stands; whatever that raises stays here."""
        try:
            run = await blocking(lambda: self._run_of(threads.get(self._store, id)))
            task.hold = run.hold
            await run()
        except Conflict as error:
            self._log("conflict", thread=id, error=str(error))
        except Exception as error:
            fault = f"internal error: {error!r}"
            self._log("failed", thread=id, error=repr(error))
            with suppress(CasfsError, KeyError):
                await blocking(lambda: self._lay_to_rest(id, fault))

    def _run_of(self, thread: Thread) -> ThreadRun:
        shared = (self._workspaces, self._turns, self._judge, self.nest)
        return ThreadRun(self._store, thread, self._env, self._log, *shared, self._extractor)

    def _lay_to_rest(self, id: str, reason: str) -> None:
        now = threads.get(self._store, id)
        if now.status == RUNNING:
            transitions.suspend(self._store, now, reason)


def _is_called(thread: Thread, known: Mapping[str, Thread]) -> bool:
    """Will its caller go on with it?"""
    caller = known.get(thread.record.get("parent") or "")
    if caller is None or caller.status != RUNNING:
        return False
    return thread.id in (caller.record["intent"] or {}).get("calls", ())
