"""Workflows: roles, rules, and what their threads made of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from starlette.responses import Response

from casfs.backend.protocols import Head, HeadName
from casfs.errors import CasfsError, NotFound
from casfs.exchange.arrivals import WORKFLOWS
from casfs.store.nodes import head_kinds
from casfs.store.store import Store
from casfs.system.lru_cache import LruCache
from casfs.threads import threads
from casfs.threads.state import FAILED, STOPPED, SUCCEEDED
from casfs.threads.workflow_path import START, edges_taken
from casfs.web import texts
from casfs.web.graph_layout import MAX_RULES, Graph, Rule, counted, layout
from casfs.web.site import Call
from casfs.web.texts import Text
from casfs.web.thread import agent_name
from casfs.web.thread_table import ENDED, Row

LIMIT_S = 0.3  # for reading paths of threads; the next load goes on
MAX_STEPS = 200  # of a thread, the newest
MAX_ROLES = 200
Edge = tuple[str, str]


@dataclass(frozen=True)
class Summary:
    """A workflow and its threads; `hash`: None where its name was removed."""

    name: str
    hash: str | None
    threads: int
    states: Mapping[str, int]
    tokens: int


@dataclass(frozen=True)
class Role:
    name: str
    description: str
    prompt: Text
    ask: Text
    schema: Text
    agent: str


@dataclass(frozen=True)
class Path:
    """How often threads went from one role to another. `ended`: of these threads; `failed`: of
    those that failed or were stopped at a limit."""

    origin: str
    to: str
    times: int
    threads: int
    ended: int
    failed: int


@dataclass(frozen=True)
class Definition:
    description: Text
    roles: Sequence[Role]
    rules: Sequence[Rule]
    graph: Graph | None


@dataclass(frozen=True)
class Paths:
    """`read`: of how many threads, the newest."""

    read: int = 0
    every: Sequence[Path] = ()
    taken: Counter[Edge] = field(default_factory=Counter)


def show_list(call: Call) -> Response:
    return call.page("workflows.html", found=listing(call.store, call.site.threads.rows()))


def show(call: Call) -> Response:
    name = call.path["name"]
    rows = [row for row in call.site.threads.rows() if row.workflow == name]
    head = head_kinds.get(call.store.heads, HeadName(WORKFLOWS + name))
    if head is None and not rows:
        raise NotFound(f"no workflow {name!r}; see `casfs workflow list`")
    taken_paths = paths(call.store, rows, call.site.paths)
    model = None if head is None else definition(call.store, head, taken_paths.taken)
    summary = _summary(name, head.hash if head else None, rows)
    return call.page(
        "workflow.html",
        one=summary,
        found=taken_paths,
        definition=model,
    )


def listing(store: Store, rows: Iterable[Row]) -> list[Summary]:
    """Returns the workflows that are registered or have threads, by name."""
    known = {
        name[len(WORKFLOWS) :]: head.hash
        for name, head in head_kinds.sound(store.heads, HeadName(WORKFLOWS))
    }
    of: dict[str, list[Row]] = {name: [] for name in known}
    for row in rows:
        of.setdefault(row.workflow, []).append(row)
    return [_summary(name, known.get(name), of[name]) for name in sorted(of)]


def _summary(name: str, hash: str | None, rows: list[Row]) -> Summary:
    states = Counter(row.state for row in rows)
    return Summary(
        name, hash, threads=len(rows), states=states, tokens=sum(row.tokens for row in rows)
    )


def definition(store: Store, head: Head, taken: Counter[Edge]) -> Definition:
    """Returns what a workflow's head says. Raises NotFound, Corrupt."""
    flow = store.node(head.hash, "workflow").payload
    bound = head.record.get("agents")
    agents = store.node(bound, "thread-agents").payload["agents"] if bound else {}
    return Definition(
        texts.bounded(flow["description"], head.hash),
        [
            _role(store, name, hash=hash, agent=agents.get(name))
            for name, hash in islice(flow["roles"].items(), MAX_ROLES)
        ],
        rules=counted(flow["moderator"], taken),
        graph=layout(list(flow["roles"]), flow["moderator"], taken),
    )


def _role(store: Store, name: str, hash: str, agent: str | None) -> Role:
    try:
        role: Mapping[str, Any] = store.node(hash, "role").payload
        schema = texts.as_json(store.node(role["schema"], "role-schema").payload, role["schema"])
    except CasfsError as error:
        none = Text("")
        return Role(name, str(error), prompt=none, ask=none, schema=none, agent="")
    return Role(
        name,
        role["description"],
        prompt=texts.bounded(role["systemPrompt"], hash),
        ask=texts.bounded(role["extractPrompt"], hash),
        schema=schema,
        agent=agent_name(store, agent) if agent else "",
    )


def paths(store: Store, rows: list[Row], known: LruCache) -> Paths:
    """Returns the paths that threads took, of as many of the newest as can be read in LIMIT_S;
    `known`: those that were read before."""
    end = time.monotonic() + LIMIT_S
    times: Counter[Edge] = Counter()
    users: Counter[Edge] = Counter()
    ended: Counter[Edge] = Counter()
    failed: Counter[Edge] = Counter()
    read = 0
    for row in sorted(rows, key=lambda row: row.id, reverse=True):
        key = f"{row.id} {row.updated_ms} {row.state} {row.role}"
        edges: Counter[Edge] | None = known.get(key)
        if edges is None:
            if time.monotonic() > end:
                break
            edges = _edges(store, row)
            known.put(key, edges, len(edges) + 1)
        read += 1
        times += edges
        users.update(edges.keys())
        if row.section == ENDED:
            ended.update(edges.keys())
        if row.state in (FAILED, STOPPED):
            failed.update(edges.keys())
    every = [Path(*edge, times[edge], users[edge], ended[edge], failed[edge]) for edge in times]
    return Paths(read, sorted(every, key=lambda path: -path.times)[:MAX_RULES], times)


def _edges(store: Store, row: Row) -> Counter[Edge]:
    try:
        thread = threads.get(store, row.id)
        steps = [node.payload for node in islice(threads.backwards(store, thread), MAX_STEPS)][::-1]
    except CasfsError:  # damaged, or removed meanwhile
        return Counter()
    begin = [START] if not steps or steps[0]["index"] == 1 else []
    path = [*begin, *(step["role"] for step in steps)]
    return edges_taken(path, row.state == SUCCEEDED, row.role)
