"""A thread's run: its steps, one after the other, until it ends or is suspended.

Before an agent starts, its pending step (intent) is durable in the thread's head; when it is
done, the step, the move of the head and the next intent are one transaction
(`engine.runtime.step_commit`). So after a crash at any instant the head says exactly what was
finished and what was pending, no step is recorded twice, and at most the pending step is run
again: first its orphaned processes are ended and its workspace is reset. A decision is computed
before its step is committed; it is pure, so computing it again gives the same.

A failing agent suspends the thread with the reason, once the role's policy allows no more
attempts; it never ends the thread. One step is `engine.runtime.step_runner`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from casfs.errors import CasfsError
from casfs.scanner.private_values import MIN_LINE_CHARS
from casfs.threads.threads import ENDED, Thread
from casfs.workspaces import ignored_files
from engine.blocking import blocking
from engine.runtime import loaded_thread
from engine.runtime.calls import ThreadRunner
from engine.runtime.loaded_thread import LoadedThread
from engine.runtime.run_services import RunServices
from engine.runtime.step_runner import StepRunner, suspend
from engine.runtime.thread_head import Guard, ThreadHead
from engine.runtime.workspace import thread_workspace
from engine.threads.suspension import Suspension


class ThreadRun:
    """Runs one thread from its head. Belongs to one trio task."""

    def __init__(
        self,
        services: RunServices,
        thread: Thread,
        env: Mapping[str, str],
        run_child: ThreadRunner | None = None,
        guard: Guard | None = None,
    ) -> None:
        """`env`: of agents; `run_child`: of called threads, by default in this task; `guard`: as
        `ThreadHead`."""
        self.head = ThreadHead(thread, guard)
        self._services = services
        self._env = env
        self._run_child = run_child or self._run_child_inline
        self._workspace = thread_workspace(services.store, thread, services.workspaces)
        self._loaded: LoadedThread | None = None
        self._redacted: list[str] = []  # texts that were purged while it runs

    async def __call__(self) -> Thread:
        """Runs until the thread ends or is suspended; returns it. Raises Conflict where another
        writer moved the head."""
        try:
            await self._run_steps()
        except self.head.lost_errors:
            # The thread may be another daemon's by now: neither its head nor its files are ours.
            raise
        except CasfsError as error:  # damage in the store, a full disk
            await blocking(self._workspace.remove)  # may be what fills the disk
            await self._suspend(str(error))
        if self.head.thread.status == ENDED:
            await blocking(self._workspace.remove)
            token = self.head.thread.record.get("ignored")
            await blocking(partial(ignored_files.release, self._services.store, token))
        return self.head.thread

    async def _run_steps(self) -> None:
        steps = StepRunner(await blocking(self._load))
        intent = await steps.begin()
        while intent is not None:
            intent = await steps.run(intent)

    def _load(self) -> LoadedThread:
        loaded = loaded_thread.load(
            self._services, self.head, self._workspace, env=self._env, run_child=self._run_child
        )
        # In this order: a text that is purged meanwhile is added by `redact`, or here.
        self._loaded = loaded
        loaded.config.secrets.add_private(self._redacted)
        return loaded

    def redact(self, text: str) -> None:
        """Redacts a text in all that is recorded from now on; of several lines also the long ones
        alone."""
        lines = (line.strip() for line in text.splitlines())
        self._redacted += [text, *(line for line in lines if len(line) >= MIN_LINE_CHARS)]
        if self._loaded is not None:
            self._loaded.config.secrets.add_private(self._redacted)

    async def _suspend(self, reason: str) -> None:
        # Those of the loaded thread redact its secrets, which a reason may hold.
        source = self._services if self._loaded is None else self._loaded
        why = Suspension(reason)
        await suspend(self.head, source.store, source.log, self._services.workspaces, why=why)

    async def _run_child_inline(self, child: Thread) -> Thread:
        return await ThreadRun(self._services, child, self._env)()
