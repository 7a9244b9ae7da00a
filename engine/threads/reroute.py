"""What a workflow makes of a recorded thread: no agent is asked, nothing is stored.

At each recorded step the output is extracted again with the role-schema of the workflow in
question, and its rules decide what they would have done there. So the table shows every place
at which the routing now differs, not only the first: the recorded history goes on whatever is
decided. Where a step cannot be read by the new workflow, that is what the table says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from casfs import threads
from casfs.errors import Invalid
from casfs.store import Store
from casfs.threads import Thread
from engine.content import text
from engine.moderator import decision as moderator
from engine.moderator.conditions import LocalEvaluator
from engine.moderator.decision import END, START, Decision, Evaluator, Next, RuleFailed
from engine.output_parser import extract, role_schema
from engine.workflow import registry as workflows
from engine.workflow.registry import Workflow


@dataclass(frozen=True)
class RouteComparison:
    """After step `index` of `role` (0 and START at the beginning): where the recorded thread
    went, None where it went no further, and where the workflow would go. `fault`: what it
    cannot do with the step, or with its rules."""

    index: int
    role: str
    recorded: str | None
    now: str | None
    fault: str | None = None

    @property
    def differs(self) -> bool:
        return self.fault is not None or (self.recorded is not None and self.recorded != self.now)


async def compare_routes(
    store: Store, thread: Thread, workflow: str | None = None, judge: Evaluator | None = None
) -> list[RouteComparison]:
    """The table for a workflow node, or None for the thread's own. Raises NotFound."""
    start = threads.start(store, thread).payload
    flow = workflows.load(store, workflow or start["workflow"])
    recorded = [node.payload for node in threads.last_steps(store, thread, None)]
    routes = [*(step["role"] for step in recorded), _ending(store, thread)]
    rows = []
    steps: list[Mapping[str, Any]] = []
    for index, went in enumerate(routes):
        fault = None
        if index:
            step, fault = _read(store, flow, recorded[index - 1])
            steps.append(step)
        context = moderator.DecisionInput(list(steps), start, thread.id)
        decision = await moderator.decide(flow.rules, context, judge or LocalEvaluator())
        now, stuck = _route(decision)
        role = steps[-1]["role"] if steps else START
        rows.append(RouteComparison(index, role, went, now, fault or stuck))
    return rows


def _ending(store: Store, thread: Thread) -> str | None:
    """Where the thread went after its last step: to the end by a rule, or nowhere."""
    end = threads.end(store, thread)
    return END if end is not None and end.payload["returnCode"] in (0, 1) else None


def _read(
    store: Store, flow: Workflow, step: Mapping[str, Any]
) -> tuple[Mapping[str, Any], str | None]:
    """The step with the meta that this workflow would have taken from it."""
    role = flow.roles.get(step["role"])
    if role is None:
        return step, f"no role {step['role']!r} any more"
    if step["extraction"] == "model":
        return _fitting(step, role.schema)
    try:
        found = extract(text(store, step["content"]), role_schema(role.schema), store)
    except Invalid as error:
        return step, f"its output does not fit any more: {error}"
    return {**step, "meta": dict(found.meta)}, None


def _fitting(
    step: Mapping[str, Any], schema: Mapping[str, Any]
) -> tuple[Mapping[str, Any], str | None]:
    """A meta that a model made from an output is kept; it cannot be made again without one."""
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
