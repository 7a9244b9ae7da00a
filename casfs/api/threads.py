"""Threads of a store: read them here, start and steer them through the daemon."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeAlias

from casfs.api.actions import NO_ENV
from casfs.api.trees import Tree, Trees
from casfs.api.values import Agent, Step, Thread, from_ms
from casfs.backend.derived import version_of
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import lookup, threads
from casfs.threads.state import state
from casfs.threads.threads import StepNode, ThreadId

NO_AGENTS: Mapping[str, Agent] = {}
STARTS_AGENTS = ("start", "fork", "resume")
Steps: TypeAlias = list[Step]  # `Threads.list` hides the built-in


class Threads:
    """The threads of a store; a thread is one run of a workflow.

    An `id` may be a part of it, a name or `@last`. Reading, `cancel` and `suspend` work without a
    daemon. The methods that run a thread (`start`, `fork`, `resume`, `wait`) raise NoDaemon where
    `casfs daemon` does not run for this store. With `in_process=True`, the first three need none:
    they run the thread here, not from async code, and return when it is over or suspended; they
    raise Refused where a daemon runs. All raise NotFound, and Conflict (ambiguous).
    """

    def __init__(self, store: Store, env: Mapping[str, str] = NO_ENV) -> None:
        """`env`: of agents that run in this process."""
        self._store = store
        self._env = env

    # -- read -----------------------------------------------------------------------------

    def list(self) -> list[Thread]:
        """Returns all threads, oldest first."""
        return [_public(thread) for thread in threads.list_threads(self._store)]

    def get(self, id: str) -> Thread:
        """Returns one thread as it stands now."""
        return _public(lookup.find(self._store, id))

    def steps(self, id: str, *, after: int = 0, last: int | None = None) -> Steps:
        """Returns the steps with an index above `after`, or the `last` of them, oldest first."""
        thread = lookup.find(self._store, id)
        return [
            self._step(node)
            for node in threads.last_steps(self._store, thread, count=last, after=after)
        ]

    def step(self, id: str, index: int) -> Step:
        """Returns the step with that index, counted from 1."""
        return self._step(threads.step_at(self._store, lookup.find(self._store, id), index))

    def follow(self, id: str, *, after: int = 0, poll_s: float = 0.1) -> Iterator[Step]:
        """Yields the steps with an index above `after`, each as soon as it is recorded; returns
        when the thread is suspended or over. Blocks; looks every `poll_s` seconds."""
        thread = lookup.find(self._store, id)
        version_now = version_of(self._store.backend)
        while True:
            version = version_now()
            thread = threads.get(self._store, thread.id)
            for node in threads.last_steps(self._store, thread, count=None, after=after):
                after = node.payload["index"]
                yield self._step(node)
            if thread.status != threads.RUNNING:
                return
            while version_now() == version:
                time.sleep(poll_s)

    # -- move -----------------------------------------------------------------------------

    def start(
        self,
        workflow: str,
        input: str,
        agents: Mapping[str, Agent] = NO_AGENTS,
        *,
        workspace: Tree | Literal[False] | None = None,
        max_steps: int = 100,
        max_tokens: int | None = None,
        max_time: timedelta | None = None,
        on_limit: Literal["suspend", "end"] = "suspend",
        allow_secret: bool = False,
        name: str | None = None,
        idempotency_key: str | None = None,
        in_process: bool = False,
    ) -> Thread:
        """Starts a thread of `workflow` on the task `input`; returns at once.

        `agents`: the agents of roles; others have the workflow's default agents. `workspace`: the
        tree that agents work on a copy of; None is the empty tree, False records no files.
        Spending more than `max_tokens` or `max_time` suspends the thread; `on_limit`: what more
        than `max_steps` does. `allow_secret` records what looks like a secret as it is. `name` may
        stand for its id. A second call with the same `idempotency_key` returns the existing thread.
        Raises Invalid (a config), Conflict (the name is taken), Refused (an agent's version).
        """
        answer = self._ask(
            "start",
            in_process,
            workflow=workflow,
            input=input,
            agents=_bindings(agents),
            workspace=workspace and Trees(self._store).resolve(workspace),
            max_steps=max_steps,
            tokens=max_tokens,
            wall_ms=None if max_time is None else max(1, max_time // timedelta(milliseconds=1)),
            key=idempotency_key,
            on_limit=on_limit,
            allow_secret=allow_secret,
            name=name,
        )
        return self.get(answer["id"])

    def fork(
        self,
        id: str,
        *,
        at: int | str | None = None,
        agents: Mapping[str, Agent] | None = None,
        max_steps: int | None = None,
        workflow: str | None = None,
        name: str | None = None,
        in_process: bool = False,
    ) -> Thread:
        """Starts a new thread that goes on after step `at` (the last), or "STEP.TURN", of this one,
        on the workspace as it was then. `agents` replaces those of some roles, `max_steps` its
        limit, `workflow` its workflow."""
        limits = {"max_steps": max_steps, "workflow": workflow, "name": name}
        bound = _bindings(agents or {})
        answer = self._ask("fork", in_process, id=self._id(id), at=at, agents=bound, **limits)
        return self.get(answer["id"])

    def resume(
        self,
        id: str,
        input: str | None = None,
        *,
        hint: str | None = None,
        agents: Mapping[str, Agent] | None = None,
        in_process: bool = False,
    ) -> Thread:
        """Resumes a suspended thread; `input` answers its question, `hint` is a text for the next
        attempt at a failed step, `agents` play their roles from now on."""
        full = self._id(id)
        bound = _bindings(agents or {})
        self._ask("resume", in_process, id=full, input=input, hint=hint, agents=bound)
        return self.get(full)

    def cancel(self, id: str) -> Thread:
        """Ends a thread with return code 130, with all processes that run for it."""
        return self._stop(id, "cancel")

    def suspend(self, id: str) -> Thread:
        """Suspends a running thread and those that it called; `resume` runs its pending step
        again."""
        return self._stop(id, "suspend")

    def wait(self, id: str) -> Thread:
        """Blocks until the thread is suspended or over."""
        full = self._id(id)
        self._ask("wait", id=full)
        return self.get(full)

    def _stop(self, id: str, op: str) -> Thread:
        from engine.runtime import stop_thread

        full = self._id(id)
        stop_thread.request(self._root(), full, op)
        return self.get(full)

    def _id(self, text: str) -> ThreadId:
        return lookup.find(self._store, text).id

    def _root(self) -> Path:
        return self._store.root

    def _ask(self, op: str, in_process: bool = False, **arguments: Any) -> Any:
        if in_process:
            from engine.runtime.in_process import request

            return request(self._store, self._env, op=op, arguments=arguments)
        if op in STARTS_AGENTS:
            return daemon_socket.request_of_agents(self._root(), self._env, op, **arguments)
        return daemon_socket.request(self._root(), op, **arguments)

    # -- values ---------------------------------------------------------------------------

    def _step(self, node: StepNode) -> Step:
        payload = node.payload
        content = self._store.node(payload["content"], "content").payload
        return Step(
            index=payload["index"],
            role=payload["role"],
            output=content["text"],
            meta=payload["meta"],
            hash=node.hash,
            detail=payload["detail"],
            artifacts=tuple(content["artifacts"]),
            workspace=payload["workspace"],
            changes=payload["changes"],
            started_at=from_ms(payload["startedAt"]),
            completed_at=from_ms(payload["completedAt"]),
            cached="cached" in payload,
        )


def _public(thread: threads.Thread) -> Thread:
    """From the head alone, so a thread whose nodes are damaged is listed like any other."""
    record = thread.fields
    spent = record.get("spent") or {"tokens": 0, "wallMs": 0}
    return Thread(
        id=thread.id,
        workflow=record.get("workflow", ""),
        status=state(thread),
        hash=thread.hash,
        role=(record.get("intent") or {}).get("role"),
        updated_at=from_ms(record.get("updatedAt", 0)),
        reason=record.get("reason"),
        question=record.get("question"),
        return_code=record.get("returnCode"),
        parent=record.get("parent"),
        tokens=spent["tokens"],
        running_time=timedelta(milliseconds=spent["wallMs"]),
    )


def _bindings(agents: Mapping[str, Agent]) -> dict[str, dict[str, Any]]:
    return {
        role: {"name": agent.name, "config": dict(agent.config), "version": agent.version}
        for role, agent in agents.items()
    }
