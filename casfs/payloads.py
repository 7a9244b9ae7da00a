"""The payloads of the built-in node types, for a type checker (`Node.payload`).

Made from `schemas/` by `python -m tests.support.payload_types`; a test compares them.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypeAlias, TypedDict

from casfs.digest import BlobHash, NodeHash, ThreadId, TimesHash, TreeHash


class Spent(TypedDict):
    tokens: int
    wallMs: int


class Intent(TypedDict):
    role: str
    index: int
    attempt: NotRequired[int]
    since: NotRequired[int]
    waitedMs: NotRequired[int]
    run: NotRequired[str | None]
    pid: NotRequired[int | None]
    pidStart: NotRequired[int | None]
    turns: NotRequired[list[BlobHash]]
    turnCount: NotRequired[int]
    earlier: NotRequired[NodeHash]
    paused: NotRequired[NodeHash]
    correction: NotRequired[NodeHash]
    kept: NotRequired[BlobHash]
    tree: NotRequired[TreeHash]
    local: NotRequired[TreeHash]
    times: NotRequired[TimesHash]
    localTimes: NotRequired[TimesHash]
    calls: NotRequired[list[ThreadId]]
    resumed: NotRequired[bool]
    goesOn: NotRequired[bool]
    begun: NotRequired[bool]
    lost: NotRequired[int]
    rule: NotRequired[int]
    prompt: NotRequired[NodeHash]
    promptId: NotRequired[str]


class ThreadRecord(TypedDict):
    status: str
    start: NodeHash
    workflow: str
    updatedAt: int
    reason: NotRequired[str | None]
    cause: NotRequired[str | None]
    question: NotRequired[NodeHash | None]
    answer: NotRequired[NodeHash | None]
    hint: NotRequired[NodeHash | None]
    intent: NotRequired[Intent | None]
    attempts: NotRequired[list[BlobHash]]
    spent: NotRequired[Spent]
    compact: NotRequired[NodeHash | None]
    parent: NotRequired[ThreadId | None]
    children: NotRequired[list[ThreadId]]
    fork: NotRequired[dict[str, Any] | None]
    agents: NotRequired[NodeHash | None]
    definition: NotRequired[NodeHash]
    key: NotRequired[str | None]
    name: NotRequired[str | None]
    archived: NotRequired[bool]
    pinned: NotRequired[bool]
    returnCode: NotRequired[int | None]
    origin: NotRequired[str]
    trusted: NotRequired[bool]
    lease: NotRequired[int]
    secretMarks: NotRequired[int]
    allowsSecrets: NotRequired[bool]
    ignored: NotRequired[str | None]
    project: NotRequired[str]
    worktree: NotRequired[str]
    rounds: NotRequired[int]
    onLimit: NotRequired[str]
    session: NotRequired[dict[str, Any]]


class ActionResult(TypedDict):
    action: NodeHash
    exitCode: int
    stdout: BlobHash
    stderr: BlobHash
    outputs: TreeHash
    times: NotRequired[TimesHash]
    detail: BlobHash | None
    artifacts: list[BlobHash]
    durationMs: int
    createdAt: int


class Action(TypedDict):
    argv: list[str]
    cwd: str
    env: dict[str, str]
    inputRoot: TreeHash | None
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
    ends: list[NodeHash]
    totalTokens: int
    durationMs: int


class Checkpoint(TypedDict):
    root: TreeHash
    times: NotRequired[TimesHash]
    applied: NotRequired[list[NodeHash]]
    previous: str | None
    name: str
    createdAt: int
    message: str
    stats: dict[str, Any]
    changed_files: list[str]


class CommandDetail(TypedDict):
    argv: list[str]
    exitCode: int
    stdout: BlobHash
    stderr: BlobHash
    durationMs: int


class Content(TypedDict):
    text: str
    artifacts: list[BlobHash]


class CursorDetail(TypedDict):
    sessionId: str
    model: str | None
    durationMs: int
    turns: list[NodeHash]
    stream: BlobHash


class CursorTurn(TypedDict):
    index: int
    kind: str
    name: str | None
    text: NodeHash
    result: NodeHash | None


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
    turns: list[NodeHash]
    warning: NotRequired[str]


class HermesTurn(TypedDict):
    index: int
    role: str
    content: str
    toolCalls: list[dict[str, Any]]
    reasoning: str | None


class HumanDetail(TypedDict):
    question: NodeHash
    answer: NodeHash


class ReactSession(TypedDict):
    agent: NodeHash
    role: str
    turns: list[NodeHash]
    totalTokens: int
    durationMs: int
    sessionId: NotRequired[str]
    agentName: NotRequired[str]
    model: NotRequired[str]
    stopReason: NotRequired[str]
    malformedLines: NotRequired[int]
    malformed: NotRequired[BlobHash]
    loneSurrogates: NotRequired[int]
    stderr: NotRequired[BlobHash]


class ReactToolCall(TypedDict):
    name: str
    arguments: NodeHash
    result: NodeHash
    durationMs: int
    kind: NotRequired[str]
    status: NotRequired[str]
    locations: NotRequired[list[dict[str, Any]]]
    diffs: NotRequired[list[dict[str, Any]]]
    terminals: NotRequired[list[dict[str, Any]]]
    files: NotRequired[list[dict[str, Any]]]
    more: NotRequired[NodeHash]
    foreign: NotRequired[NodeHash]
    isUnseen: NotRequired[bool]
    workspace: NotRequired[TreeHash]
    times: NotRequired[TimesHash]


class ReactTurn(TypedDict):
    input: NodeHash
    output: NodeHash
    toolCalls: list[NodeHash]
    tokens: dict[str, Any]
    latencyMs: int
    thoughts: NotRequired[NodeHash]
    plan: NotRequired[list[dict[str, Any]]]
    updates: NotRequired[NodeHash]
    otherSessions: NotRequired[NodeHash]
    workspace: NotRequired[TreeHash]
    times: NotRequired[TimesHash]
    messages: NotRequired[NodeHash]
    before: NotRequired[TreeHash]
    begun: NotRequired[NodeHash]
    reportedAt: NotRequired[int]
    callId: NotRequired[str]
    isLate: NotRequired[bool]
    isTorn: NotRequired[bool]
    fault: NotRequired[str]


class Review(TypedDict):
    thread: str
    comments: list[Any]
    rounds: list[Any]
    viewed: dict[str, str]


RoleSchema: TypeAlias = dict[str, Any]


class Role(TypedDict):
    name: str
    description: str
    systemPrompt: str
    extractPrompt: str
    schema: NodeHash
    policy: NotRequired[dict[str, Any]]
    cacheable: NotRequired[bool]


Schema: TypeAlias = dict[str, Any]


class ThreadAgents(TypedDict):
    agents: dict[str, NodeHash]


class ThreadEnd(TypedDict):
    returnCode: int
    summary: str
    start: NodeHash
    lastStep: NodeHash | None
    completedAt: int


class ThreadStart(TypedDict):
    workflow: NodeHash
    input: NodeHash
    depth: int
    parentState: BlobHash | None
    agents: dict[str, NodeHash]
    workspace: TreeHash | None
    times: NotRequired[TimesHash]
    maxRounds: int
    budget: dict[str, Any] | None
    session: NotRequired[dict[str, Any]]
    compact: NotRequired[dict[str, Any]]


class ThreadStep(TypedDict):
    index: int
    role: str
    meta: dict[str, Any]
    content: NodeHash
    detail: BlobHash
    agent: NodeHash
    start: NodeHash
    previous: NodeHash | None
    ancestors: list[NodeHash]
    leap: NotRequired[NodeHash]
    compact: NodeHash | None
    childThreads: list[NodeHash]
    attempts: list[BlobHash]
    paused: NotRequired[NodeHash]
    extraction: str
    workspace: TreeHash | None
    times: NotRequired[TimesHash]
    changes: BlobHash | None
    startedAt: int
    completedAt: int
    prompt: NotRequired[dict[str, Any]]
    containment: NotRequired[dict[str, Any]]
    cached: NotRequired[dict[str, Any]]


class Times(TypedDict):
    own: Any
    newest: Any
    files: list[Any]
    directories: list[TimesHash | None]
    symlinks: list[Any]


class Workflow(TypedDict):
    name: str
    description: str
    roles: dict[str, NodeHash]
    moderator: list[dict[str, Any]]
