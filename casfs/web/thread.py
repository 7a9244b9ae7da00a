"""A thread: what it does, a window of its steps by their index, the path through its workflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from casfs.backend.protocols import HeadName
from casfs.errors import CasfsError
from casfs.store.store import Store
from casfs.threads import lookup, threads
from casfs.threads.summary import detail_tokens, first_line
from casfs.threads.threads import StepNode, Thread
from casfs.threads.workflow_path import START, edges_taken
from casfs.web import session, texts
from casfs.web.graph_layout import Graph, Rule, counted, layout
from casfs.web.site import Call
from casfs.web.texts import Text
from casfs.web.thread_table import Row, ThreadTable, row_of

WINDOW = 50  # steps
MAX_WINDOW = 200
MAX_LIVE_CHILDREN = 20  # whose moves refresh the page


@dataclass(frozen=True)
class StepLine:
    """A step in the rail. `status`: of its meta; `attempts`: number of failed ones before it;
    `origin`: of its output: run, cache or replay; `removed`: hashes of the ends of children whose
    threads were removed."""

    hash: str
    index: int
    role: str
    agent: str
    status: str
    said: str
    duration_ms: int
    tokens: int | None
    attempts: int
    origin: str
    compacted: bool
    children: list[Row]
    removed: Sequence[str]


@dataclass(frozen=True)
class Page:
    """`first`: index of the first step shown, of `total`; `intent`: the pending step, whose
    children are `calls`; `removed`: ids of those whose threads were removed; `has_parent`:
    whether the caller's thread still exists."""

    row: Row
    title: str = ""
    task: Text | None = None
    lines: Sequence[StepLine] = ()
    first: int = 1
    total: int = 0
    intent: Mapping[str, Any] | None = None
    attempts: int = 0
    calls: Sequence[Row] = ()
    removed: Sequence[str] = ()
    has_parent: bool = False
    agents: Mapping[str, str] = field(default_factory=dict)
    workspace: str | None = None
    fork: Mapping[str, Any] | None = None
    ending: str | None = None
    rules: Sequence[Rule] = ()
    graph: Graph | None = None

    @property
    def last(self) -> int:
        return self.first + len(self.lines) - 1

    @property
    def names(self) -> list[str]:
        """The heads that the page shows."""
        children = [child for line in self.lines for child in line.children]
        shown = [self.row, *self.calls, *children[-MAX_LIVE_CHILDREN:]]
        return [threads.head_name(row.id) for row in shown]


def show(call: Call) -> Response:
    thread = lookup.find(call.store, call.path["id"])
    if session.is_recorded(call.store, thread):
        return session.show(call, thread)
    count = min(max(call.index("count", WINDOW), 1), MAX_WINDOW)
    first = call.index("from") or None
    model = page(call.store, call.site.threads, thread=thread, first=first, count=count)
    return call.page("thread.html", page=model, row=model.row, wanted=first, count=count)


def page(store: Store, table: ThreadTable, thread: Thread, first: int | None, count: int) -> Page:
    """Returns the page of a thread; `first`: index of the first step, None: the newest ones."""
    row = row_of(thread.name, thread.head)
    has_parent = bool(row.parent and store.heads.get(HeadName(f"{threads.HEADS}{row.parent}")))
    if thread.fault is not None:
        return Page(row, table.title(row), has_parent=has_parent)
    total = threads.length(store, thread)
    first = max(total - count + 1, 1) if first is None else min(first, max(total, 1))
    nodes = threads.steps_between(
        store, thread, first=max(first - 1, 1), last=min(first + count - 1, total)
    )
    before = nodes.pop(0).payload["role"] if nodes and first > 1 else START
    children = table.children(thread.id)
    lines = [step_line(store, node, children) for node in nodes]
    is_newest = first + count > total
    intent = thread.pending
    start = threads.start(store, thread).payload
    end = threads.end(store, thread)
    flow = store.node(threads.workflow(store, thread), "workflow").payload
    pending = intent["role"] if intent and is_newest else None
    ended = is_newest and thread.record.get("returnCode") == 0
    taken = edges_taken([before, *(line.role for line in lines)], ended, pending)
    rules = flow["moderator"]
    called = intent["calls"] if intent and "calls" in intent else ()
    calls = [child for child in children if child.id in called]
    return Page(
        row=row,
        title=table.title(row),
        task=texts.content(store, start["input"]),
        lines=lines,
        first=first,
        total=total,
        intent=intent if is_newest else None,
        attempts=len(thread.record.get("attempts") or ()),
        calls=calls,
        removed=sorted({*called} - {child.id for child in calls}),
        has_parent=has_parent,
        agents={
            role: agent_name(store, hash) for role, hash in threads.agents(store, thread).items()
        },
        workspace=start["workspace"],
        fork=thread.record.get("fork"),
        ending=None if end is None else end.payload["summary"],
        rules=counted(rules, taken),
        graph=layout(list(flow["roles"]), rules, taken=taken, pending=pending),
    )


def step_line(store: Store, node: StepNode, children: Sequence[Row]) -> StepLine:
    step = node.payload
    ends = set(step["childThreads"])
    agent = agent_name(store, step["agent"])
    called = [child for child in children if child.head in ends] if ends else []
    return StepLine(
        node.hash,
        step["index"],
        role=step["role"],
        agent=agent,
        status=str(step["meta"].get("status", "")),
        said=first_line(texts.content(store, step["content"]).text),
        duration_ms=step["completedAt"] - step["startedAt"],
        tokens=detail_tokens(store, step["detail"]),
        attempts=len(step["attempts"]),
        origin="cache" if "cached" in step else "replay" if agent == "replay" else "run",
        compacted=step["compact"] is not None,
        children=called,
        removed=sorted(ends - {child.head for child in called}),
    )


def agent_name(store: Store, hash: str) -> str:
    """Returns the package of an agent, with its model where it has one."""
    try:
        agent = store.node(hash, "agent").payload
    except CasfsError as error:
        return str(error)
    model = agent["config"].get("model")
    return f"{agent['package']} ({model})" if isinstance(model, str) else str(agent["package"])
