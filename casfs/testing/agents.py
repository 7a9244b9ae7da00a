"""Runs an agent for one step as the engine would, without daemon, workflow or model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import trio

from casfs.agents import AgentContext, AgentFn, AgentResult, Call, Called, Prompt
from casfs.api.store import Store
from casfs.backend.derived import find_missing
from casfs.errors import Failed, Invalid
from casfs.store.nodes.schema import Schema

TASK = "Do it."


class AgentPackage(Protocol):
    """The object of an entry point of the group `casfs.agents`: a module, for example."""

    @property
    def package_descriptor(self) -> Mapping[str, Any]: ...

    def create_agent(self, config: Any, /) -> AgentFn: ...


@dataclass
class AgentRun:
    """What an agent did. `store` holds what it put there."""

    result: AgentResult
    store: Store
    turns: list[str] = field(default_factory=list)  # hashes that it reported by `turn`
    calls: list[Call] = field(default_factory=list)  # threads that it asked for
    pids: list[int] = field(default_factory=list)  # processes that it reported by `started`


def fake_context(
    store: Store | None = None,
    *,
    task: str = TASK,
    role: str = "tester",
    prompt: Prompt | None = None,
    workspace: Path | None = None,
    **fields: Any,
) -> AgentContext:
    """Returns the context of the first step of a thread; `fields` are others of AgentContext.

    Without `store` it has one in memory, without `prompt` one that asks `task` and lets the
    output hold any JSON object.
    """
    store = Store.memory() if store is None else store
    default_prompt = Prompt(
        f"You are the {role}.",
        task,
        history=(),
        ask="Report how it went.",
        schema={"type": "object"},
    )
    agent = store.put_node("agent", {"package": role, "version": "", "config": {}})
    known = {"thread": "0" * 26, "step": 1, "run": "run", "agent": agent.hash, **fields}
    return AgentContext(
        role=role, prompt=prompt or default_prompt, workspace=workspace, store=store, **known
    )


def run_agent(
    agent: AgentPackage | Callable[[Any], AgentFn],
    config: Mapping[str, Any] | None = None,
    *,
    store: Store | None = None,
    answer_call: Callable[[Call], Called] | None = None,
    timeout_s: float = 60.0,
    **context: Any,
) -> AgentRun:
    """Runs an agent for one step under trio and returns what it did.

    `agent`: a package (its schemas are registered, the config is checked), or its `create_agent`.
    `answer_call` stands for the engine where the agent calls a thread. `context`: as for
    `fake_context`. Raises what the agent raises (AgentFailed, Waiting, …), Invalid for a config
    that does not fit, trio.TooSlowError, and AssertionError for a result that the engine would
    refuse. Not from async code: there, await the agent with a `fake_context`.
    """
    store = Store.memory() if store is None else store
    run = AgentRun(AgentResult("", store.put(b"")), store)

    async def started(pid: int) -> None:
        run.pids.append(pid)

    async def turn(hash: str) -> None:
        run.turns.append(hash)

    async def call(wanted: Call) -> Called:
        run.calls.append(wanted)
        if answer_call is None:
            raise Failed("the agent called a thread; give `answer_call`")
        return answer_call(wanted)

    async def step() -> AgentResult:
        with trio.fail_after(timeout_s):
            async with agent_context.exit_stack:
                return await play(agent_context)

    play = _create(agent, dict(config or {}), store)
    agent_context = fake_context(
        store, **{"started": started, "turn": turn, "call": call, **context}
    )
    run.result = trio.run(step)
    check_result(store, run.result)
    return run


def check_result(store: Store, result: object) -> None:
    """Raises AssertionError for a result that the engine would refuse."""
    assert isinstance(result, AgentResult), f"not an AgentResult: {result!r}"
    missing = find_missing(store.blobs, [result.detail.hash, *result.artifacts])
    assert not missing, f"not in the store: {', '.join(missing)}"
    if result.workspace is not None:
        store.node(result.workspace, "directory")


def _create(
    agent: AgentPackage | Callable[[Any], AgentFn], config: dict[str, Any], store: Store
) -> AgentFn:
    descriptor = getattr(agent, "package_descriptor", None)
    if descriptor is None:
        assert callable(agent)
        return agent(config)
    with store.batch() as batch:
        for document in descriptor.get("schemas", ()):
            batch.put_schema(document)
    try:
        Schema(descriptor.get("configSchema", {})).check(config)
    except Invalid as error:
        raise Invalid(f"config {error}") from None
    return agent.create_agent(config)  # type: ignore[union-attr]
