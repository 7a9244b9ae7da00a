"""Commit queue: one worker thread builds and commits the steps of all running threads in groups.

A task hands over the function that prepares its step, and waits. A worker thread prepares what is
queued, publishes the group in one transaction (`casfs.backend.derived.publish_group`) and wakes the
tasks; what arrived meanwhile is the next group. So a group costs two thread switches, however many
steps it has: with a thread for each step they compete for the interpreter lock, which costs more
than the steps. No timer. No task is woken before the commit of its step is durable. The queue is
bounded by the running threads: each waits for its own step.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import outcome
import trio

from casfs.backend.derived import publish_group
from casfs.store.write_batch import Batch

GROUP_MAX_STEPS = 16
GROUP_MAX_S = 0.005  # after which no further step is prepared for a group


class Committable(Protocol):
    @property
    def batch(self) -> Batch: ...


C = TypeVar("C", bound=Committable)


class _Job:
    def __init__(self, prepare: Callable[[], Any]) -> None:
        self.prepare = prepare
        self.task = trio.lowlevel.current_task()
        self.token = trio.lowlevel.current_trio_token()
        self.result: outcome.Outcome[Any]


class CommitQueue:
    """Used by tasks of any trio loop. It needs no closing: an idle queue has no thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: deque[_Job] = deque()
        self._has_thread = False

    async def commit(self, prepare: Callable[[], C]) -> C:
        """Calls `prepare` in the committing thread, and commits the batch of what it returns;
        returns that once it is durable. Cannot be cancelled meanwhile. Raises what `prepare` and
        `Batch.commit` raise."""
        await trio.lowlevel.checkpoint_if_cancelled()
        with self._lock:
            self._jobs.append(_Job(prepare))
            starts = not self._has_thread
            self._has_thread = True
        if starts:
            trio.lowlevel.start_thread_soon(self._run, lambda _: None, "commit queue")
        prepared: C = await trio.lowlevel.wait_task_rescheduled(
            lambda _: trio.lowlevel.Abort.FAILED
        )
        return prepared

    def _run(self) -> None:
        while group := self._prepared():
            ready = {
                job: job.result.value for job in group if isinstance(job.result, outcome.Value)
            }
            for job, error in zip(ready, _commit([*ready.values()]), strict=True):
                if error is not None:
                    job.result = outcome.Error(error)
            _wake(group)

    def _prepared(self) -> list[_Job]:
        """Prepares the next group and returns it; gives up the thread where nothing is queued."""
        group: list[_Job] = []
        end = time.monotonic() + GROUP_MAX_S
        while len(group) < GROUP_MAX_STEPS and (not group or time.monotonic() < end):
            with self._lock:
                if not self._jobs:
                    self._has_thread = bool(group)
                    break
                job = self._jobs.popleft()
            job.result = outcome.capture(job.prepare)
            group.append(job)
        return group


def _commit(prepared: Sequence[Committable]) -> Sequence[BaseException | None]:
    """Commits each, in one transaction where the backend can; returns the error of each."""
    if not prepared:
        return []
    try:
        group = [member.batch.publication() for member in prepared]
        results = publish_group(prepared[0].batch.backend, group)
        for committable, result in zip(prepared, results, strict=True):
            committable.batch.conclude(result)
    except BaseException as error:  # a bug: it must not end the thread
        return [error] * len(prepared)
    return [result if isinstance(result, BaseException) else None for result in results]


def _wake(group: list[_Job]) -> None:
    for token in dict.fromkeys(job.token for job in group):
        token.run_sync_soon(_wake_tasks, [job for job in group if job.token is token])


def _wake_tasks(jobs: list[_Job]) -> None:
    for job in jobs:
        trio.lowlevel.reschedule(job.task, job.result)
