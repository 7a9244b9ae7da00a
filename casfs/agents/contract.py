"""The contract between the engine and an agent, and the entry point that registers one.

An agent package exports two names through the entry-point group `casfs.agents`:

    package_descriptor   {"name", "capabilities", "configSchema", "schemas"}
    create_agent(config) -> async (AgentContext) -> AgentResult

`configSchema` is a JSON Schema for the config; `schemas` lists the schema documents of the
detail nodes that the agent writes (seed 001 phase 6, seed 002). The entry point's object
may be a module or anything else with these two attributes; nothing has to be inherited.
In the config schema, `"format": "env"` marks a string that names an environment variable whose
value is a secret, `"format": "variable"` one whose value is none; `"format": "agent"` marks an
object {name, config, version} that names a nested agent, which is checked when the thread starts,
like this one.

An agent that keeps a session stores its state in `context.conversation`: the mapping is empty at
a step's first attempt, and the same one when the prompt comes again with a correction. The
built-in agents use the same contract. An agent that cannot do its work raises; the thread is then
suspended with the error as the reason.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from casfs.agents.prompt import Prompt
from casfs.agents.secrets import NO_SECRETS, Secrets
from casfs.digest import Digest
from casfs.errors import CasfsError, Failed
from casfs.store.store import Store

HUMAN = "human"  # causes of Waiting
CHILD = "child"


async def _ignore(report: object) -> Any:
    """Default for the callbacks of a context without an engine, as in an agent's own tests."""
    return {}


def _drop(detail: str) -> None:
    """Default of `interrupted`."""


@dataclass(frozen=True)
class Call:
    """A request to run a child thread. `workflow`: name or hash; `input`: its task; `agents`:
    role name to {name, config, version}; `workspace`: root of its tree, None for the tree that
    the calling step started from; `recorded`: as of AgentResult; `max_steps`: limit of steps."""

    workflow: str
    input: str
    agents: Mapping[str, Mapping[str, Any]]
    workspace: str | None = None
    max_steps: int = 100
    recorded: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Called:
    """The result of a child thread. `thread`: its id; `end`: hash of its thread-end;
    `return_code`: 0 where a rule ended it; `output`, `meta`, `workspace`, `recorded`: of its last
    step; `tokens`: spent by it."""

    thread: str
    end: str
    return_code: int
    summary: str
    output: str
    meta: Mapping[str, Any]
    workspace: str | None
    tokens: int
    recorded: Mapping[str, str] = field(default_factory=dict)


async def _no_message() -> str:
    return ""


async def _nobody(why: Waiting) -> str | None:
    raise why


async def _no_calls(call: Call) -> Called:
    raise Failed("this context has no engine that runs child threads")


@dataclass(frozen=True)
class AgentContext:
    """The inputs of one attempt at a step. Nothing else writes to `workspace` while it runs."""

    thread: str  # id
    role: str
    step: int  # index, from 1
    prompt: Prompt
    workspace: Path | None  # directory; None for a thread without one
    store: Store  # redacts secrets in all that is put through it
    depth: int = 0  # of the call stack; 0 for a thread that no other called
    run: str = ""  # token, unique to this attempt; its processes carry it in CASFS_RUN
    env: Mapping[str, str] = field(default_factory=dict)  # environment for its processes
    started: Callable[[int], Awaitable[None]] = _ignore  # reports a process id; durable on return
    turn: Callable[[str], Awaitable[None]] = _ignore  # reports a stored node as a turn (model call)
    # records the workspace after a tool call, where the agent's config has `turnTrees`: adds
    # members of the `react-turn`, returns those of the `react-tool-call`
    record_tree: Callable[[dict[str, str]], Awaitable[Mapping[str, str]]] = _ignore
    # reports the detail of an attempt that is being cancelled, for example at its time limit
    interrupted: Callable[[str], None] = _drop
    call: Callable[[Call], Awaitable[Called]] = _no_calls  # raises Waiting, Failed, Invalid
    answer: str | None = None  # a person's answer to the question of `Waiting`
    question: str | None = None  # hash of that question
    # asks a person while the agent waits, as long as the engine lets it; returns the answer, None
    # where the agent's result came before it. Raises the `Waiting` that it is given where there is
    # no answer: the attempt ends then
    ask: Callable[[Waiting], Awaitable[str | None]] = _nobody
    # what a person has said of its work since, as a further prompt; empty where nothing is. To be
    # called again when that is answered, which says that the agent has heard it
    message: Callable[[], Awaitable[str]] = _no_message
    # keeps a stored node for later attempts at the step, in which it is `kept`; durable on return
    keep: Callable[[str], Awaitable[None]] = _ignore
    kept: str | None = None
    attempts: tuple[str, ...] = ()  # what failed and interrupted attempts at the step left, hashes
    parent: str | None = None  # hash of the caller's step or start that this thread was called at
    agent: str = ""  # hash of the agent's node
    conversation: dict[str, Any] = field(default_factory=dict)  # kept between attempts of a step
    # closed when the attempt ends, after its last correction; what is entered must not raise
    exit_stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    secrets: Secrets = NO_SECRETS  # to redact what is sent elsewhere, such as to a model


@dataclass(frozen=True)
class AgentResult:
    """An agent's answer. `output`: text that the meta is extracted from; `detail`: digest of the
    agent's own record, whose integer `totalTokens` counts against the thread's budget;
    `artifacts`: hashes; `workspace`: root of the tree to record, None for the directory's;
    `recorded`: with it, what else was recorded of that directory, as a Called or a step has it;
    `tokens`: spent, where the detail does not say; `keeps_workspace`: false where the files are to
    be as before the step."""

    output: str
    detail: Digest
    artifacts: tuple[str, ...] = ()
    workspace: str | None = None
    tokens: int = 0
    recorded: Mapping[str, str] = field(default_factory=dict)
    keeps_workspace: bool = True


class AgentFailed(Failed):
    """The attempt failed. `detail`: hash of the agent's record of it so far, if any."""

    def __init__(self, reason: str, detail: str | None = None) -> None:
        super().__init__(reason)
        self.detail = detail


class Waiting(CasfsError):
    """The agent waits for something else; no failure, and no attempt is counted. The thread is
    suspended until it is resumed, then the agent is asked again. `cause`: HUMAN or CHILD;
    `question`: hash of a content node for the person who is to answer; `keeps_workspace`: the next
    attempt begins with the files as they are, not as they were before the step; `tokens`: spent."""

    def __init__(
        self,
        cause: str,
        reason: str,
        question: str | None = None,
        keeps_workspace: bool = False,
        tokens: int = 0,
    ) -> None:
        super().__init__(reason)
        self.cause = cause
        self.question = question
        self.keeps_workspace = keeps_workspace
        self.tokens = tokens


AgentFn: TypeAlias = Callable[[AgentContext], Awaitable[AgentResult]]
