"""Workflows: roles and the rules that route between them."""

from __future__ import annotations

from typing import Any

import click

from casfs.cli.common import input_name, json_option, open_store, read_json
from casfs.cli.output import echo, echo_json, echo_line, echo_result, warn
from casfs.cli.table import Hash, echo_table
from casfs.errors import Failed, Invalid, NotFound
from engine.moderator import decision as moderator
from engine.workflow import registry as workflows
from engine.workflow.definition import check

FILE_ENDING = ".json"


@click.group()
def workflow() -> None:
    """Roles and the JSONata rules that route between them.

    \b
    casfs workflow add engine/workflows/develop.json
    casfs workflow show develop
    """


@workflow.command()
@click.argument("file")
@json_option
@click.pass_context
def add(ctx: click.Context, file: str, as_json: bool) -> None:
    """Store the workflow in FILE (- for stdin) under its name and print its hash.

    \b
    casfs workflow add engine/workflows/develop.json
    """
    definition = read_json(file)
    with open_store(ctx) as store:
        try:
            hash, report = workflows.add(store, definition)
        except Invalid as error:
            raise Invalid(f"{input_name(file)}: {error}") from None
    for warning in report.warnings:
        warn(f"{input_name(file)}: {warning}")
    name = definition["name"]
    echo_result(
        as_json, {"hash": hash, "name": name, "warnings": report.warnings}, f"{hash} {name}"
    )


@workflow.command()
@click.argument("file")
@json_option
def validate(file: str, as_json: bool) -> int:
    """Check the workflow in FILE: one line for each fault; exit 4 for errors.

    \b
    casfs workflow validate mine.json
    """
    report = check(read_json(file))
    if as_json:
        echo_json({"errors": report.errors, "warnings": report.warnings})
    else:
        for error in report.errors:
            echo_line(f"error: {error}")
        for warning in report.warnings:
            echo_line(f"warning: {warning}")
        if not report.errors:
            echo("ok")
    return Invalid.exit_code if report.errors else 0


@workflow.command("list")
@json_option
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    """List the workflows: name, hash.

    \b
    casfs workflow list
    """
    with open_store(ctx) as store:
        found = workflows.listing(store)
    value = [{"name": name, "hash": hash} for name, hash in found]
    echo_table(as_json, value, "NAME HASH", ((name, Hash(hash)) for name, hash in found))


@workflow.command()
@click.argument("name")
@json_option
@click.pass_context
def show(ctx: click.Context, name: str, as_json: bool) -> None:
    """Print a workflow; with --json in the form that `add` reads.

    \b
    casfs workflow show develop
    """
    with open_store(ctx) as store:
        definition = workflows.definition(store, workflows.find(store, name))
    if as_json:
        echo_json(definition)
        return
    echo(f"{definition['name']}: {definition['description']}")
    for role, body in definition["roles"].items():
        echo_line(f"  {role}: {body['description']}")
    for rule in definition["moderator"]:
        condition = f"  when {rule['when']}" if rule["when"] else ""
        echo_line(f"  {rule['from']} -> {rule['to']}{condition}")


@workflow.command("next")
@click.argument("workflow", metavar="NAME|FILE")
@click.option("--steps", "steps_file", required=True, metavar="FILE|-", help="JSON list of steps.")
@json_option
@click.pass_context
def next_(ctx: click.Context, workflow: str, steps_file: str, as_json: bool) -> None:
    """Print the role that comes after STEPS, a JSON list of {role, meta, ...}.

    Exits 3 for a step of a role that the workflow does not have.

    \b
    echo '[{"role": "planner", "meta": {"status": "aborted"}}]' |
      casfs workflow next develop --steps -
    """
    steps = _steps(read_json(steps_file))
    context = moderator.DecisionInput(steps, {}, "")
    rules = _rules(ctx, workflow)
    roles = {rule[end] for rule in rules for end in ("from", "to")}
    for step in steps:
        if step["role"] not in roles:
            raise NotFound(f"the workflow has no role {step['role']!r}")
    decision = _decide(rules, context)
    if isinstance(decision, moderator.RuleFailed):
        raise Failed(decision.reason)
    if isinstance(decision, moderator.Next):
        echo_result(as_json, {"next": decision.role}, decision.role)
    else:
        value = {"next": moderator.END, "returnCode": decision.return_code}
        echo_result(as_json, {**value, "summary": decision.summary}, moderator.END)


def _decide(rules: list[moderator.Rule], context: moderator.DecisionInput) -> moderator.Decision:
    """Evaluates the rules as the daemon does: in a worker, with a time limit."""
    import trio

    from engine.moderator.evaluator_pool import WorkerPool

    async def decide() -> moderator.Decision:
        async with WorkerPool() as workers:
            return await moderator.decide(rules, context, workers)

    return trio.run(decide)


def _rules(ctx: click.Context, text: str) -> list[moderator.Rule]:
    """The rules of a registered workflow, or of a file with a definition."""
    if text.endswith(FILE_ENDING) or text == "-" or "/" in text:
        definition = read_json(text)
        errors = check(definition).errors
        if errors:
            raise Invalid(f"{text}: {'; '.join(errors)}")
        rules: list[moderator.Rule] = definition["moderator"]
        return rules
    with open_store(ctx) as store:
        return workflows.load(store, workflows.find(store, text)).rules


def _steps(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise Invalid("the steps must be a JSON list of {role, meta, ...}")
    for index, step in enumerate(value):
        if not isinstance(step, dict) or not isinstance(step.get("role"), str):
            raise Invalid(f"$[{index}]: a step must be an object with a role")
    return value
