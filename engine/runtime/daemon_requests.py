"""The daemon's operations: start, fork, resume, suspend, cancel, label, compact, wait, checkpoint,
preview, status.

Each takes the members of a request and returns those of an answer, or raises an error of
`casfs.errors`. Every change of a thread from outside goes through here, so that it is serialised
with the thread's run.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import trio

from casfs.checkpoints import revisions
from casfs.checkpoints.checkpoint import Checkpoint
from casfs.checkpoints.create import create_of_state
from casfs.digest import NodeHash
from casfs.errors import Conflict
from casfs.store.store import Store
from casfs.threads import sessions, threads
from casfs.threads.state import says
from casfs.threads.threads import RUNNING, Thread, ThreadId
from engine import content
from engine.blocking import blocking
from engine.processes import containment
from engine.runtime import compaction, preview, stop_thread
from engine.runtime.compaction import CompactionInput, Summary
from engine.runtime.supervisor import Supervisor
from engine.runtime.thread_config import redacting_store
from engine.runtime.thread_head import ThreadHead
from engine.runtime.thread_requests import ForkRequest, ResumeRequest, StartRequest, ThreadRequests
from engine.threads import (
    agent_binding,
    history,
    labels,
    role_agents,
    transitions,
)
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import SUMMARISER

Answer = dict[str, Any]


class DaemonApi:
    def __init__(self, store: Store, env: Mapping[str, str], supervisor: Supervisor) -> None:
        self._store = store
        self._env = env
        self._supervisor = supervisor
        self._requests = ThreadRequests(store, env, supervisor)
        self._previews = trio.Lock()  # each holds a copy of a workspace
        self._known: dict[str, Callable[..., Awaitable[Answer]]] = {
            "status": self._status,
            "start": self._start,
            "fork": self._fork,
            "resume": self._resume,
            "cancel": partial(self._stop, stop_thread.cancel),
            "suspend": partial(self._stop, stop_thread.suspend),
            "label": self._label,
            "compact": self._compact,
            "wait": self._wait,
            "redact": self._redact,
            "checkpoint": self._checkpoint,
            "preview": self._preview,
        }

    def find(self, op: object) -> Callable[..., Awaitable[Answer]] | None:
        return self._known.get(op) if isinstance(op, str) else None

    async def _status(self) -> Answer:
        support = containment.support()
        held = {"method": support.method, "limits": support.holders}
        return {"pid": os.getpid(), **self._supervisor.status(), "containment": held}

    async def _start(self, **members: Any) -> Answer:
        """`members`: of StartRequest."""
        request = StartRequest(**members)
        thread = await blocking(partial(self._requests.start, request))
        self._supervisor.lend(thread.id, request.lent)
        # The one with the same idempotency key may have begun, or be over.
        is_new = thread.status == RUNNING and thread.pending is None
        if is_new and not self._supervisor.has_task(thread.id):
            self._supervisor.launch(thread.id)
        return {"id": thread.id, "start": thread.record["start"]}

    async def _fork(self, **members: Any) -> Answer:
        """`members`: of ForkRequest."""
        request = ForkRequest(**members)
        forks = await blocking(partial(self._requests.fork, request))
        for thread in forks:
            self._supervisor.lend(thread.id, request.lent)
            self._supervisor.launch(thread.id)
        ids = [thread.id for thread in forks]
        record = forks[0].record
        origin = record["fork"] or {}
        return {"id": ids[0], "ids": ids, "start": record["start"], **origin}

    async def _resume(self, **members: Any) -> Answer:
        """`members`: of ResumeRequest."""
        request = ResumeRequest(**members)
        await blocking(partial(self._requests.check_question, request))
        if request.answers_only:
            answer = request.input or ""
            if await self._supervisor.answer(request.id, answer, request.question):
                return {"id": request.id}
        if request.agents or request.every:
            await blocking(partial(self._requests.check_replacements, request))
            await self._supervisor.end_waiting(request.id)
        outermost = await blocking(partial(self._requests.resume, request))
        self._supervisor.lend(outermost.id, request.lent)
        self._supervisor.launch(outermost.id)
        return {"id": request.id}

    async def _stop(self, action: stop_thread.Action, id: ThreadId, **options: str) -> Answer:
        head = self._supervisor.head(id)
        if action is stop_thread.suspend and head and head.question:  # its process stays
            raise Conflict(f"thread {id} {says(head.thread)} already")
        await self._supervisor.stop(id, partial(action, **options))
        return {"id": id}

    async def _label(self, id: ThreadId, **members: Any) -> Answer:
        """`members`: of `labels.set_labels`."""
        head = self._supervisor.head(id)
        if head is None:
            await blocking(partial(labels.set_idle, self._store, id, **members))
        else:
            await head.move(partial(labels.set_labels, self._store, **members))
        return {"id": id}

    async def _compact(
        self, id: ThreadId, text: str | None = None, agent: dict[str, Any] | None = None
    ) -> Answer:
        """Compacts all steps so far: into `text`, or by an agent {name, config, version}."""
        thread = await blocking(partial(threads.get, self._store, id))
        sessions.refuse(thread)
        store = await blocking(partial(redacting_store, self._store, thread, self._env))
        if text is not None:
            summary = await blocking(partial(compaction.put_summary, store, text))
        elif agent is not None:
            names = role_agents.names(self._store, self._env)
            bound = names.bindings({SUMMARISER: agent})
            summary = await self._summarise(store, thread, bound)
        else:
            raise Conflict("a summary needs a text, or an agent that writes it")
        # A running thread's head is moved by its run alone.
        head = self._supervisor.head(id)
        if head is None:
            current_thread = await blocking(partial(threads.get, self._store, id))
            if self._supervisor.leases and current_thread.status == RUNNING:
                raise Conflict(f"thread {id} runs on another machine; suspend it first")
            head = ThreadHead(current_thread)
        # As of before it was summarised: a thread that has gone on meanwhile is a conflict.
        compact = partial(
            transitions.compact,
            self._store,
            summary=summary.content,
            head=thread.hash,
            tokens=summary.tokens,
        )
        await head.move(compact)
        return {"id": id, "summary": summary.content}

    async def _summarise(
        self, store: Store, thread: Thread, bound: Mapping[str, Binding]
    ) -> Summary:
        # In addition to the secrets of the thread those that the config of this agent names, which
        # may be none of the thread's.
        redacting = await blocking(partial(agent_binding.redacting_store, store, bound, self._env))

        def prepare() -> tuple[NodeHash, CompactionInput]:
            packages = agent_binding.resolve(bound)
            with redacting.batch() as batch:
                agent = agent_binding.put_agents(batch, packages, bound)[SUMMARISER]
            past = history.prompt_history(store, thread)
            task = content.text(store, threads.start(store, thread).payload["input"])
            step = past.steps[-1].index + 1 if past.steps else 1
            return agent, CompactionInput(
                thread.id, step, run=secrets.token_hex(16), task=task, history=past
            )

        agent, compaction_input = await blocking(prepare)
        return await compaction.summarise(redacting, agent, compaction_input, env=self._env)

    async def _checkpoint(self, name: str, tree: str, message: str = "") -> Answer:
        """Makes a checkpoint of a stored tree; `tree`: a revision."""

        def create() -> Checkpoint:
            # Only for NotFound: a hidden tree must not be named. Then the full state is recorded,
            # with what stays here.
            revisions.resolve(self._store.shown(), tree)
            state = revisions.resolve(self._store, tree).state
            return create_of_state(self._store, name, state=state, message=message)

        checkpoint = await blocking(create)
        return {"name": checkpoint.name, "id": checkpoint.id, "hash": checkpoint.hash}

    async def _preview(self, id: ThreadId) -> Answer:
        """What the command would change that a thread asks permission for."""
        thread = await blocking(partial(threads.get, self._store, id))
        services = self._supervisor.services
        if self._previews.locked():
            raise Conflict("another command is being tried; try this one when that is done")
        async with self._previews:
            return asdict(await preview.run(services, thread, self._supervisor.env_of(id)))

    async def _redact(self, text: str) -> Answer:
        """What is purged is redacted in what running threads record from now on."""
        return {"threads": self._supervisor.redact(text)}

    async def _wait(self, id: ThreadId) -> Answer:
        """Answers when the thread has ended or is suspended."""
        thread = await self._supervisor.wait(id)
        return {"id": id, "status": thread.status}
