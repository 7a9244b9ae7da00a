"""`workflow show`."""

from __future__ import annotations

from typing import Any

import click

from casfs.cli.common import open_store
from casfs.cli.output import echo, echo_json, echo_line, echo_result, json_option, wants_json
from casfs.errors import NotFound
from engine.workflow import registry as workflows


@click.command()
@click.argument("name")
@click.option("--prompt", "role", metavar="ROLE", help="The prompt of ROLE's first step instead.")
@json_option
def show(name: str, role: str | None) -> None:
    """Print a workflow; with --json in the form that `add` reads.

    \b
    casfs workflow show develop
    casfs workflow show develop --prompt planner
    """
    with open_store() as store:
        definition = workflows.definition(store, workflows.find(store, name))
        agents = workflows.default_agents(store, name)
        origin = workflows.origin_text(store, name)
    if role is not None:
        prompt = _prompt(definition, role)
        echo_result({"role": role, "prompt": prompt}, prompt.rstrip())
        return
    if wants_json():
        for key, spec in agents.items():
            package = {"package": spec["name"], "config": spec["config"]}
            definition["roles"][key]["agent"] = {**package, "version": spec["version"]}
        echo_json(definition)
        return
    echo(f"{definition['name']}: {definition['description']}")
    if origin is not None:
        echo_line(f"  from {origin}")
    for key, body in definition["roles"].items():
        player = f"  (agent: {agents[key]['name']})" if key in agents else ""
        echo_line(f"  {key}: {body['description']}{player}")
    for rule in definition["moderator"]:
        condition = f"  when {rule['when']}" if rule["when"] else ""
        echo_line(f"  {rule['from']} -> {rule['to']}{condition}")
        if "prompt" in rule:
            echo_line(f"    prompt: {' '.join(rule['prompt'].split())}")


def _prompt(definition: dict[str, Any], role: str) -> str:
    from casfs.agents.prompt import Prompt

    if role not in definition["roles"]:
        known = ", ".join(definition["roles"])
        raise NotFound(f"the workflow has no role {role!r}; there are {known}")
    body = definition["roles"][role]
    ask = body["extractPrompt"]
    task = "(the task of the thread)"
    return Prompt(body["systemPrompt"], task, history=(), ask=ask, schema=body["schema"]).text()
