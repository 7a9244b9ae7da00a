"""Creates forks: threads that continue from a step of another one, and share its nodes up to there.

However many are created at once, they are one publication: all of them exist, or none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any

from casfs.agents.secrets import HIGHEST_MARK
from casfs.checkpoints import revisions
from casfs.digest import NodeHash, is_hash
from casfs.errors import Invalid, NotFound, Refused
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.threads import threads
from casfs.threads.threads import Thread
from casfs.workspaces import ignored_files
from engine import content
from engine.agents import loader
from engine.threads import agent_binding, naming, record, trust
from engine.threads.agent_binding import NO_BINDINGS, Binding
from engine.threads.lifecycle import check_roles, new_thread
from engine.workflow import registry as workflows

MAX_FORKS = 1000  # of one publication
INHERITED = (
    "rounds",
    "onLimit",
    "definition",
    record.ALLOWS_SECRETS,
    HIGHEST_MARK,
    ignored_files.FIELD,
    *threads.PROJECT_FIELDS,
)


@dataclass(frozen=True)
class ForkPoint:
    """`node`: the step with this index, or the thread-start; `turn`: of the step after it."""

    node: NodeHash
    index: int
    turn: int | None = None

    def fields(
        self, store: Store, batch: Batch, thread: Thread, new: Mapping[str, Binding]
    ) -> dict[str, Any]:
        """Returns the fields of the fork's record; within a step, the intent of its first attempt.
        `new`: agents that are replaced. A package that can `continue` is given its turns."""
        fork = {"thread": thread.id, "step": self.index}
        if self.turn is None:
            return {"fork": fork}
        step, turns, state = revisions.turn_state(
            store, thread, index=self.index + 1, turn=self.turn
        )
        agent = threads.agents(store, thread)[step["role"]]
        package = store.node(agent, "agent").payload["package"]
        continues = "continue" in loader.load(package).descriptor.get("capabilities", ())
        intent = record.new_intent(step["role"], self.index + 1, 1)
        begin = record.state_fields(state)
        intent = record.changed(intent, **begin, begun=False, resumed=True)
        if continues := continues and package == new.get(step["role"], Binding(package)).name:
            session = store.node(step["detail"]).payload if "detail" in step else {}
            kept = {"agent": agent, "session": session.get("sessionId", ""), "turn": self.turn}
            intent["kept"] = content.put(batch, json.dumps(kept), turns)
        fork |= {"turn": self.turn, "continues": continues}
        name = f"forked from {thread.id}@{self.index + 1}.{self.turn}"
        intent["paused"] = content.put(batch, name, turns)
        return {"fork": fork, "intent": intent}


@dataclass(frozen=True, slots=True)
class ForkOptions:
    """`max_steps`: the step limit, by default that of the forked thread; `workflow`: the node of
    one that decides from there on; `hint`: for the next step; `name`: of the only fork."""

    max_steps: int | None = None
    workflow: NodeHash | None = None
    hint: NodeHash | None = None
    name: str | None = None


DEFAULTS = ForkOptions()


def fork(
    store: Store,
    thread: Thread,
    step: int | str | None = None,
    variants: Sequence[Mapping[str, Binding]] = (NO_BINDINGS,),
    count: int = 1,
    options: ForkOptions = DEFAULTS,
) -> list[Thread]:
    """Creates threads that continue from a step of this one, with that step's workspace. `step`:
    index of the step (0: the start), its hash, STEP.TURN, or None for the last. `variants`: agents
    that play their roles from there on, which the threads take in turn. Raises NotFound where there
    is no such step, Invalid for a workflow without a role played until there, Refused where nothing
    is left to run, and as `trust.check`, and `lifecycle.create` for roles, agents and the name."""
    name = options.name
    workflow = options.workflow
    if not 1 <= count <= (1 if name else MAX_FORKS):
        raise Invalid(f"cannot create {count} forks: 1 to {MAX_FORKS} at once, 1 with a name")
    trust.check(store, [thread])
    is_over = thread.fields.get("returnCode") in (0, 1)  # by the rules, which decide so again
    if step is None and workflow is None and is_over:
        raise Refused(
            f"thread {thread.id} has ended, nothing is left to run after its last step;"
            " give --at STEP (0: its start), or --workflow NAME"
        )
    origin = _fork_point(store, thread, step)
    kept = threads.agents(store, thread)
    agents = [thread.record.get("agents")]
    flow_name = thread.record["workflow"]
    own: Mapping[str, Any] = thread.record
    fields = {key: own[key] for key in INHERITED if key in own}
    fields |= {
        key: field
        for key, field in (("rounds", options.max_steps), ("hint", options.hint))
        if field is not None
    }
    flow = None if workflow is None else workflows.load(store, workflow)
    if flow is not None:
        _check_history(store, origin, flow)
        kept = {role: agent for role, agent in kept.items() if role in flow.roles}
        flow_name = flow.name
        fields["definition"] = workflow
    for variant in variants:
        if flow is None:
            agent_binding.check_replacements(thread, kept, variant)
        else:
            check_roles(flow, {**kept, **variant})
    with naming.one_at_a_time(name), store.batch() as batch:
        if any(variants) or flow is not None:
            agents = [agent_binding.put_replaced(batch, kept, bindings) for bindings in variants]
        fields |= naming.fields(store, name)
        start = thread.record["start"]
        created = list[Thread]()
        points = [origin.fields(store, batch, thread, bindings) for bindings in variants]
        for hash, point in islice(zip(cycle(agents), cycle(points), strict=False), count):
            record_fields = {**fields, **point, "agents": hash}
            created.append(new_thread(start, flow_name, origin.node, **record_fields))
            batch.swap(created[-1].name, None, created[-1].head)
    return created


def _check_history(store: Store, origin: ForkPoint, flow: workflows.Workflow) -> None:
    """Raises Invalid for a workflow without a role of a recorded step, or of the pending one."""
    if origin.turn is not None:
        raise Invalid("a fork within a step keeps the workflow; give --at STEP")
    node = store.node(origin.node)
    while node.type == "thread-step":
        step = node.payload
        if (role := step["role"]) not in flow.roles:
            raise Invalid(f"workflow {flow.name}: no role {role!r}, of step {step['index']}")
        node = store.node(step["previous"] or step["start"])


def _fork_point(store: Store, thread: Thread, step: int | str | None) -> ForkPoint:
    """Returns the point that `step` names: the index of a step (None: the last), its hash, or
    STEP.TURN. Raises NotFound, Invalid."""
    if isinstance(step, str) and is_hash(step):
        node = store.node(step, "thread-step")
        if node.payload["start"] != thread.record["start"]:
            raise NotFound(f"{step} is not a step of thread {thread.id}, nor of a fork of it")
        return ForkPoint(node.hash, node.payload["index"])
    if isinstance(step, str):
        if (named := revisions.STEP.fullmatch(step)) is None:
            raise Invalid(f"{step!r} is not a step; give its number, or STEP.TURN")
        if named[2]:
            return replace(_fork_point(store, thread, int(named[1]) - 1), turn=int(named[2]))
        step = int(named[1])
    length = threads.length(store, thread)
    index = length if step is None else step
    if not 0 <= index <= length:
        raise NotFound(f"thread {thread.id} has no step {index}; it has {length}")
    hash = threads.step_at(store, thread, index).hash if index else thread.record["start"]
    return ForkPoint(hash, index)
