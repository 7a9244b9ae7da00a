"""What an agent is to the engine, and the door it comes in by.

An agent package exports two names through the entry-point group `casfs.agents`:

    package_descriptor   {"name", "capabilities", "configSchema", "schemas"}
    create_agent(config) -> async (AgentContext) -> AgentResult

`configSchema` is a JSON Schema for the config; `schemas` lists the schema documents of the
detail nodes that the agent writes (seed 001 phase 6, seed 002). The entry point's object
may be a module or anything else with these two attributes; nothing has to be inherited.
A property of the config with `"format": "env"` names a variable whose value is a secret
(`engine.secrets`); one with `"format": "agent"` is a further agent, which has to be fit for use
when the thread starts, like this one.

An agent that can go on with what it began keeps in `context.conversation` what it needs for
that: the mapping is empty at a step's first try, and the same one when the prompt comes
again with a correction. The built-in agents come in by the same door. An agent that cannot
do its work raises; the thread is then suspended with the error as the reason.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from casfs.agents.prompt import Prompt
from casfs.agents.secrets import NO_SECRETS, Secrets
from casfs.digest import Digest
from casfs.errors import CasfsError, Failed
from casfs.store import Store

HUMAN, CHILD = "human", "child"  # what an agent may wait for


async def _nobody(news: object) -> None:
    """Who is not interested in an agent's processes, or in its turns."""


@dataclass(frozen=True)
class Call:
    """A thread that an agent wants to have run for it. `agents`: role name to {name, config,
    version}; `workspace`: the tree it works on, None for the tree of the agent's own step."""

    workflow: str
    input: str
    agents: Mapping[str, Mapping[str, Any]]
    workspace: str | None = None
    max_rounds: int = 100


@dataclass(frozen=True)
class Called:
    """How such a thread ended. `end`: its thread-end; `output`, `meta`, `workspace`: of its last
    step; `tokens`: what it spent."""

    thread: str
    end: str
    return_code: int
    summary: str
    output: str
    meta: Mapping[str, Any]
    workspace: str | None
    tokens: int


async def _no_calls(call: Call) -> Called:
    raise Failed("nobody here can run a thread for an agent")


@dataclass(frozen=True)
class AgentContext:
    """What an agent is given for one step. `workspace` is its alone while it runs."""

    thread: str
    role: str
    step: int
    prompt: Prompt
    workspace: Path | None
    store: Store
    depth: int = 0
    run: str = ""  # unique to this try; processes carry it in CASFS_RUN
    env: Mapping[str, str] = field(default_factory=dict)  # for the processes it starts
    started: Callable[[int], Awaitable[None]] = _nobody  # to be told a process's id
    turn: Callable[[str], Awaitable[None]] = _nobody  # to be told a finished turn's node
    call: Callable[[Call], Awaitable[Called]] = _no_calls  # runs a thread and waits for its end
    answer: str | None = None  # what a human said to the question that was asked
    parent: str | None = None  # where the thread that called this one stood: a step or start
    agent: str = ""  # the agent's own node
    conversation: dict[str, Any] = field(default_factory=dict)  # kept from try to try of a step
    secrets: Secrets = NO_SECRETS  # what must not be told to a model; `store` hides it by itself


@dataclass(frozen=True)
class AgentResult:
    """`output` is what the extractor reads, `detail` the root of the agent's own record; an
    integer `totalTokens` in it counts against the thread's budget. `workspace`: the tree to
    record, where that is not what the agent left in the directory."""

    output: str
    detail: Digest
    artifacts: tuple[str, ...] = ()
    workspace: str | None = None


class AgentFailed(Failed):
    """The agent did not do its work; `detail` is the record of how far it came, if any."""

    def __init__(self, reason: str, detail: str | None = None) -> None:
        super().__init__(reason)
        self.detail = detail


class Waiting(CasfsError):
    """The agent cannot go on before something else has happened: no failure, and no try is
    counted. The thread rests until it is resumed, then the agent is asked again. `cause`:
    HUMAN or CHILD; `question`: a content node for whoever is to answer."""

    def __init__(self, cause: str, reason: str, question: str | None = None) -> None:
        super().__init__(reason)
        self.cause = cause
        self.question = question


AgentFn: TypeAlias = Callable[[AgentContext], Awaitable[AgentResult]]
