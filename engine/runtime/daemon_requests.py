"""The daemon's operations: start, fork, resume, suspend, cancel, compact, wait, checkpoint,
replay, status.

Each takes the members of a request and returns those of an answer, or raises an error of
`casfs.errors`. Every change of a thread from outside goes through here, so that it is serialised
with the thread's run.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, Literal

import trio

from casfs.agents.notation import AgentSpec
from casfs.checkpoints import revisions
from casfs.checkpoints.checkpoint import Checkpoint
from casfs.checkpoints.create import create_of_state
from casfs.digest import NodeHash, TreeHash
from casfs.errors import Conflict, Refused
from casfs.store.nodes import directory
from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.threads import RUNNING, Thread, ThreadId
from casfs.trees.recorded_state import RecordedState
from engine import content
from engine.agents.loader import TURN_TREES
from engine.blocking import blocking
from engine.moderator.evaluator_pool import WorkerPool
from engine.processes import containment
from engine.runtime import compaction, stop_thread
from engine.runtime.compaction import CompactionInput, Summary
from engine.runtime.supervisor import Supervisor
from engine.runtime.thread_config import redacting_store, variable_names
from engine.runtime.thread_head import ThreadHead
from engine.secrets import definitions
from engine.threads import (
    agent_binding,
    forking,
    history,
    lifecycle,
    role_agents,
    suspension,
    transitions,
)
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import SUMMARISER, CompactPolicy, ThreadRequest
from engine.threads.record import ALLOWS_SECRETS, SUSPEND_ON_LIMIT, Budget
from engine.threads.reroute import RouteComparison, compare_routes
from engine.threads.role_agents import AgentNames
from engine.workflow import registry as workflows

Answer = dict[str, Any]
MAX_REPLAYED_STEPS = 1000


class VariablesLacking(Exception):
    """Configs of agents name variables that the daemon does not have and the client may lend."""

    def __init__(self, names: list[str]) -> None:
        self.names = names


class DaemonApi:
    def __init__(self, store: Store, env: Mapping[str, str], supervisor: Supervisor) -> None:
        self._store = store
        self._env = env
        self._supervisor = supervisor
        self._known: dict[str, Callable[..., Awaitable[Answer]]] = {
            "status": self._status,
            "start": self._start,
            "fork": self._fork,
            "resume": self._resume,
            "cancel": partial(self._stop, stop_thread.cancel),
            "suspend": partial(self._stop, stop_thread.suspend),
            "compact": self._compact,
            "wait": self._wait,
            "redact": self._redact,
            "checkpoint": self._checkpoint,
            "replay": self._replay,
        }

    def find(self, op: object) -> Callable[..., Awaitable[Answer]] | None:
        return self._known.get(op) if isinstance(op, str) else None

    async def _status(self) -> Answer:
        held = {"method": containment.support().method, "limits": containment.support().holders}
        return {"pid": os.getpid(), **self._supervisor.status(), "containment": held}

    async def _start(
        self,
        workflow: str,
        input: str,
        agents: dict[str, Any],
        workspace: TreeHash | Literal[False] | None = None,
        recorded: dict[str, str] | None = None,
        ignored: str | None = None,
        max_steps: int = lifecycle.MAX_STEPS,
        tokens: int | None = None,
        wall_ms: int | None = None,
        compact: dict[str, Any] | None = None,
        key: str | None = None,
        on_limit: str = SUSPEND_ON_LIMIT,
        name: str | None = None,
        every: dict[str, Any] | None = None,
        profiles: dict[str, AgentSpec] | None = None,
        turn_trees: bool = False,
        allow_secret: bool = False,
        lent: dict[str, str] | None = None,
    ) -> Answer:
        """`agents`: by role, {name, config, version}; `every`: of all others; `workspace`: root of
        a tree, None for the empty one, False for no workspace; `recorded`: with it, what else was
        recorded of the directory (`RecordedState.fields`); `ignored`: as of ThreadRequest;
        `compact`: {above, agent}; `profiles`: in addition to those of `config.toml`; `lent`: as
        `_with_lent`."""

        def create() -> tuple[Thread, bool]:
            flow = workflows.load(self._store, workflows.find_trusted(self._store, workflow))
            names = role_agents.names(self._store, self._env, profiles or {})
            defaults = workflows.default_agents(self._store, workflow)
            specs = names.for_roles(flow.roles, agents, every, defaults)
            bound = names.bindings(specs, **({TURN_TREES: True} if turn_trees else {}))
            if not allow_secret:
                self._refuse_secrets(bound, name)
            state = None
            if workspace is not False:
                state = RecordedState.of_fields(workspace or self._empty_tree(), recorded or {})
            full = None if state is None else state.full
            env = self._with_lent(agent_binding.variable_names(bound), lent)
            role_agents.check_programs(self._store, flow, bound=bound, root=full, env=env)
            request = ThreadRequest(
                flow.hash,
                input,
                agents=bound,
                workspace=state,
                max_steps=max_steps,
                budget=Budget(tokens, wall_ms),
                compact=_compact(compact, names),
                key=key,
                on_limit=on_limit,
                name=name,
                ignored=ignored,
                allow_secret=allow_secret,
            )
            store = agent_binding.redacting_store(
                self._store, request.all_agents, env=env, allows_secrets=allow_secret
            )
            thread = lifecycle.create(store, request)
            self._supervisor.lend(thread.id, lent)
            return thread, thread.status == RUNNING and thread.pending is None

        thread, fresh = await blocking(create)
        if fresh and not self._supervisor.has_task(thread.id):
            self._supervisor.launch(thread.id)
        return {"id": thread.id, "start": thread.record["start"]}

    def _empty_tree(self) -> TreeHash:
        with self._store.batch() as batch:
            return batch.put_directory(directory.encode([])).hash

    async def _fork(
        self,
        id: ThreadId,
        at: int | str | None = None,
        agents: dict[str, Any] | None = None,
        max_steps: int | None = None,
        workflow: str | None = None,
        every: dict[str, Any] | None = None,
        hint: str | None = None,
        name: str | None = None,
        count: int = 1,
        variants: list[dict[str, Any]] | None = None,
        lent: dict[str, str] | None = None,
    ) -> Answer:
        """`variants`: {agents, every} that the forks take in turn, in place of those two; `lent`:
        as `_with_lent`."""

        def fork() -> list[Thread]:
            thread = threads.get(self._store, id)
            choices = variants or [{"agents": agents, "every": every}]
            replacements = [
                self._replacements(thread, choice["agents"], choice["every"]) for choice in choices
            ]
            bound = {
                f"{index} {role}": b
                for index, bindings in enumerate(replacements)
                for role, b in bindings.items()
            }
            if not thread.record.get(ALLOWS_SECRETS):
                for replacement in replacements:
                    self._refuse_secrets(replacement, name)
            names = variable_names(self._store, thread) | agent_binding.variable_names(bound)
            env = self._with_lent(names, lent)
            store = redacting_store(self._store, thread, env)
            store = agent_binding.redacting_store(store, bound, env)
            new = None if workflow is None else workflows.find_trusted(store, workflow)
            text = None if hint is None else content.put(store, hint)
            return forking.fork(
                store,
                thread,
                step=at,
                variants=replacements,
                count=count,
                max_steps=max_steps,
                workflow=new,
                hint=text,
                name=name,
            )

        forks = await blocking(fork)
        for new_thread in forks:
            self._supervisor.lend(new_thread.id, lent)
            self._supervisor.launch(new_thread.id)
        ids = [forked.id for forked in forks]
        record = forks[0].record
        origin = record["fork"] or {}
        return {"id": ids[0], "ids": ids, "start": record["start"], **origin}

    async def _resume(
        self,
        id: ThreadId,
        input: str | None = None,
        hint: str | None = None,
        agents: dict[str, Any] | None = None,
        every: dict[str, Any] | None = None,
        lent: dict[str, str] | None = None,
    ) -> Answer:
        """`lent`: as `_with_lent`."""

        def resume() -> Thread:
            thread = threads.get(self._store, id)
            replacements = self._replacements(thread, agents, every)
            if not thread.record.get(ALLOWS_SECRETS):
                self._refuse_secrets(replacements)
            names = variable_names(self._store, thread) | agent_binding.variable_names(replacements)
            env = self._with_lent(names, lent, self._supervisor.env_of(id))
            if input is None and hint is None and not replacements and (held := self._held(thread)):
                return held
            store = redacting_store(self._store, thread, env)
            store = agent_binding.redacting_store(store, replacements, env)
            check = not self._supervisor.extracts
            return suspension.resume(
                store, thread, answer=input, hint=hint, check=check, agents=replacements
            )

        launched = (await blocking(resume)).id
        self._supervisor.lend(launched, lent)
        self._supervisor.launch(launched)
        return {"id": id}

    def _refuse_secrets(self, agents: Mapping[str, Binding], name: str | None = None) -> None:
        """Raises Refused for a secret in the config of an agent, or in the name of a thread."""
        texts: dict[str, Any] = {agent_binding.option(role): agents[role].config for role in agents}
        definitions.refuse_secrets(self._store, {**texts, **({"--name": name} if name else {})})

    def _with_lent(
        self,
        names: Collection[str],
        lent: Mapping[str, str] | None,
        env: Mapping[str, str] | None = None,
    ) -> Mapping[str, str]:
        """Returns `env`, of agents, with what the client has lent; None: it does not lend. Raises
        VariablesLacking for names of variables that it was not asked for yet."""
        env = self._env if env is None else env
        if lent is None:
            return env
        if lacking := sorted(name for name in names if not env.get(name) and name not in lent):
            raise VariablesLacking(lacking)
        return {**env, **lent}

    def _replacements(
        self, thread: Thread, agents: dict[str, Any] | None, every: dict[str, Any] | None
    ) -> dict[str, Binding]:
        """Returns the agents that a request gives to roles of a thread: `agents`, `every` to all
        others."""
        roles = threads.agents(self._store, thread) if every else {}
        names = role_agents.names(self._store, self._env)
        return names.bindings({**dict.fromkeys(roles, every or {}), **(agents or {})})

    def _held(self, thread: Thread) -> Thread | None:
        """Returns the outermost running caller of a thread that should run and that no task runs:
        the daemon was started with --hold. None for any other."""
        leases = self._supervisor.leases
        if thread.status != RUNNING or self._supervisor.has_task(thread.id):
            return None
        if leases and leases.launched.is_set():
            return None
        above = thread.record.get("parent")
        if above is None or self._store.heads.get(threads.head_name(above)) is None:
            return thread
        caller = threads.get(self._store, above)
        return self._held(caller) if caller.status == RUNNING else thread

    async def _stop(self, action: stop_thread.Action, id: ThreadId) -> Answer:
        await self._supervisor.stop(id, action)
        return {"id": id}

    async def _compact(
        self, id: ThreadId, text: str | None = None, agent: dict[str, Any] | None = None
    ) -> Answer:
        """Compacts all steps so far: into `text`, or by an agent {name, config, version}."""
        thread = await blocking(lambda: threads.get(self._store, id))
        store = await blocking(lambda: redacting_store(self._store, thread, self._env))
        if text is not None:
            summary = await blocking(lambda: compaction.put_summary(store, text))
        elif agent is not None:
            names = role_agents.names(self._store, self._env)
            summary = await self._summarise(store, thread, names.bindings({SUMMARISER: agent}))
        else:
            raise Conflict("a summary needs a text, or an agent that writes it")
        head = self._supervisor.head(id)
        if head is None:
            current_thread = await blocking(lambda: threads.get(self._store, id))
            if self._supervisor.leases and current_thread.status == RUNNING:
                raise Conflict(f"thread {id} runs on another machine; suspend it first")
            head = ThreadHead(current_thread)
        await head.move(
            lambda current: transitions.compact(
                self._store,
                current,
                summary=summary.content,
                head=thread.hash,
                tokens=summary.tokens,
            )
        )
        return {"id": id, "summary": summary.content}

    async def _summarise(
        self, store: Store, thread: Thread, bound: Mapping[str, Binding]
    ) -> Summary:
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

        redacting = await blocking(lambda: agent_binding.redacting_store(store, bound, self._env))
        agent, compaction_input = await blocking(prepare)
        return await compaction.summarise(
            redacting, agent, compaction_input=compaction_input, env=self._env
        )

    async def _checkpoint(self, name: str, tree: str, message: str = "") -> Answer:
        """Makes a checkpoint of a stored tree; `tree`: a revision."""

        def create() -> Checkpoint:
            revisions.resolve(self._store.shown(), tree)  # what is hidden is not found
            state = revisions.resolve(self._store, tree).state
            return create_of_state(self._store, name, state=state, message=message)

        checkpoint = await blocking(create)
        return {"name": checkpoint.name, "id": checkpoint.id, "hash": checkpoint.hash}

    async def _replay(self, id: ThreadId, workflow: str) -> Answer:
        """Compares the routes of a recorded thread with those that a workflow gives, in a loop of
        its own, since it reads all steps."""

        def replay() -> list[RouteComparison]:
            thread = threads.get(self._store, id)
            if threads.length(self._store, thread) > MAX_REPLAYED_STEPS:
                raise Refused("the thread is too long for this; use `casfs thread replay`")
            hash = workflows.find(self._store, workflow)

            async def compare() -> list[RouteComparison]:
                async with WorkerPool() as pool:
                    return await compare_routes(self._store, thread, workflow=hash, evaluator=pool)

            return trio.run(compare)

        rows = await blocking(replay)
        return {"rows": [{**asdict(row), "differs": row.differs} for row in rows]}

    async def _redact(self, text: str) -> Answer:
        """What is purged is redacted in what running threads record from now on."""
        return {"threads": self._supervisor.redact(text)}

    async def _wait(self, id: ThreadId) -> Answer:
        """Answers when the thread has ended or is suspended."""
        thread = await self._supervisor.wait(id)
        return {"id": id, "status": thread.status}


def _compact(wanted: dict[str, Any] | None, names: AgentNames) -> CompactPolicy | None:
    if wanted is None:
        return None
    return CompactPolicy(wanted["above"], names.bindings({SUMMARISER: wanted["agent"]})[SUMMARISER])
