"""How a thread comes to be: started by a person, called by another thread, forked, and its
name's end.

Beside `engine.threads.transitions` the only writer of threads' heads, and by the same rule: nodes
and the head that leads to them are one transaction. A call moves two heads in one: the child comes
to be as it is named in its parent's intent, so that a parent whose step is run again after a
crash finds the child that it has, and never calls a second one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from casfs import threads
from casfs.agents import Call
from casfs.backend.protocols import Head
from casfs.digest import hash_bytes
from casfs.errors import Conflict, Failed, Invalid, NotFound
from casfs.store import Store
from casfs.threads import CANCELLED, ENDED, Thread
from casfs.write_batch import Batch, retried
from engine import content
from engine.agents.loader import Package
from engine.threads import agent_binding, record
from engine.threads.agent_binding import Binding
from engine.threads.record import UNLIMITED, Budget
from engine.workflow import registry as workflows

MAX_ROUNDS = Call.max_rounds
MAX_CALL_DEPTH = 8  # of threads that call threads
KEY_HEADS = "keys/"
SUMMARISER = ""
NO_REPLACEMENTS: Mapping[str, Binding] = {}


@dataclass(frozen=True)
class CompactPolicy:
    """When a thread is to be summarised: above so many tokens of context, by this agent."""

    above: int
    agent: Binding


@dataclass(frozen=True)
class ThreadRequest:
    """What a new thread is to do. `workflow`: a workflow node; `workspace`: a tree or None;
    `key`: whoever asks again with the same one gets the thread that it got before."""

    workflow: str
    input: str
    agents: Mapping[str, Binding]
    workspace: str | None = None
    max_rounds: int = MAX_ROUNDS
    budget: Budget = UNLIMITED
    compact: CompactPolicy | None = None
    key: str | None = None

    @property
    def all_agents(self) -> dict[str, Binding]:
        """All agents: who plays the roles and, by a name that no role has, the summariser."""
        others = {} if self.compact is None else {SUMMARISER: self.compact.agent}
        return {**self.agents, **others}


@dataclass(frozen=True)
class _ValidatedRequest:
    """A request that was checked. `packages`: of everybody; `above`: what the start says of its
    caller."""

    request: ThreadRequest
    name: str
    packages: Mapping[str, Package]
    above: Mapping[str, Any] = field(default_factory=dict)


def create(store: Store, request: ThreadRequest) -> Thread:
    """Store a thread-start and the head of a new thread; nothing runs yet.

    Raises Invalid for a role without an agent, an agent without a role or a config that
    does not fit; NotFound for an agent that is not installed; Conflict where its key was used
    for another request. Nothing is stored then.
    """
    plan = _plan(store, request)
    return retried(lambda: _create(store, plan)) if request.key else _create(store, plan)


def _create(store: Store, plan: _ValidatedRequest) -> Thread:
    request = plan.request
    known = None if request.key is None else store.heads.get(KEY_HEADS + _key(request.key))
    with store.batch() as batch:
        start = _put_start(batch, plan)
        if known is not None:
            return _known(store, known, start)
        key = None if request.key is None else _key(request.key)
        made = _thread(start, plan.name, key=key)
        batch.swap(made.name, None, made.head)
        if key is not None:
            batch.swap(KEY_HEADS + key, None, Head(start, {"thread": made.id}))
    return made


def call(
    store: Store, parent: Thread, request: ThreadRequest, taken: Mapping[str, object]
) -> tuple[Thread, Thread]:
    """(parent, child): the child that the step in flight has for this request, if it is not
    `taken` already, else a new one.

    Raises as `create`, and Failed for a call too many or too deep.
    """
    above = threads.start(store, parent).payload
    if above["depth"] >= MAX_CALL_DEPTH:
        raise Failed(f"thread {parent.id}: calls are {MAX_CALL_DEPTH} deep; none may go deeper")
    caller = {"depth": above["depth"] + 1, "parentState": parent.hash}
    plan = _plan(store, request, caller)
    intent = parent.record["intent"]
    with store.batch() as batch:
        start = _put_start(batch, plan)
        for id in intent["calls"]:
            if id not in taken and (child := threads.get(store, id)).record["start"] == start:
                return parent, child
        if len(intent["calls"]) >= record.MAX_CALLS:
            raise Failed(f"thread {parent.id}: a step calls {record.MAX_CALLS} threads at most")
        made = _thread(start, plan.name, parent=parent.id)
        batch.swap(made.name, None, made.head)
        children = [*parent.record["children"], made.id][-threads.MAX_CHILDREN :]
        moved = {
            **parent.record,
            "intent": {**intent, "calls": [*intent["calls"], made.id]},
            "children": children,
        }
        above_now = batch.move(parent.name, parent.head, parent.hash, moved)
    return Thread(parent.id, above_now), made


def fork(
    store: Store,
    thread: Thread,
    at: int | str | None = None,
    others: Mapping[str, Binding] = NO_REPLACEMENTS,
) -> Thread:
    """A new thread that goes on from a step of this one, with that step's workspace. `at` is
    its index (0: from the start), its hash, or None for the last. No node is copied. `others`
    play their roles from there on, the rest is played by whom it was.

    Raises NotFound where there is no such step, and for `others` as `create`.
    """
    origin, index = _place(store, thread, at)
    bound = dict(threads.agents(store, thread))
    if unknown := sorted(others.keys() - bound.keys()):
        roles = ", ".join(bound)
        raise Invalid(f"thread {thread.id}: no role {unknown[0]!r}; it has {roles}")
    packages = agent_binding.resolve(others)
    agents = thread.record.get("agents")
    with store.batch() as batch:
        if others:
            bound |= agent_binding.put_agents(batch, packages, others)
            agents = batch.put_node("thread-agents", {"agents": bound}).hash
        made = _thread(
            thread.record["start"],
            thread.record["workflow"],
            origin,
            fork={"thread": thread.id, "step": index},
            agents=agents,
        )
        batch.swap(made.name, None, made.head)
    return made


def remove(store: Store, thread: Thread) -> None:
    """Drop the name of a thread that has ended; its nodes are gc's. Raises Conflict."""
    if thread.status not in (ENDED, CANCELLED):
        raise Conflict(f"thread {thread.id} is {thread.status}; `casfs thread cancel` ends it")
    caller = store.heads.get(threads.HEADS + (thread.record.get("parent") or ""))
    if caller is not None and thread.id in (caller.record.get("intent") or {}).get("calls", ()):
        above = thread.record["parent"]
        raise Conflict(f"thread {above} has a step in flight that called {thread.id}; wait for it")
    with store.batch() as batch:
        batch.swap(thread.name, thread.head, None)
        if key := thread.record.get("key"):
            found = store.heads.get(KEY_HEADS + key)
            if found is not None and found.record.get("thread") == thread.id:
                batch.swap(KEY_HEADS + key, found, None)


def _place(store: Store, thread: Thread, at: int | str | None) -> tuple[str, int]:
    """(node, index) of the step to fork from."""
    if isinstance(at, str):
        node = store.node(at, "thread-step")
        if node.payload["start"] != thread.record["start"]:
            raise NotFound(f"{at} is not a step of thread {thread.id}, nor of a fork of it")
        return at, node.payload["index"]
    last = threads.last_step(store, thread)
    length = store.node(last, "thread-step").payload["index"] if last else 0
    place = length if at is None else at
    if not 0 <= place <= length:
        raise NotFound(f"thread {thread.id} has no step {place}; it has {length}")
    if place == 0:
        return thread.record["start"], 0
    return threads.step_at(store, thread, place).hash, place


def _plan(
    store: Store, request: ThreadRequest, above: Mapping[str, Any] | None = None
) -> _ValidatedRequest:
    workflow = workflows.load(store, request.workflow)
    _check_roles(workflow, request.agents)
    packages = agent_binding.resolve(request.all_agents)
    return _ValidatedRequest(
        request, workflow.name, packages, above or {"depth": 0, "parentState": None}
    )


def _put_start(batch: Batch, plan: _ValidatedRequest) -> str:
    request = plan.request
    agents = agent_binding.put_agents(batch, plan.packages, request.all_agents)
    summariser = agents.pop(SUMMARISER, None)
    payload: dict[str, Any] = {
        "workflow": request.workflow,
        "input": content.put(batch, request.input),
        **plan.above,
        "agents": agents,
        "workspace": request.workspace,
        "maxRounds": request.max_rounds,
        "budget": request.budget.payload(),
    }
    if request.compact is not None:
        payload["compact"] = {"above": request.compact.above, "agent": summariser}
    return batch.put_node("thread-start", payload).hash


def _thread(start: str, workflow: str, hash: str | None = None, **more: Any) -> Thread:
    return Thread(threads.new_id(), Head(hash or start, record.initial(start, workflow, **more)))


def _key(key: str) -> str:
    """Half a hash: a whole one in a record would be a reference."""
    return hash_bytes(key.encode())[:32]


def _known(store: Store, known: Head, start: str) -> Thread:
    found = threads.get(store, known.record["thread"])
    if found.record["start"] != start:
        raise Conflict(f"the idempotency key is taken by thread {found.id}, which does other work")
    return found


def _check_roles(workflow: workflows.Workflow, bound: Mapping[str, Binding]) -> None:
    without = sorted(workflow.roles.keys() - bound.keys())
    if without:
        roles = ", ".join(without)
        raise Invalid(f"workflow {workflow.name}: no agent for {roles}; give --agent ROLE=NAME")
    unknown = sorted(bound.keys() - workflow.roles.keys())
    if unknown:
        roles = ", ".join(workflow.roles)
        raise Invalid(f"workflow {workflow.name}: no role {unknown[0]!r}; it has {roles}")
