"""`workflow next`: the role that the rules give."""

from __future__ import annotations

from typing import Any

import click

from casfs.cli.common import (
    input_name,
    open_store,
    read_json,
)
from casfs.cli.output import echo_result, json_option, wants_json
from casfs.cli.workflow.file import read_file
from casfs.errors import Failed, Invalid, NotFound
from casfs.threads import rule_prompts
from casfs.threads.workflow_path import END
from engine.moderator import decision as moderator
from engine.workflow import file as workflow_file
from engine.workflow import registry as workflows


@click.command("next")
@click.argument("workflow", metavar="NAME|FILE")
@click.option("--steps", "steps_file", required=True, metavar="FILE|-", help="JSON list of steps.")
@json_option
def next_(workflow: str, steps_file: str) -> None:
    """Print the role that comes after STEPS, a JSON list of {role, meta, ...}.

    What the rule's prompt hands to that role follows. Prints __end__ where the thread ends by a
    rule. Exits 1 where no rule matches, 3 for a step of a role that the workflow does not have.

    \b
    echo '[{"role": "planner", "meta": {"status": "aborted"}}]' |
      casfs workflow next develop --steps -
    """
    steps = _steps(read_json(steps_file))
    context = moderator.DecisionInput(steps, {}, "")
    definition = _definition(workflow)
    for step in steps:
        if step["role"] not in definition["roles"]:
            raise NotFound(f"the workflow has no role {step['role']!r}")
    decision = _decide(definition["moderator"], context)
    if isinstance(decision, moderator.RuleFailed):
        raise Failed(decision.reason)
    if isinstance(decision, moderator.Next):
        rule = {} if decision.rule is None else definition["moderator"][decision.rule]
        text = rule_prompts.filled(rule, steps[-1] if steps else None)
        value = {"next": decision.role} | ({} if text is None else {"prompt": text})
        echo_result(value, "\n\n".join(value.values()).rstrip())
        return
    ends = decision.return_code == moderator.COMPLETED
    ended = {"next": END if ends else None, "returnCode": decision.return_code}
    if wants_json() or ends:
        echo_result({**ended, "summary": decision.summary}, END)
    if not ends:
        raise Failed(f"{decision.summary}; a thread ends here with return code 1")


def _decide(rules: list[moderator.Rule], context: moderator.DecisionInput) -> moderator.Decision:
    """Evaluates the rules as the daemon does: in a worker, with a time limit."""
    import trio

    from engine.moderator.evaluator_pool import WorkerPool

    async def decide() -> moderator.Decision:
        async with WorkerPool() as workers:
            return await moderator.decide(rules, context, workers)

    return trio.run(decide)


def _definition(text: str) -> dict[str, Any]:
    """The definition of a registered workflow, or of a file."""
    if text.endswith(workflow_file.ENDINGS) or text == workflow_file.STDIN or "/" in text:
        workflow = read_file(text)
        if errors := workflow.check().errors:
            raise Invalid(f"{input_name(text)}: {'; '.join(errors)}")
        definition: dict[str, Any] = workflow.definition
        return definition
    with open_store() as store:
        return workflows.definition(store, workflows.find(store, text))


def _steps(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise Invalid("the steps must be a JSON list of {role, meta, ...}")
    for index, step in enumerate(value):
        if not isinstance(step, dict) or not isinstance(step.get("role"), str):
            raise Invalid(f"$[{index}]: a step must be an object with a role")
    return value
