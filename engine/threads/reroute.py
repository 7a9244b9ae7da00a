"""Replays the routing decisions of a workflow on a recorded thread: no agent is asked, nothing is
stored.

At each recorded step the meta is extracted again with the role-schema of the given workflow,
and its rules decide. So the table shows every step at which the routing now differs, not only the
first: the recorded history goes on whatever is decided. A step that the given workflow cannot read
is a fault in the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from casfs.digest import NodeHash
from casfs.errors import Invalid
from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.threads import Thread
from casfs.threads.workflow_path import END, START
from engine.content import text
from engine.moderator import decision as moderator
from engine.moderator.decision import Decision, Evaluator, Next, RuleFailed
from engine.output.parser import extract, role_schema
from engine.workflow import registry as workflows
from engine.workflow.registry import Workflow


@dataclass(frozen=True)
class RouteComparison:
    """The routes after step `index` of `role` (0 and START at the beginning): `recorded` of the
    thread, None where it went no further; `now` of the given workflow. `fault`: why the step
    cannot be read, or a rule failed."""

    index: int
    role: str
    recorded: str | None
    now: str | None
    fault: str | None = None

    @property
    def differs(self) -> bool:
        return self.fault is not None or (self.recorded is not None and self.recorded != self.now)


async def compare_routes(
    store: Store,
    thread: Thread,
    workflow: NodeHash | None = None,
    evaluator: Evaluator | None = None,
) -> list[RouteComparison]:
    """Returns the table for a workflow node, None for the thread's own. Raises NotFound."""
    if evaluator is None:
        from engine.moderator.conditions import LocalEvaluator

        evaluator = LocalEvaluator()
    start = threads.start(store, thread).payload
    flow = workflows.load(store, workflow or threads.workflow(store, thread))
    recorded = [node.payload for node in threads.last_steps(store, thread, count=None)]
    routes = [*(step["role"] for step in recorded), _ending(store, thread)]
    rows = []
    steps: list[Mapping[str, Any]] = []
    for index, recorded_role in enumerate(routes):
        fault = None
        if index:
            step, fault = _read(store, flow, recorded[index - 1])
            steps.append(step)
        context = moderator.DecisionInput(list(steps), start, thread.id)
        decision = await moderator.decide(flow.rules, context, evaluator)
        decided_role, stuck = _route(decision)
        role = steps[-1]["role"] if steps else START
        rows.append(
            RouteComparison(
                index, role, recorded=recorded_role, now=decided_role, fault=fault or stuck
            )
        )
    return rows


def _ending(store: Store, thread: Thread) -> str | None:
    """Returns END where a rule ended the thread after its last step, else None."""
    end = threads.end(store, thread)
    return END if end is not None and end.payload["returnCode"] in (0, 1) else None


def _read(
    store: Store, flow: Workflow, step: Mapping[str, Any]
) -> tuple[Mapping[str, Any], str | None]:
    """Returns the step with the meta that this workflow extracts from it, and the fault."""
    role = flow.roles.get(step["role"])
    if role is None:
        return step, f"no role {step['role']!r} any more"
    if step["extraction"] == "model":
        return _with_recorded_meta(step, role.schema)
    try:
        extracted = extract(text(store, step["content"]), role_schema(role.schema), store)
    except Invalid as error:
        return step, f"its output does not fit any more: {error}"
    return {**step, "meta": dict(extracted.meta)}, None


def _with_recorded_meta(
    step: Mapping[str, Any], schema: Mapping[str, Any]
) -> tuple[Mapping[str, Any], str | None]:
    """Keeps a meta that the extractor model found: it cannot be extracted again without one."""
    try:
        role_schema(schema).check(step["meta"])
    except Invalid as error:
        return step, f"its meta does not fit any more: {error}"
    return step, None


def _route(decision: Decision) -> tuple[str | None, str | None]:
    if isinstance(decision, Next):
        return decision.role, None
    if isinstance(decision, RuleFailed):
        return None, decision.reason
    return END, None
