"""The fixed part of a thread while it runs: task, workflow, agents, budget, secrets.

Read once from the thread-start and the nodes that it refers to. Agents are loaded when they are
first asked, so a broken package fails the thread only at its role.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from casfs.agents import AgentContext, AgentFn, AgentResult
from casfs.agents.prompt import Prompt
from casfs.agents.secret_marks import SecretMarks
from casfs.checkpoints import revisions
from casfs.digest import NodeHash, TreeHash
from casfs.errors import CasfsError, NotFound, Refused
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.threads import prompts, rule_prompts, threads
from casfs.threads.threads import Thread
from casfs.trees.recorded_state import RecordedState
from engine.agents import loader
from engine.agents.loader import Package
from engine.blocking import blocking
from engine.content import text
from engine.output.parser import role_schema
from engine.runtime.attempt import RoleAgent
from engine.secrets import redaction
from engine.threads import call_stack
from engine.threads.history import ThreadHistory
from engine.threads.record import ALLOWS_SECRETS, Budget, pending_state
from engine.workflow import registry as workflows

if TYPE_CHECKING:
    from casfs.payloads import Intent
    from engine.llm.llm_extractor import Extractor


class ThreadConfig:
    """`start`: the payload of the thread-start; `agents`: role name to agent node."""

    def __init__(
        self,
        store: Store,
        thread: Thread,
        env: Mapping[str, str],
        extractor: Extractor | None = None,
    ) -> None:
        self._store = store
        self._extractor = extractor
        self.start = threads.start(store, thread).payload
        self.budget = Budget.of(self.start["budget"])
        self.agents = threads.agents(store, thread)
        self.flow = workflows.load(store, threads.workflow(store, thread))
        self.schemas = {name: role_schema(role.schema) for name, role in self.flow.roles.items()}
        self.task = text(store, self.start["input"])
        names = secret_names(store, thread)
        if extractor is not None and extractor.key_env is not None:
            names.add(extractor.key_env)
        self.secrets = redaction.from_env(names, env, marks_of(store, thread, env))
        self._allows_secrets = bool(thread.record.get(ALLOWS_SECRETS))
        self._read_local: str | None = None
        self._words_of_work: dict[str, bool] = {}
        self.read_private_files(_last_state(store, thread))
        self.read_private_files(pending_state(thread.pending or {}))
        self._origin = prompts.origin(store, self.start, thread.record.get("parent"))
        schema = store.registry.document(store.registry.current("thread-step"))
        self.step_fields = frozenset(schema["properties"])  # a store of an older casfs has fewer
        schema = store.registry.document(store.registry.current("react-turn"))
        self.has_turn_trees = "workspace" in schema["properties"]
        self._bound: dict[NodeHash, Mapping[str, Any]] = {}  # agents, by their nodes
        self._role_agents: dict[str, RoleAgent] = {}
        self._loaded: dict[str, tuple[AgentFn, Package]] = {}  # by agent node
        self.recorded_agents: dict[str, NodeHash] = {}  # by role, of committed steps

    def prompt(
        self, intent: Intent, history: ThreadHistory, hint: NodeHash | None = None
    ) -> Prompt:
        """Returns the redacted prompt of a pending step; `hint`: a content node."""
        part = self.flow.roles[intent["role"]]
        shown = history.prompt_history
        last = history.steps[-1] if history.steps else None
        prompt = Prompt(
            part.system_prompt,
            self.task,
            history=shown.steps,
            ask=part.extract_prompt,
            schema=part.schema,
            summary=shown.summary,
            origin=self._origin,
            hint=hint and text(self._store, hint),
            instruction=rule_prompts.of_intent(self.flow.rules, intent, last),
        )
        return prompt.redacted(self.secrets)

    def read_private_files(self, state: RecordedState | None) -> None:
        """Redacts the values in the private files of a state from now on: an agent may print what
        it, or one before it, has written."""
        if self._allows_secrets or state is None or state.local in (None, self._read_local):
            return
        values = redaction.values_in_private_files(self._store, state, self._words_of_work)
        self.secrets.add_private(values)
        self._read_local = state.local

    def follow_private_files(self, directory: Path, root: TreeHash) -> None:
        """As `read_private_files`, of what lies in the workspace now, and each time that something
        is put or shown: an agent prints what it has just written. `root`: its work."""
        if not self._allows_secrets:
            self.secrets.current_values = redaction.ValuesInDirectory(
                self._store, directory, root, self._words_of_work
            )

    def bound_agent(self, role: str) -> Mapping[str, Any]:
        """Returns the agent node's payload that the thread binds a role to."""
        node = self.agents[role]
        if node not in self._bound:
            self._bound[node] = self._store.node(node, "agent").payload
        return self._bound[node]

    def put_step_agent(self, batch: Batch, role: str) -> NodeHash:
        """Puts the agent of a role with the version that is installed, for the role's step."""
        if role in self.recorded_agents:
            return self.recorded_agents[role]
        agent = self.bound_agent(role)
        known = self._loaded.get(self.agents[role])
        package = known[1] if known else loader.load(agent["package"])
        return batch.put_node("agent", {**agent, "version": f"=={package.version}"}).hash

    def role_agent(self, role: str) -> RoleAgent:
        """Returns the agent of a role, which is loaded by its first call; a third-party one anew
        for each attempt, since another version may be installed by then."""
        if role in self._role_agents:
            return self._role_agents[role]

        async def agent(context: AgentContext) -> AgentResult:
            node = self.agents[role]
            known = self._loaded.get(node)
            if known is None or not (known[1].is_builtin or context.conversation):
                known = self._loaded[node] = await blocking(lambda: load_agent(self._store, node))
                if not known[1].is_builtin:
                    self.recorded_agents.clear()
            return await known[0](context)

        part = self.flow.roles[role]
        limits = [loader.limits(self.bound_agent(role)["config"]), part.limits]
        role_agent = RoleAgent(
            agent,
            self.schemas[role],
            timeout=part.timeout,
            extractor=self._extractor,
            limits=limits,
        )
        self._role_agents[role] = role_agent
        return role_agent


def _last_state(store: Store, thread: Thread) -> RecordedState | None:
    last = threads.last_step(store, thread) or thread.record["start"]
    return revisions.state_if_any(store, last)


def secret_names(store: Store, thread: Thread) -> set[str]:
    """Returns the variables that the agents of a thread name as secrets, and those of its
    callers: children inherit their caller's secrets."""
    return _names(store, thread, Package.secret_names)


def variable_names(store: Store, thread: Thread) -> set[str]:
    """Returns all environment variables that the agents of a thread name, secret or not, and those
    of its callers."""
    return _names(store, thread, Package.variable_names)


def _names(store: Store, thread: Thread, names_of: Callable[[Package, Any], set[str]]) -> set[str]:
    start = threads.start(store, thread).payload
    bound = threads.agents(store, thread)
    summarisers = [start["compact"]["agent"]] if start.get("compact") else []
    names: set[str] = set()
    for hash in {*bound.values(), *summarisers}:
        node = store.node(hash, "agent").payload
        with suppress(CasfsError):  # reported when the agent is loaded to play its role
            names |= names_of(loader.load(node["package"]), node["config"])
    if caller := thread.record.get("parent"):
        with suppress(NotFound):  # it has ended, and its head was removed
            names |= _names(store, threads.get(store, caller), names_of)
    return names


def redacting_store(store: Store, thread: Thread, env: Mapping[str, str]) -> Store:
    """Returns the store for writes to a thread from outside its run: a summary, or an answer,
    which may be for one of its children."""
    names: set[str] = set()
    for member in (thread, *call_stack.open_children(store, thread)):
        names |= secret_names(store, member)
    marks = marks_of(store, thread, env)
    return redaction.redacting_store(store, redaction.from_env(names, env, marks))


def marks_of(store: Store, thread: Thread, env: Mapping[str, str]) -> SecretMarks:
    allows_all = bool(thread.record.get(ALLOWS_SECRETS))
    highest = thread.record.get("secretMarks")
    return redaction.new_marks(store, env, allows_all=allows_all, highest=highest or 0)


def load_agent(store: Store, agent: str) -> tuple[AgentFn, Package]:
    """Creates the function of an agent node, from the package that is installed now; returns it
    and the package. Raises as `loader.resolve`: that may not satisfy the thread's any more."""
    node = store.node(agent, "agent").payload
    try:
        package = loader.resolve(node["package"], node["version"], node["config"])
    except Refused as error:
        raise Refused(f"{error}; `thread resume --agent` takes another") from None
    return package.create(loader.own_config(node["config"])), package
