"""What is fixed about a thread while it runs: its task, its workflow, who plays whom.

Read once from the thread-start and what it refers to. Agents are made when they are first asked,
so a package that is broken harms the thread only at that role.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from casfs import threads
from casfs.agents import AgentContext, AgentFn, AgentResult
from casfs.agents.prompt import Prompt
from casfs.errors import CasfsError, NotFound
from casfs.store import Store
from casfs.threads import Thread
from engine.agents import loader
from engine.blocking import blocking
from engine.content import text
from engine.llm.llm_extractor import Extractor
from engine.output_parser import role_schema
from engine.runtime import calls
from engine.runtime.attempt import RoleAgent
from engine.secrets import redaction
from engine.threads import call_stack
from engine.threads.history import PromptHistory
from engine.threads.record import Budget
from engine.workflow import registry as workflows


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
        self.flow = workflows.load(store, self.start["workflow"])
        self.schemas = {name: role_schema(role.schema) for name, role in self.flow.roles.items()}
        self.task = text(store, self.start["input"])
        names = secret_names(store, thread)
        if extractor is not None and extractor.key_env is not None:
            names.add(extractor.key_env)
        self.secrets = redaction.from_env(names, env)
        self._origin = calls.caller_hint(store, thread)
        self._functions: dict[str, AgentFn] = {}

    def prompt(self, role: str, past: PromptHistory) -> Prompt:
        part = self.flow.roles[role]
        prompt = Prompt(
            part.system_prompt,
            self.task,
            past.turns,
            part.extract_prompt,
            part.schema,
            summary=past.summary,
            origin=self._origin,
        )
        return prompt.redacted(self.secrets)

    def player(self, role: str) -> RoleAgent:
        async def agent(context: AgentContext) -> AgentResult:
            node = self.agents[role]
            if node not in self._functions:
                self._functions[node] = await blocking(lambda: load_agent(self._store, node))
            return await self._functions[node](context)

        timeout = self.flow.roles[role].timeout
        return RoleAgent(agent, self.schemas[role], timeout, self._extractor)


def secret_names(store: Store, thread: Thread) -> set[str]:
    """The variables that the agents of a thread name as secrets, and those of the threads that
    called it: what is a secret above is none the less one below."""
    start, bound = threads.start(store, thread).payload, threads.agents(store, thread)
    others = [start["compact"]["agent"]] if start.get("compact") else []
    names: set[str] = set()
    for hash in {*bound.values(), *others}:
        node = store.node(hash, "agent").payload
        with suppress(CasfsError):  # it is said when the role is played
            names |= loader.load(node["package"]).secret_names(node["config"])
    if caller := thread.record.get("parent"):
        with suppress(NotFound):  # it has ended, and its name was dropped
            names |= secret_names(store, threads.get(store, caller))
    return names


def redacting_store(store: Store, thread: Thread, env: Mapping[str, str]) -> Store:
    """The store for whoever adds to a thread from outside: an answer, which may be for a thread
    that it called, or a summary."""
    names: set[str] = set()
    for one in (thread, *call_stack.open_children(store, thread)):
        names |= secret_names(store, one)
    return redaction.redacting_store(store, redaction.from_env(names, env))


def load_agent(store: Store, agent: str) -> AgentFn:
    """The function of an agent node, from the package that is installed now."""
    node = store.node(agent, "agent").payload
    return loader.load(node["package"]).create(node["config"])
