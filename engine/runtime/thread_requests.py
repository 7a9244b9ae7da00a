"""Requests that set threads running: start, fork, resume. What each may have as members, and what
it does to the store.

A client may lend variables to the agents: those that the daemon's environment lacks. It learns
their names by `VariablesLacking`, and sends the request again with their values, which the daemon
keeps in memory alone. So a key is in no file of the daemon and in no node.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from casfs.agents.notation import AgentSpec
from casfs.digest import TreeHash
from casfs.errors import Conflict
from casfs.store.nodes import directory
from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.threads import RUNNING, SUSPENDED, Thread, ThreadId
from casfs.trees.recorded_state import RecordedState
from engine import content
from engine.agents.loader import TURN_TREES
from engine.runtime.supervisor import ANOTHER_QUESTION, Supervisor
from engine.runtime.thread_config import redacting_store, variable_names
from engine.secrets import definitions
from engine.threads import agent_binding, forking, lifecycle, role_agents, suspension
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import SUMMARISER, CompactPolicy, ThreadRequest
from engine.threads.record import ALLOWS_SECRETS, SUSPEND_ON_LIMIT, Budget
from engine.threads.role_agents import AgentNames
from engine.workflow import registry as workflows


class VariablesLacking(Exception):
    """Configs of agents name variables that the daemon does not have and the client may lend."""

    def __init__(self, names: list[str]) -> None:
        self.names = names


@dataclass(frozen=True)
class StartRequest:
    """`agents`: by role, {name, config, version}; `every`: of all others; `workspace`: root of a
    tree, None for the empty one, False for no workspace; `recorded`: with it, what else was
    recorded of the directory (`RecordedState.fields`); `ignored`, `project`: as of
    ThreadRequest; `compact`: {above, agent}; `profiles`: in addition to those of `config.toml`;
    `lent`: variables, None of a client that lends none."""

    workflow: str
    input: str
    agents: dict[str, AgentSpec]
    workspace: TreeHash | Literal[False] | None = None
    recorded: dict[str, str] | None = None
    ignored: str | None = None
    project: dict[str, str] | None = None
    max_steps: int = lifecycle.MAX_STEPS
    tokens: int | None = None
    wall_ms: int | None = None
    compact: dict[str, Any] | None = None
    key: str | None = None
    on_limit: str = SUSPEND_ON_LIMIT
    name: str | None = None
    every: AgentSpec | None = None
    profiles: dict[str, AgentSpec] | None = None
    turn_trees: bool = False
    allow_secret: bool = False
    lent: dict[str, str] | None = None


@dataclass(frozen=True)
class ForkRequest:
    """`variants`: {agents, every} that the forks take in turn, in place of those two; `lent`: as of
    StartRequest."""

    id: ThreadId
    at: int | str | None = None
    agents: dict[str, AgentSpec] | None = None
    max_steps: int | None = None
    workflow: str | None = None
    every: AgentSpec | None = None
    hint: str | None = None
    name: str | None = None
    count: int = 1
    variants: list[dict[str, Any]] | None = None
    lent: dict[str, str] | None = None


@dataclass(frozen=True)
class ResumeRequest:
    """`question`: hash of that which `input` answers, None for any; `lent`: as of StartRequest."""

    id: ThreadId
    input: str | None = None
    question: str | None = None
    hint: str | None = None
    agents: dict[str, AgentSpec] | None = None
    every: AgentSpec | None = None
    lent: dict[str, str] | None = None

    @property
    def answers_only(self) -> bool:
        return self.input is not None and not (self.hint or self.agents or self.every)


class ThreadRequests:
    """Does these requests, in worker threads. `env`: of agents."""

    def __init__(self, store: Store, env: Mapping[str, str], supervisor: Supervisor) -> None:
        self._store = store
        self._env = env
        self._supervisor = supervisor

    def start(self, request: StartRequest) -> Thread:
        """Returns the new thread, or the one with the same idempotency key."""
        hash = workflows.find_trusted(self._store, request.workflow)
        flow = workflows.load(self._store, hash)
        names = role_agents.names(self._store, self._env, request.profiles or {})
        defaults = workflows.default_agents(self._store, request.workflow)
        specs = names.for_roles(flow.roles, request.agents, request.every, defaults)
        extra_config = {TURN_TREES: True} if request.turn_trees else {}
        bound = names.bindings(specs, **extra_config)
        state = self._workspace(request)
        thread_request = ThreadRequest(
            flow.hash,
            request.input,
            agents=bound,
            workspace=state,
            max_steps=request.max_steps,
            budget=Budget(request.tokens, request.wall_ms),
            compact=_compact_policy(request.compact, names),
            key=request.key,
            on_limit=request.on_limit,
            name=request.name,
            ignored=request.ignored,
            project=request.project or {},
            allow_secret=request.allow_secret,
        )
        # The summariser, too: its config may hold a secret, or name a variable.
        agents = thread_request.all_agents
        if not request.allow_secret:
            self._refuse_secrets(agents, request.name)
        env = self._with_lent(agent_binding.variable_names(agents), request.lent)
        # Now, and not at the step: a program that is missing would suspend the thread hours later.
        root = None if state is None else state.full
        role_agents.check_programs(self._store, flow, bound=bound, root=root, env=env)
        store = agent_binding.redacting_store(
            self._store, agents, env=env, allows_secrets=request.allow_secret
        )
        return lifecycle.create(store, thread_request)

    def _workspace(self, request: StartRequest) -> RecordedState | None:
        if request.workspace is False:
            return None
        root = request.workspace
        if not root:
            with self._store.batch() as batch:
                root = batch.put_directory(directory.encode([])).hash
        return RecordedState.of_fields(root, request.recorded or {})

    def fork(self, request: ForkRequest) -> list[Thread]:
        """Returns the new threads, at least one."""
        thread = threads.get(self._store, request.id)
        variants = request.variants or [{"agents": request.agents, "every": request.every}]
        replacements = [
            self._replacements(thread, variant["agents"], variant["every"]) for variant in variants
        ]
        if not thread.record.get(ALLOWS_SECRETS):
            for bindings in replacements:
                self._refuse_secrets(bindings, request.name)
        # All variants together, though they give agents to the same roles: of each agent the
        # variables are lent and redacted.
        bound: dict[str, Binding] = {}
        for index, bindings in enumerate(replacements):
            bound |= {f"{index} {role}": binding for role, binding in bindings.items()}
        names = variable_names(self._store, thread) | agent_binding.variable_names(bound)
        env = self._with_lent(names, request.lent)
        store = redacting_store(self._store, thread, env)
        store = agent_binding.redacting_store(store, bound, env)
        workflow = None
        if request.workflow is not None:
            workflow = workflows.find_trusted(store, request.workflow)
        hint = None if request.hint is None else content.put(store, request.hint)
        return forking.fork(
            store,
            thread,
            step=request.at,
            variants=replacements,
            count=request.count,
            options=forking.ForkOptions(
                max_steps=request.max_steps, workflow=workflow, hint=hint, name=request.name
            ),
        )

    def resume(self, request: ResumeRequest) -> Thread:
        """Returns the outermost thread of those that go on, the one to launch."""
        thread = threads.get(self._store, request.id)
        replacements = self._replacements(thread, request.agents, request.every)
        if not thread.record.get(ALLOWS_SECRETS):
            self._refuse_secrets(replacements)
        names = variable_names(self._store, thread) | agent_binding.variable_names(replacements)
        env = self._with_lent(names, request.lent, self._supervisor.env_of(request.id))
        if request.input is None and request.hint is None and not replacements:
            held = self._not_launched(thread)
            if held is not None:
                return held
        store = redacting_store(self._store, thread, env)
        store = agent_binding.redacting_store(store, replacements, env)
        return suspension.resume(
            store,
            thread,
            answer=request.input,
            hint=request.hint,
            # Where a model finds the meta, an answer may be free text.
            check=not self._supervisor.extracts,
            agents=replacements,
        )

    def check_question(self, request: ResumeRequest) -> None:
        """Raises Conflict where a person answers another question than the one that is open."""
        if request.question is None:
            return
        thread = threads.get(self._store, request.id)
        if thread.status == SUSPENDED and thread.record["question"] != request.question:
            raise Conflict(ANOTHER_QUESTION.format(request.id))

    def check_replacements(self, request: ResumeRequest) -> None:
        """Raises as `resume` for agents that cannot play."""
        thread = threads.get(self._store, request.id)
        replacements = self._replacements(thread, request.agents, request.every)
        kept = threads.agents(self._store, thread)
        agent_binding.check_replacements(thread, kept, replacements)

    def _not_launched(self, thread: Thread) -> Thread | None:
        """Returns the outermost running caller of a thread that should run and that no task runs:
        the daemon was started with --hold. None for any other."""
        leases = self._supervisor.leases
        if thread.status != RUNNING or self._supervisor.has_task(thread.id):
            return None
        # Once that is set the daemon claims threads by itself, and none waits.
        if leases and leases.launched.is_set():
            return None
        above = thread.record.get("parent")
        if above is None or self._store.heads.get(threads.head_name(above)) is None:
            return thread
        caller = threads.get(self._store, above)
        return self._not_launched(caller) if caller.status == RUNNING else thread

    def _replacements(
        self, thread: Thread, agents: dict[str, AgentSpec] | None, every: AgentSpec | None
    ) -> dict[str, Binding]:
        """Returns the agents that a request gives to roles of a thread: `agents`, `every` to all
        others."""
        specs: dict[str, AgentSpec] = {}
        if every:
            specs = dict.fromkeys(threads.agents(self._store, thread), every)
        names = role_agents.names(self._store, self._env)
        return names.bindings({**specs, **(agents or {})})

    def _refuse_secrets(self, agents: Mapping[str, Binding], name: str | None = None) -> None:
        """Raises Refused for a secret in the config of an agent, or in the name of a thread."""
        texts: dict[str, Any] = {agent_binding.option(role): agents[role].config for role in agents}
        if name:
            texts["--name"] = name
        definitions.refuse_secrets(self._store, texts)

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
        # A client that has no value sends an empty one, so that it is asked for each name once.
        lacking = sorted(name for name in names if not env.get(name) and name not in lent)
        if lacking:
            raise VariablesLacking(lacking)
        return {**env, **self._supervisor.lacked(lent)}


def _compact_policy(fields: dict[str, Any] | None, names: AgentNames) -> CompactPolicy | None:
    if fields is None:
        return None
    bound = names.bindings({SUMMARISER: fields["agent"]})
    return CompactPolicy(fields["above"], bound[SUMMARISER])
