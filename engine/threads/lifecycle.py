"""Creates threads (started, called) and removes the heads of finished ones.

Beside `engine.threads.transitions`, `suspension` and `forking` the only writer of threads' heads,
by the same rule: nodes and the head that leads to them are one transaction. A call moves two heads
in one: the child is created as its caller's intent names it, so a caller whose step is run again
after a crash finds its child, and never creates a second one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from casfs import canonical
from casfs.agents import Call
from casfs.backend.protocols import Head, HeadName
from casfs.digest import NodeHash, hash_bytes
from casfs.errors import Conflict, Failed, Invalid
from casfs.review import comments
from casfs.store import removals
from casfs.store.conflict_retry import retry_on_conflict
from casfs.store.nodes import head_kinds
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.threads import sessions, threads
from casfs.threads.state import says
from casfs.threads.threads import BROKEN, CANCELLED, ENDED, Thread, ThreadId
from casfs.trees import recorded_state
from casfs.trees.recorded_state import RecordedState
from casfs.workspaces import ignored_files
from engine import content
from engine.agents import loader
from engine.agents.loader import Package
from engine.threads import agent_binding, call_stack, naming, record
from engine.threads.agent_binding import Binding, option
from engine.threads.record import END_ON_LIMIT, ON_LIMIT, SUSPEND_ON_LIMIT, UNLIMITED, Budget
from engine.workflow import registry as workflows

MAX_STEPS = Call.max_steps
MAX_CALL_DEPTH = 8  # a workflow may call itself
KEY_HEADS = "keys/"
SUMMARISER = ""  # no role has this name
NO_CALLER: Mapping[str, Any] = {"depth": 0, "parentState": None}


@dataclass(frozen=True)
class CompactPolicy:
    """When to compact a thread: above so many tokens of history, by this agent."""

    above: int
    agent: Binding


@dataclass(frozen=True)
class ThreadRequest:
    """A request to create a thread. `workflow`: a workflow node; `workspace`: what it begins with,
    or None; `on_limit`: at the step limit, one of ON_LIMIT; `key`: idempotency key, a repeated
    request with it returns the same thread; `name`: no other thread has it; `ignored`: the token of
    ignored files that its workspace gets a copy of; `project`: fields of its record
    (`casfs.directories.projects`); `allow_secret`: what a scanner of secrets finds
    in its texts is recorded."""

    workflow: NodeHash
    input: str
    agents: Mapping[str, Binding]
    workspace: RecordedState | None = None
    max_steps: int = MAX_STEPS
    budget: Budget = UNLIMITED
    compact: CompactPolicy | None = None
    key: str | None = None
    on_limit: str = SUSPEND_ON_LIMIT
    name: str | None = None
    ignored: str | None = None
    project: Mapping[str, str] = field(default_factory=dict)
    allow_secret: bool = False

    @property
    def all_agents(self) -> dict[str, Binding]:
        """The agents of the roles and, under a name that no role has, the summariser."""
        summarisers = {} if self.compact is None else {SUMMARISER: self.compact.agent}
        return {**self.agents, **summarisers}


@dataclass(frozen=True)
class _ValidatedRequest:
    """`name`: of the workflow; `packages`: of all agents; `caller`: the start's fields `depth`
    and `parentState`."""

    request: ThreadRequest
    name: str
    packages: Mapping[str, Package]
    caller: Mapping[str, Any]


def create(store: Store, request: ThreadRequest) -> Thread:
    """Stores a thread-start and the head of a new thread; nothing runs yet.

    Raises Invalid for a role without an agent, an agent without a role or a config that
    does not fit; NotFound for an agent that is not installed; Conflict where its key was used
    for another request, or its name is taken. Nothing is stored then.
    """
    valid = _validated(store, request)
    # Of two requests with the same key at once, the second conflicts, and then finds the key.
    return retry_on_conflict(partial(_create, store, valid))


def _create(store: Store, valid: _ValidatedRequest) -> Thread:
    request = valid.request
    key = None if request.key is None else key_hash(request.key)
    key_head = None if key is None else head_kinds.get(store.heads, key_name(key))
    # The batch commits before the lock is released, so who comes next sees the name.
    with naming.one_at_a_time(request.name), store.batch() as batch:
        # Also for a known key: equal requests have equal starts, so the start shows whether this
        # one asks for the same.
        start = _put_start(batch, valid)
        if key_head is not None:
            return _thread_of_key(store, key_head, start)
        fields: dict[str, Any] = {}
        if request.on_limit == END_ON_LIMIT:
            fields["onLimit"] = END_ON_LIMIT
        if request.allow_secret:
            fields[record.ALLOWS_SECRETS] = True
        fields |= naming.fields(store, request.name)
        if request.ignored is not None:
            fields[ignored_files.FIELD] = request.ignored
        fields |= request.project
        created = new_thread(start, valid.name, key=key, **fields)
        batch.swap(created.name, None, created.head)
        if key is not None:
            key_head = Head(start, {"thread": created.id})
            batch.swap(key_name(key), None, key_head)
    return created


def call(
    store: Store, parent: Thread, request: ThreadRequest, used: Mapping[str, object]
) -> tuple[Thread, Thread]:
    """Returns (parent, child): a child of the pending step with an equal request, if it is not
    in `used` already, else a new one.

    Raises as `create`, and Failed above the limits of calls or depth.
    """
    above = threads.start(store, parent).payload
    if above["depth"] >= MAX_CALL_DEPTH:
        raise Failed(f"thread {parent.id}: calls are {MAX_CALL_DEPTH} deep; none may go deeper")
    caller = {"depth": above["depth"] + 1, "parentState": parent.hash}
    valid = _validated(store, request, caller)
    intent = parent.intent
    with store.batch() as batch:
        start = _put_start(batch, valid)
        for id in intent["calls"]:
            # An agent may make the same call twice, so a child answers one call of an attempt.
            if id in used:
                continue
            child = threads.get(store, id)
            if child.record["start"] == start:
                return parent, child
        if len(intent["calls"]) >= record.MAX_CALLS:
            raise Failed(f"thread {parent.id}: a step calls {record.MAX_CALLS} threads at most")
        parent_fields: Mapping[str, Any] = parent.record
        inherited = {}
        for key in (ignored_files.FIELD, record.ALLOWS_SECRETS, *threads.PROJECT_FIELDS):
            if key in parent_fields:
                inherited[key] = parent_fields[key]
        child = new_thread(start, valid.name, parent=parent.id, **inherited)
        batch.swap(child.name, None, child.head)
        # The record has room for the newest; every child's own record names its caller.
        children = [*parent.record["children"], child.id][-threads.MAX_CHILDREN :]
        calls = [*intent["calls"], child.id]
        changed_intent = record.changed(intent, calls=calls)
        changed = {**parent.record, "intent": changed_intent, "children": children}
        moved = batch.move(parent.name, parent.head, parent.hash, changed)
    return Thread(parent.id, moved, fault=None), child


def remove(store: Store, thread: Thread) -> None:
    """Removes the head of a finished thread, as `casfs.store.removals`. Raises Conflict."""
    heads = removable_heads(store, thread)
    with store.batch() as batch:
        removals.remove(store, batch, heads)


def removable_heads(
    store: Store, thread: Thread, together_with: Collection[ThreadId] = ()
) -> list[tuple[HeadName, Head]]:
    """Returns the heads of a finished thread. `together_with`: threads that are removed at once.
    Raises Conflict for one that is not finished, or that its caller waits for."""
    if sessions.is_session(thread):
        # Between two prompts it can be: what its agent does next is another thread.
        if thread.pending is not None:
            sessions.refuse(thread)
    elif thread.status not in (ENDED, CANCELLED, BROKEN):
        raise Conflict(f"thread {thread.id} {says(thread)}; `casfs thread cancel` ends it")
    # The caller's next attempt, or its step, would look for the child and not find it.
    is_alone = thread.fields.get("parent") not in together_with
    if is_alone and call_stack.is_awaited(store, thread):
        above = f"thread {thread.fields['parent']}"
        raise Conflict(f"{above} has a pending step that called {thread.id}; wait for it")
    heads = [(thread.name, thread.head)]
    # `fields`, not `record`: a broken thread can be removed, too.
    if key := thread.fields.get("key"):
        name = key_name(key)
        key_head = store.heads.get(name)
        # After an undo of a removal the key may have stayed with a newer thread.
        if key_head and key_head.record.get("thread") == thread.id:
            heads.append((name, key_head))
    review = comments.head_name(thread.id)
    if (review_head := store.heads.get(review)) is not None:
        heads.append((review, review_head))
    return heads


def _validated(
    store: Store, request: ThreadRequest, caller: Mapping[str, Any] = NO_CALLER
) -> _ValidatedRequest:
    if request.on_limit not in ON_LIMIT:
        raise Invalid(f"on_limit must be one of {', '.join(ON_LIMIT)}")
    workflow = workflows.load(store, request.workflow)
    check_roles(workflow, request.agents)
    packages = agent_binding.resolve(request.all_agents)
    # Agents of called threads are checked now: a fault would else be found in the middle of a run.
    for role, binding in request.all_agents.items():
        _check_calls(store, option(role), agent=binding, checked=set())
    return _ValidatedRequest(request, workflow.name, packages=packages, caller=caller)


def _check_calls(store: Store, where: str, agent: Binding, checked: set[bytes]) -> None:
    """Raises NotFound, Invalid for a call of a `workflow` agent, at any depth, that is refused.
    `checked`: the configs that are known; a workflow may call itself."""
    config = agent.config
    key = canonical.encode(config)
    if agent.name == "workflow" and key not in checked:
        checked.add(key)
        for call in config.get("calls", [config]):
            flow = _called_workflow(store, call)
            agents = agent_binding.of_call(store, call["workflow"], call.get("agents", {}))
            check_roles(flow, agents)
            agent_binding.resolve(agents)
            for called in agents.values():
                _check_calls(store, where, agent=called, checked=checked)
        # `meta` is an expression over the called thread's last step. Of several calls each has
        # roles of its own, so there is no one schema to check it by.
        if "calls" not in config:
            _check_meta(store, where, config)
    for nested in loader.load(agent.name).nested_agents(config):
        binding = Binding(nested["name"], nested["config"], nested["version"])
        _check_calls(store, where, agent=binding, checked=checked)


def _called_workflow(store: Store, call: Mapping[str, Any]) -> workflows.Workflow:
    return workflows.load(store, workflows.find_trusted(store, call["workflow"]))


def _check_meta(store: Store, where: str, config: Mapping[str, Any]) -> None:
    """Raises Invalid for an expression of the meta that does not fit the called workflow."""
    # Not at the top: most threads call none, and the parser of expressions takes long to load.
    from engine.moderator import rules

    flow = _called_workflow(store, config)
    schemas = {name: role.schema for name, role in flow.roles.items()}
    faults = rules.result_errors(config.get("meta", "null"), schemas)
    if faults:
        raise Invalid(f"{where}: config.meta: {faults[0]}")


def _put_start(batch: Batch, valid: _ValidatedRequest) -> NodeHash:
    request = valid.request
    # Together, so that a schema that several have is registered once.
    agents = agent_binding.put_agents(batch, valid.packages, request.all_agents)
    summariser = agents.pop(SUMMARISER, None)
    payload: dict[str, Any] = {
        "workflow": request.workflow,
        "input": content.put(batch, request.input),
        **valid.caller,
        "agents": agents,
        "workspace": None,
        "maxRounds": request.max_steps,
        "budget": request.budget.payload(),
    }
    if request.workspace is not None:
        payload["workspace"] = request.workspace.tree
    if request.compact is not None:
        payload["compact"] = {"above": request.compact.above, "agent": summariser}
    state = request.workspace
    return recorded_state.put_node(batch, "thread-start", payload=payload, state=state).hash


def new_thread(
    start: NodeHash, workflow: str, hash: NodeHash | None = None, **fields: Any
) -> Thread:
    head = Head(hash or start, record.initial(start, workflow, **fields))
    return Thread(threads.new_id(), head, fault=None)


def key_name(key: str) -> HeadName:
    return HeadName(KEY_HEADS + key)


def key_hash(key: str) -> str:
    """Returns half a hash: a whole one in a record would be a reference."""
    return hash_bytes(key.encode())[:32]


def _thread_of_key(store: Store, key_head: Head, start: NodeHash) -> Thread:
    thread = threads.get(store, key_head.record["thread"])
    if thread.record["start"] != start:
        raise Conflict(f"the idempotency key is taken by thread {thread.id}, which does other work")
    return thread


def check_roles(workflow: workflows.Workflow, bound: Mapping[str, Any]) -> None:
    """Raises Invalid for a role without an agent, or an agent without a role."""
    if without := sorted(workflow.roles.keys() - bound.keys()):
        roles = ", ".join(without)
        raise Invalid(f"workflow {workflow.name}: no agent for {roles}; give --agent ROLE=NAME")
    if unknown := sorted(bound.keys() - workflow.roles.keys()):
        roles = ", ".join(workflow.roles)
        raise Invalid(f"workflow {workflow.name}: no role {unknown[0]!r}; it has {roles}")
