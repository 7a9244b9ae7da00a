"""Creates forks: threads that continue from a step of another one, and share its nodes up to there.

However many are created at once, they are one publication: all of them exist, or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle, islice

from casfs import threads
from casfs.digest import NodeHash
from casfs.errors import Invalid, NotFound
from casfs.store import Store
from casfs.threads import Thread
from engine.threads import agent_binding, naming
from engine.threads.agent_binding import NO_BINDINGS, Binding
from engine.threads.lifecycle import check_roles, new_thread
from engine.workflow import registry as workflows

MAX_FORKS = 1000  # of one publication


def fork(
    store: Store,
    thread: Thread,
    at: int | NodeHash | None = None,
    variants: Sequence[Mapping[str, Binding]] = (NO_BINDINGS,),
    count: int = 1,
    max_steps: int | None = None,
    workflow: NodeHash | None = None,
    hint: NodeHash | None = None,
    name: str | None = None,
) -> list[Thread]:
    """Creates threads that continue from a step of this one, with that step's workspace. `at`:
    index of the step (0: the start), its hash, or None for the last. `variants`: agents that play
    their roles from there on, which the threads take in turn; `max_steps`: their step limit, by
    default that of this thread; `workflow`: the node of one that decides from there on; `hint`: for
    the next step. Raises NotFound where there is no such step, Invalid for a workflow without a
    role that was played until there, and as `lifecycle.create` for roles, agents and the name."""
    if not 1 <= count <= (1 if name else MAX_FORKS):
        raise Invalid(f"cannot create {count} forks: 1 to {MAX_FORKS} at once, 1 with a name")
    origin, index = _fork_point(store, thread, at)
    kept, agents = threads.agents(store, thread), [thread.record.get("agents")]
    flow_name, inherited = thread.record["workflow"], ("rounds", "onLimit", "definition")
    fields = {key: thread.record[key] for key in inherited if key in thread.record}
    fields |= {key: one for key, one in (("rounds", max_steps), ("hint", hint)) if one is not None}
    flow = None if workflow is None else workflows.load(store, workflow)
    if flow is not None:
        _check_history(store, origin, flow)
        kept = {role: agent for role, agent in kept.items() if role in flow.roles}
        flow_name, fields["definition"] = flow.name, workflow
    for one in variants:
        if flow is None:
            agent_binding.check_replacements(thread, kept, one)
        else:
            check_roles(flow, {**kept, **one})
    fields["fork"] = {"thread": thread.id, "step": index}
    with naming.one_at_a_time(name), store.batch() as batch:
        if any(variants) or flow is not None:
            agents = [agent_binding.put_replaced(batch, kept, one) for one in variants]
        fields |= naming.fields(store, name)
        start, created = thread.record["start"], list[Thread]()
        for hash in islice(cycle(agents), count):
            created.append(new_thread(start, flow_name, origin, agents=hash, **fields))
            batch.swap(created[-1].name, None, created[-1].head)
    return created


def _check_history(store: Store, origin: NodeHash, flow: workflows.Workflow) -> None:
    """Raises Invalid for a workflow without a role of a recorded step."""
    node = store.node(origin)
    while node.type == "thread-step":
        step = node.payload
        if (role := step["role"]) not in flow.roles:
            raise Invalid(f"workflow {flow.name}: no role {role!r}, of step {step['index']}")
        node = store.node(step["previous"] or step["start"])


def _fork_point(store: Store, thread: Thread, at: int | NodeHash | None) -> tuple[NodeHash, int]:
    """Returns (node, index) of the step to fork from."""
    if isinstance(at, str):
        node = store.node(at, "thread-step")
        if node.payload["start"] != thread.record["start"]:
            raise NotFound(f"{at} is not a step of thread {thread.id}, nor of a fork of it")
        return at, node.payload["index"]
    length = threads.length(store, thread)
    index = length if at is None else at
    if not 0 <= index <= length:
        raise NotFound(f"thread {thread.id} has no step {index}; it has {length}")
    if index == 0:
        return NodeHash(thread.record["start"]), 0
    return threads.step_at(store, thread, index).hash, index
