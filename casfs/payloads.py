"""The payloads of the built-in node types, for a type checker (`Node.payload`).

Made from `schemas/` by `python -m tests.support.payload_types`; a test compares them.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypeAlias, TypedDict


class ActionResult(TypedDict):
    action: str
    exitCode: int
    stdout: str
    stderr: str
    outputs: str
    times: NotRequired[str]
    detail: str | None
    artifacts: list[str]
    durationMs: int
    createdAt: int


class Action(TypedDict):
    argv: list[str]
    cwd: str
    env: dict[str, str]
    inputRoot: str | None
    local: NotRequired[str]
    outputs: list[str]
    platform: dict[str, Any]
    timeoutMs: int | None
    step: dict[str, Any] | None


class Agent(TypedDict):
    package: str
    version: str
    config: dict[str, Any]


class CallDetail(TypedDict):
    ends: list[str]
    totalTokens: int
    durationMs: int


class Checkpoint(TypedDict):
    root: str
    times: NotRequired[str]
    applied: NotRequired[list[str]]
    previous: str | None
    name: str
    createdAt: int
    message: str
    stats: dict[str, Any]
    changed_files: list[str]


class CommandDetail(TypedDict):
    argv: list[str]
    exitCode: int
    stdout: str
    stderr: str
    durationMs: int


class Content(TypedDict):
    text: str
    artifacts: list[str]


class CursorDetail(TypedDict):
    sessionId: str
    model: str | None
    durationMs: int
    turns: list[str]
    stream: str


class CursorTurn(TypedDict):
    index: int
    kind: str
    name: str | None
    text: str
    result: str | None


class Directory(TypedDict):
    files: list[Any]
    directories: list[Any]
    symlinks: list[Any]
    mtime: NotRequired[Any]
    unix_mode: NotRequired[Any]


class HermesDetail(TypedDict):
    sessionId: str
    model: str | None
    durationMs: int
    turnCount: int
    turns: list[str]
    warning: NotRequired[str]


class HermesTurn(TypedDict):
    index: int
    role: str
    content: str
    toolCalls: list[dict[str, Any]]
    reasoning: str | None


class HumanDetail(TypedDict):
    question: str
    answer: str


class ReactSession(TypedDict):
    agent: str
    role: str
    turns: list[str]
    totalTokens: int
    durationMs: int
    sessionId: NotRequired[str]
    agentName: NotRequired[str]
    model: NotRequired[str]
    stopReason: NotRequired[str]
    malformedLines: NotRequired[int]
    malformed: NotRequired[str]
    loneSurrogates: NotRequired[int]
    stderr: NotRequired[str]


class ReactToolCall(TypedDict):
    name: str
    arguments: str
    result: str
    durationMs: int
    kind: NotRequired[str]
    status: NotRequired[str]
    locations: NotRequired[list[dict[str, Any]]]
    diffs: NotRequired[list[dict[str, Any]]]
    terminals: NotRequired[list[dict[str, Any]]]
    files: NotRequired[list[dict[str, Any]]]
    more: NotRequired[str]
    workspace: NotRequired[str]
    times: NotRequired[str]


class ReactTurn(TypedDict):
    input: str
    output: str
    toolCalls: list[str]
    tokens: dict[str, Any]
    latencyMs: int
    thoughts: NotRequired[str]
    plan: NotRequired[list[dict[str, Any]]]
    updates: NotRequired[str]
    otherSessions: NotRequired[str]
    workspace: NotRequired[str]
    times: NotRequired[str]
    messages: NotRequired[str]
    before: NotRequired[str]


RoleSchema: TypeAlias = dict[str, Any]


class Role(TypedDict):
    name: str
    description: str
    systemPrompt: str
    extractPrompt: str
    schema: str
    policy: NotRequired[dict[str, Any]]
    cacheable: NotRequired[bool]


Schema: TypeAlias = dict[str, Any]


class ThreadAgents(TypedDict):
    agents: dict[str, str]


class ThreadEnd(TypedDict):
    returnCode: int
    summary: str
    start: str
    lastStep: str | None
    completedAt: int


class ThreadStart(TypedDict):
    workflow: str
    input: str
    depth: int
    parentState: str | None
    agents: dict[str, str]
    workspace: str | None
    times: NotRequired[str]
    maxRounds: int
    budget: dict[str, Any] | None
    compact: NotRequired[dict[str, Any]]


class ThreadStep(TypedDict):
    index: int
    role: str
    meta: dict[str, Any]
    content: str
    detail: str
    agent: str
    start: str
    previous: str | None
    ancestors: list[str]
    leap: NotRequired[str]
    compact: str | None
    childThreads: list[str]
    attempts: list[str]
    paused: NotRequired[str]
    extraction: str
    workspace: str | None
    times: NotRequired[str]
    changes: str | None
    startedAt: int
    completedAt: int
    prompt: NotRequired[dict[str, Any]]
    containment: NotRequired[dict[str, Any]]
    cached: NotRequired[dict[str, Any]]


class Times(TypedDict):
    own: Any
    newest: Any
    files: list[Any]
    directories: list[str | None]
    symlinks: list[Any]


class Workflow(TypedDict):
    name: str
    description: str
    roles: dict[str, str]
    moderator: list[dict[str, Any]]
