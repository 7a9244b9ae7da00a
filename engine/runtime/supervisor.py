"""The supervisor of running threads: a task for each, with a limit on how many run at once.

Threads above the limit are queued, first in first out. A called thread runs inside its caller's
task and does not count against the limit, so no caller waits for the queue; it is listed here all
the same, so that it can be waited for and cancelled by itself. A thread that fails, even
by a bug, is suspended and logged; other threads are not affected.

The threads of a shared store are queued in the store: `engine.runtime.leasing` starts those that
it has claimed, and ends their tasks when their leases are over.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio

from casfs.agents.cancellation import reraise_cancellation
from casfs.backend.capabilities import Lease, Leasing
from casfs.errors import CasfsError, Conflict
from casfs.store.conflict_retry import retry_on_conflict
from casfs.threads import threads
from casfs.threads.state import QUEUED, state
from casfs.threads.threads import RUNNING, SUSPENDED, Thread, ThreadId
from engine.blocking import blocking
from engine.runtime import stop_thread
from engine.runtime.calls import cancel_children
from engine.runtime.leasing import CHECK_S, ThreadLeases
from engine.runtime.run_services import RunServices
from engine.runtime.thread_head import PAUSE_S, ThreadHead, end_programs, unreachable
from engine.runtime.thread_ports import ThreadPorts
from engine.runtime.thread_run import ThreadRun
from engine.runtime.workspace import thread_workspace
from engine.threads import suspension
from engine.threads.call_stack import is_awaited
from engine.threads.suspension import Suspension

ANOTHER_QUESTION = "thread {} asks something else by now; look again"


@dataclass(eq=False)
class Task:
    """The task of a running thread. `dequeued`: it may run; `done`: the task is over; `stopped`:
    the thread was cancelled or suspended in the store after its task was cancelled; `lease`: of a
    shared store."""

    id: ThreadId
    dequeued: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    done: trio.Event = field(default_factory=trio.Event)
    stopped: trio.Event = field(default_factory=trio.Event)
    run: ThreadRun | None = None
    lease: Lease | None = None

    @property
    def head(self) -> ThreadHead | None:
        return self.run.head if self.run else None

    @property
    def asks(self) -> bool:
        """Whether its agent waits for a person: the thread is suspended."""
        return self.head is not None and self.head.question is not None


class Supervisor:
    def __init__(
        self,
        services: RunServices,
        env: Mapping[str, str],
        limit: int,
    ) -> None:
        """`env`: of agents; `limit`: threads that run at once."""
        store = services.store
        log = services.log
        self.leases: ThreadLeases | None = None
        if isinstance(store.backend, Leasing):
            self.leases = ThreadLeases(store, store.backend.leases(secrets.token_hex(16)), log)
        self.services = services
        self._store = store
        self._env = env
        self._ports = ThreadPorts()
        self._lent: dict[ThreadId, Mapping[str, str]] = {}  # variables, in memory alone
        self._log = log
        self._limit = limit
        self._tasks: dict[ThreadId, Task] = {}
        self._queue: list[Task] = []  # in the order in which they will run
        self._running: list[Task] = []  # those that count against the limit
        self._stops = 0  # under way
        self._changed = trio.Event()  # of `_tasks`: set and replaced with every change
        self.nursery: trio.Nursery

    def status(self) -> dict[str, Any]:
        """Returns the limit and the ids of the threads: `running` count against the limit, `called`
        run inside their callers, `queued` are in the order in which they will run."""
        # A set: a thread that is resumed may have two tasks for a moment, one of which ends.
        running = {task.id for task in self._running}
        queued = [task.id for task in self._queue]
        asking = {task.id for task in self._tasks.values() if task.asks}
        called = self._tasks.keys() - running - asking - {*queued}
        return {
            "limit": self._limit,
            "running": sorted(running),
            "called": sorted(called),
            "queued": queued,
        }

    def has_task(self, id: ThreadId) -> bool:
        """Returns whether the thread runs or is queued."""
        return id in self._tasks

    def lend(self, id: ThreadId, variables: Mapping[str, str] | None) -> None:
        """Gives variables to the agents of a thread, as long as this daemon runs."""
        lacked = self.lacked(variables or {})
        if set_ones := {name: value for name, value in lacked.items() if value}:
            self._lent[id] = {**self._lent.get(id, {}), **set_ones}

    def lacked(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Returns those of the variables that the daemon's environment lacks: no other is lent."""
        return {name: value for name, value in variables.items() if not self._env.get(name)}

    def env_of(self, id: ThreadId) -> Mapping[str, str]:
        """Returns the environment of a thread's agents."""
        return {**self._env, **self._lent[id]} if id in self._lent else self._env

    @property
    def extracts(self) -> bool:
        """Whether a model finds the meta of an output, which may then be free text."""
        return self.services.extractor is not None

    def head(self, id: ThreadId) -> ThreadHead | None:
        """Returns the head of a running thread."""
        task = self._tasks.get(id)
        return task.head if task else None

    async def launch_all(self) -> None:
        """Launches every thread whose head says `running`, but for the children of others: first
        those that had begun, then the queued ones in the order in which they were queued."""
        if self.leases:
            self.leases.launch()
            return
        running = await blocking(self._find_running)
        for thread in sorted(running, key=_launch_order):
            if not await blocking(partial(is_awaited, self._store, thread, running=True)):
                self.launch(thread.id)

    def _find_running(self) -> list[Thread]:
        return list(threads.with_field(self._store, "status", [RUNNING]))

    def launch(self, id: ThreadId) -> None:
        """Queues a thread; it runs as soon as the limit allows."""
        if self.leases:
            self.leases.launch()
            return
        self._begin(task := Task(id))
        self._queue.append(task)
        self.nursery.start_soon(self._run, task)
        self._dequeue()

    def _dequeue(self) -> None:
        while self._queue and len(self._running) < self._limit:
            self._running.append(task := self._queue.pop(0))
            task.dequeued.set()

    def start(self, lease: Lease) -> None:
        """Runs a thread that was claimed."""
        self._begin(task := Task(threads.thread_id(lease.thread), lease=lease))
        self._running.append(task)
        self.nursery.start_soon(self._run, task)

    def end(self, id: ThreadId) -> None:
        """Cancels the task of a thread whose lease is over."""
        task = self._tasks.get(id)
        if task is None:
            return
        # The run has moved the head itself, and ends without us.
        is_over = task.head is not None and task.head.thread.status != RUNNING
        if not is_over:
            task.scope.cancel()
            task.stopped.set()
            if task.head:
                self.nursery.start_soon(end_programs, task.head, task.done)

    async def run_child(self, child: Thread) -> Thread:
        """Runs a child in its caller's task, or waits for another daemon that runs it, until it
        ends or is suspended."""
        while True:
            await self._wait_for_task(child.id)
            # `take` waits until the lease is ours, or the thread has changed.
            lease = await self.leases.take(child.id) if self.leases else None
            if lease or not self.leases:
                await self._run_own(Task(child.id, lease=lease))
            thread = await blocking(partial(threads.get, self._store, child.id))
            if thread.status != RUNNING or not self.leases:
                return thread

    async def _wait_for_task(self, id: ThreadId) -> None:
        """Waits until a child has no task of its own, as it has where it was resumed by itself."""
        while (task := self._tasks.get(id)) is not None:
            # No caller waits for the queue, which may wait for the places that callers hold.
            if task in self._queue:
                self._queue.remove(task)
                task.dequeued.set()
            await task.done.wait()

    async def _run_own(self, task: Task) -> None:
        """Runs a child inside its caller's task."""
        self._begin(task)
        try:
            await self._run_in_scope(task)
        finally:
            self._finish(task)
        # It was cancelled, and its head says so only once `stopped` is set.
        if task.scope.cancelled_caught:
            await task.stopped.wait()

    async def wait(self, id: ThreadId) -> Thread:
        """Waits until no task runs the thread, and none of a caller is about to; returns it.
        Raises NotFound."""
        while True:
            changed = self._changed
            task = self._tasks.get(id)
            if task is None or task.asks:
                thread = await blocking(partial(threads.get, self._store, id))
                if thread.status != RUNNING:
                    return thread
                # One that is being stopped has no task any more before its head says so.
                if not self._stops and not await blocking(partial(self._will_go_on, thread)):
                    return thread
            with trio.move_on_after(CHECK_S if self.leases else math.inf):
                await changed.wait()

    def _will_go_on(self, thread: Thread) -> bool:
        """Returns whether a task runs the thread, or a caller of it; on a shared store one will."""
        if self.leases:
            return True
        if thread.id in self._tasks:
            return True
        above = thread.record.get("parent")
        if above is None:
            return False
        name = threads.head_name(above)
        head = self._store.heads.get(name)
        return head is not None and self._will_go_on(threads.of_head(name, head))

    async def answer(self, id: ThreadId, answer: str, hash: str | None) -> bool:
        """Gives an answer to the agent that waits for it; returns whether it has taken it. One that
        does not wait any more has ended then. `hash`: of the question that was shown, None for any.
        Raises Conflict where the agent asks another one."""
        task = self._tasks.get(id)
        question = task.head.question if task and task.head else None
        # Here, and not before: nothing comes between this and the answer.
        if question is not None and hash not in (None, question.hash):
            raise Conflict(ANOTHER_QUESTION.format(id))
        if question is not None and await question.give(answer):
            return True
        await self.end_waiting(id)
        return False

    async def end_waiting(self, id: ThreadId) -> None:
        """Ends the process that waits for a person, so that the thread can be resumed."""
        task = self._tasks.get(id)
        if task is None or task.head is None:
            return
        if task.head.question is not None:
            await task.head.question.close()
        if task.head.thread.status == SUSPENDED:
            task.scope.cancel()
            await task.done.wait()

    def redact(self, text: str) -> int:
        """Redacts a text that is purged in all that running threads record from now on; returns
        how many they are."""
        runs = [task.run for task in self._tasks.values() if task.run]
        for run in runs:
            run.redact(text)
        return len(runs)

    async def stop(self, id: ThreadId, action: stop_thread.Action) -> None:
        """Cancels the task of a thread and of its children, then cancels or suspends the thread.
        Raises NotFound, Conflict."""
        task = self._tasks.get(id)
        lease = None
        self._stops += 1
        try:
            if task is not None:
                lease = task.lease  # kept until the thread is stopped
                task.lease = None
                task.scope.cancel()
                await task.done.wait()
            detail = task and task.head and task.head.interrupted
            interrupted = [detail] if detail else []
            act = partial(action, self._store, id, self.services.workspaces, interrupted)
            await blocking(partial(retry_on_conflict, act))
        finally:
            if task is not None:
                task.stopped.set()
            self._give_up(lease)
            self._stops -= 1
            self._note_change()

    async def _run(self, task: Task) -> None:
        try:
            await self._run_in_scope(task)
        finally:
            for tasks in (self._queue, self._running):
                if task in tasks:
                    tasks.remove(task)
            self._dequeue()
            self._finish(task)

    async def _run_in_scope(self, task: Task) -> None:
        with task.scope:
            if task in self._queue:
                await task.dequeued.wait()
            await self._run_contained(task)
        # Cancelled by `end`, as its lease is over: its files here are not needed. `stop` takes the
        # lease from the task first; what it does then knows whether the files are needed.
        if task.head and task.lease and task.scope.cancelled_caught and task.stopped.is_set():
            with suppress(CasfsError):  # it may go on elsewhere
                workspace = thread_workspace(
                    self._store, task.head.thread, self.services.workspaces
                )
                await blocking(workspace.remove)

    def _begin(self, task: Task) -> None:
        self._tasks[task.id] = task
        self._note_change()

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _finish(self, task: Task) -> None:
        if self._tasks.get(task.id) is task:  # it may have been resumed already
            del self._tasks[task.id]
            self._ports.give_back(task.id)
        self._give_up(task.lease)
        task.done.set()
        self._note_change()

    def _note_question(self, task: Task) -> None:
        """While its agent waits for a person, a task leaves its place to another; with the answer
        it goes on at once."""
        if task.asks and task in self._running:
            self._running.remove(task)
            self._dequeue()
        elif not task.asks and not task.done.is_set() and task not in self._running:
            self._running.append(task)
        self._note_change()

    def _give_up(self, lease: Lease | None) -> None:
        if self.leases and lease:
            self.leases.give_up(lease)

    async def _run_contained(self, task: Task) -> None:
        """Runs a thread from its head; contains all errors."""
        id = task.id
        try:
            task.run = await blocking(partial(self._thread_run, task))
            task.run.head.on_question = partial(self._note_question, task)
            await task.run()
        except Conflict as error:
            self._log("conflict", thread=id, error=str(error))
        except BaseException as error:
            reraise_cancellation(error)
            if task.lease and unreachable(error):
                self._log("unreachable", thread=id, error=str(error))
                await trio.sleep(PAUSE_S)
                return
            fault = f"internal error: {error!r}"
            self._log("failed", thread=id, error=repr(error))
            with suppress(CasfsError, KeyError):
                await blocking(partial(self._suspend, task, fault))

    def _thread_run(self, task: Task) -> ThreadRun:
        if self.leases and task.lease:
            thread = threads.of_head(task.lease.thread, task.lease.head)
            guard = partial(self.leases.check, task.lease)
        else:
            thread = threads.get(self._store, task.id)
            guard = None
        env = {**self.env_of(task.id), **self._ports.take(task.id)}
        return ThreadRun(self.services, thread, env, run_child=self.run_child, guard=guard)

    def _suspend(self, task: Task, reason: str) -> None:
        thread = threads.get(self._store, task.id)
        is_own = task.lease is None or thread.record.get("lease") == task.lease.token
        if thread.status == RUNNING and is_own:
            # As after any failure: the next attempt calls them anew.
            cancel_children(self._store, thread, self.services.workspaces)
            suspension.suspend(self._store, thread, Suspension(reason))


def _launch_order(thread: Thread) -> tuple[bool, int, ThreadId]:
    return state(thread) == QUEUED, thread.fields.get("updatedAt", 0), thread.id
