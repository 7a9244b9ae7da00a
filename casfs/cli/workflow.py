"""Workflows: roles and the rules that route between them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from casfs import config, rule_prompts
from casfs.agents.prompt import Prompt
from casfs.cli.common import (
    input_name,
    json_option,
    open_store,
    read_input,
    read_json,
    store_root,
)
from casfs.cli.lazy_group import LazyGroup
from casfs.cli.output import echo, echo_json, echo_line, echo_result, warn
from casfs.cli.removal import remove_heads
from casfs.cli.table import Hash, echo_table
from casfs.errors import Failed, Invalid, NotFound, Refused, Usage
from casfs.workflow_path import END
from engine.moderator import decision as moderator
from engine.workflow import file as workflow_file
from engine.workflow import registry as workflows
from engine.workflow import shipped
from engine.workflow.definition import WORKFLOW_NAME, CheckReport


@click.group(cls=LazyGroup)
def workflow() -> None:
    """Roles and the JSONata rules that route between them.

    \b
    casfs workflow new mine
    casfs workflow add mine.yaml
    """


@workflow.command()
@click.argument("name")
@json_option
def new(name: str, as_json: bool) -> None:
    """Write NAME.yaml: two roles and a loop, with comments; it validates and runs.

    \b
    casfs workflow new mine
    """
    if not WORKFLOW_NAME.fullmatch(name):
        raise Usage(f"invalid workflow name {name!r}: {WORKFLOW_NAME.pattern}")
    path = Path(f"{name}.yaml")
    try:
        with path.open("xb") as out:
            out.write(shipped.files()[shipped.TEMPLATE])
    except FileExistsError:
        raise Refused(f"{path} exists; choose another name") from None
    echo_result(as_json, {"file": str(path)}, f"{path}")


@workflow.command()
@click.argument("file")
@json_option
@click.pass_context
def add(ctx: click.Context, file: str, as_json: bool) -> None:
    """Store the workflow in FILE (YAML or JSON, - for stdin) under its name and print its hash.

    \b
    casfs workflow add mine.yaml
    """
    found = _read(file)
    report = _report(ctx, found)
    if report.errors:
        raise Invalid(f"{input_name(file)}: {'; '.join(report.errors)}")
    with open_store(ctx) as store:
        try:
            hash, _ = workflows.add(store, found.definition, found.agents)
        except Invalid as error:
            raise Invalid(f"{input_name(file)}: {error}") from None
    for warning in report.warnings:
        warn(f"{input_name(file)}: {warning}")
    name = found.definition["name"]
    echo_result(
        as_json, {"hash": hash, "name": name, "warnings": report.warnings}, f"{hash} {name}"
    )


@workflow.command()
@click.argument("file")
@json_option
@click.pass_context
def validate(ctx: click.Context, file: str, as_json: bool) -> int:
    """Check the workflow in FILE: one line for each fault; exit 4 for errors.

    \b
    casfs workflow validate mine.yaml
    """
    report = _report(ctx, _read(file))
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
@click.option("--prompt", "role", metavar="ROLE", help="The prompt of ROLE's first step instead.")
@json_option
@click.pass_context
def show(ctx: click.Context, name: str, role: str | None, as_json: bool) -> None:
    """Print a workflow; with --json in the form that `add` reads.

    \b
    casfs workflow show develop
    casfs workflow show develop --prompt planner
    """
    with open_store(ctx) as store:
        definition = workflows.definition(store, workflows.find(store, name))
        agents = workflows.default_agents(store, name)
    if role is not None:
        prompt = _prompt(definition, role)
        echo_result(as_json, {"role": role, "prompt": prompt}, prompt.rstrip())
        return
    if as_json:
        for key, spec in agents.items():
            package = {"package": spec["name"], "config": spec["config"]}
            definition["roles"][key]["agent"] = {**package, "version": spec["version"]}
        echo_json(definition)
        return
    echo(f"{definition['name']}: {definition['description']}")
    for key, body in definition["roles"].items():
        player = f"  (agent: {agents[key]['name']})" if key in agents else ""
        echo_line(f"  {key}: {body['description']}{player}")
    for rule in definition["moderator"]:
        condition = f"  when {rule['when']}" if rule["when"] else ""
        echo_line(f"  {rule['from']} -> {rule['to']}{condition}")
        if "prompt" in rule:
            echo_line(f"    prompt: {' '.join(rule['prompt'].split())}")


@workflow.command()
@click.argument("name")
@json_option
@click.pass_context
def trust(ctx: click.Context, name: str, as_json: bool) -> None:
    """Let a workflow run that a pull or an import brought, and print which agents it runs.

    It holds until a pull replaces the workflow.

    \b
    casfs workflow trust develop
    """
    with open_store(ctx) as store:
        workflows.trust(store, name)
        line = workflows.runs(store, name)
    echo_result(as_json, {"name": name, "runs": line}, f"trusted {name}: {line}")


@workflow.command()
@click.argument("name")
@json_option
@click.pass_context
def rm(ctx: click.Context, name: str, as_json: bool) -> None:
    """Remove a workflow's name; threads that run it go on. `casfs undo` restores it.

    \b
    casfs workflow rm develop
    """
    with open_store(ctx) as store:
        key = workflows.head_name(name)
        head = store.heads.get(key)
        if head is None:
            raise NotFound(f"no workflow {name!r}; see `casfs workflow list`")
        remove_heads(store, [(key, head)], as_json)


@workflow.command("next")
@click.argument("workflow", metavar="NAME|FILE")
@click.option("--steps", "steps_file", required=True, metavar="FILE|-", help="JSON list of steps.")
@json_option
@click.pass_context
def next_(ctx: click.Context, workflow: str, steps_file: str, as_json: bool) -> None:
    """Print the role that comes after STEPS, a JSON list of {role, meta, ...}.

    What the rule's prompt hands to that role follows. Prints __end__ where the thread ends by a
    rule. Exits 1 where no rule matches, 3 for a step of a role that the workflow does not have.

    \b
    echo '[{"role": "planner", "meta": {"status": "aborted"}}]' |
      casfs workflow next develop --steps -
    """
    steps = _steps(read_json(steps_file))
    context = moderator.DecisionInput(steps, {}, "")
    definition = _definition(ctx, workflow)
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
        echo_result(as_json, value, "\n\n".join(value.values()).rstrip())
        return
    ends = decision.return_code == moderator.COMPLETED
    ended = {"next": END if ends else None, "returnCode": decision.return_code}
    if as_json or ends:
        echo_result(as_json, {**ended, "summary": decision.summary}, END)
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


def _definition(ctx: click.Context, text: str) -> dict[str, Any]:
    """The definition of a registered workflow, or of a file."""
    if text.endswith(workflow_file.ENDINGS) or text == workflow_file.STDIN or "/" in text:
        found = _read(text)
        if errors := found.check().errors:
            raise Invalid(f"{input_name(text)}: {'; '.join(errors)}")
        definition: dict[str, Any] = found.definition
        return definition
    with open_store(ctx) as store:
        return workflows.definition(store, workflows.find(store, text))


def _read(file: str) -> workflow_file.WorkflowFile:
    try:
        return workflow_file.read(read_input(file), file)
    except Invalid as error:
        raise Invalid(f"{input_name(file)}: {error}") from None


def _report(ctx: click.Context, found: workflow_file.WorkflowFile) -> CheckReport:
    """Returns the faults of a file, those of its default agents included."""
    report = found.check()
    if not found.agents:
        return report
    from engine.threads import role_agents

    profiles = config.agents(store_root(ctx), os.environ)
    agents = found.with_lines(role_agents.check(found.agents, profiles))
    return CheckReport([*report.errors, *agents.errors], [*report.warnings, *agents.warnings])


def _prompt(definition: dict[str, Any], role: str) -> str:
    if role not in definition["roles"]:
        known = ", ".join(definition["roles"])
        raise NotFound(f"the workflow has no role {role!r}; there are {known}")
    body = definition["roles"][role]
    ask, task = body["extractPrompt"], "(the task of the thread)"
    return Prompt(body["systemPrompt"], task, (), ask, body["schema"]).text()


def _steps(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise Invalid("the steps must be a JSON list of {role, meta, ...}")
    for index, step in enumerate(value):
        if not isinstance(step, dict) or not isinstance(step.get("role"), str):
            raise Invalid(f"$[{index}]: a step must be an object with a role")
    return value
