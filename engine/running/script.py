"""What is fixed about a thread while it runs: its task, its workflow, who plays whom.

Read once from the thread-start and what it refers to. Agents are made when they are first asked,
so a package that is broken harms the thread only at that role.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from casfs import threads
from casfs.errors import CasfsError
from casfs.store import Store
from casfs.threads import Thread
from engine import agents, catalog, secrets
from engine.agents import AgentContext, AgentFn, AgentResult
from engine.extract import role_schema
from engine.models.extractor import Extractor
from engine.prompt import Prompt
from engine.running import calls
from engine.running.attempt import Player
from engine.threads.recall import Recall, text
from engine.threads.record import Budget


class Script:
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
        self.flow = catalog.load(store, self.start["workflow"])
        self.schemas = {name: role_schema(role.schema) for name, role in self.flow.roles.items()}
        self.task = text(store, self.start["input"])
        names = secret_names(store, self.start, self.agents)
        if extractor is not None and extractor.key_env is not None:
            names.add(extractor.key_env)
        self.secrets = secrets.of(names, env)
        self._origin = calls.origin_of(store, thread)
        self._functions: dict[str, AgentFn] = {}

    def prompt(self, role: str, past: Recall) -> Prompt:
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
        return prompt.hidden(self.secrets)

    def player(self, role: str) -> Player:
        async def agent(context: AgentContext) -> AgentResult:
            return await self._function(self.agents[role])(context)

        timeout = self.flow.roles[role].timeout
        return Player(agent, self.schemas[role], timeout, self._extractor)

    def _function(self, agent: str) -> AgentFn:
        if agent not in self._functions:
            self._functions[agent] = made(self._store, agent)
        return self._functions[agent]


def secret_names(store: Store, start: Mapping[str, Any], bound: Mapping[str, str]) -> set[str]:
    """The variables that the agents of a thread name as secrets. `start`: of a thread-start."""
    names: set[str] = set()
    others = [start["compact"]["agent"]] if start.get("compact") else []
    for hash in {*bound.values(), *others}:
        node = store.node(hash, "agent").payload
        try:
            names |= agents.load(node["package"]).secret_names(node["config"])
        except CasfsError:  # it is said when the role is played
            continue
    return names


def guarded(store: Store, thread: Thread, env: Mapping[str, str]) -> Store:
    """The store for whoever adds to a thread from outside: an answer, a summary."""
    start = threads.start(store, thread).payload
    names = secret_names(store, start, threads.agents(store, thread))
    return secrets.of(names, env).guard(store)


def made(store: Store, agent: str) -> AgentFn:
    """The function of an agent node, from the package that is installed now."""
    node = store.node(agent, "agent").payload
    return agents.load(node["package"]).create(node["config"])
