"""`workflow new`, `add` and `validate`: workflows in files."""

from __future__ import annotations

import os
from pathlib import Path

import click

from casfs import config
from casfs.cli.common import (
    input_name,
    open_store,
    read_input,
    store_root,
)
from casfs.cli.output import echo, echo_json, echo_line, echo_result, json_option, wants_json, warn
from casfs.errors import Invalid, Refused, Usage
from engine.workflow import file as workflow_file
from engine.workflow import registry as workflows
from engine.workflow import shipped
from engine.workflow.definition import WORKFLOW_NAME, CheckReport


@click.command()
@click.argument("name")
@json_option
def new(name: str) -> None:
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
    echo_result({"file": str(path)}, f"{path}")


@click.command()
@click.argument("file")
@json_option
def add(file: str) -> None:
    """Store the workflow in FILE (YAML or JSON, - for stdin) under its name and print its hash.

    \b
    casfs workflow add mine.yaml
    """
    workflow = read_file(file)
    report = _report(workflow)
    if report.errors:
        raise Invalid(f"{input_name(file)}: {'; '.join(report.errors)}")
    with open_store() as store:
        try:
            hash, _ = workflows.add(store, workflow.definition, workflow.agents)
        except Invalid as error:
            raise Invalid(f"{input_name(file)}: {error}") from None
    for warning in report.warnings:
        warn(f"{input_name(file)}: {warning}")
    name = workflow.definition["name"]
    echo_result({"hash": hash, "name": name, "warnings": report.warnings}, f"{hash} {name}")


@click.command()
@click.argument("file")
@json_option
def validate(file: str) -> int:
    """Check the workflow in FILE: one line for each fault; exit 4 for errors.

    \b
    casfs workflow validate mine.yaml
    """
    report = _report(read_file(file))
    if wants_json():
        echo_json({"errors": report.errors, "warnings": report.warnings})
    else:
        for error in report.errors:
            echo_line(f"error: {error}")
        for warning in report.warnings:
            echo_line(f"warning: {warning}")
        if not report.errors:
            echo("ok")
    return Invalid.exit_code if report.errors else 0


def _report(workflow: workflow_file.WorkflowFile) -> CheckReport:
    """Returns the faults of a file, those of its default agents included."""
    report = workflow.check()
    if not workflow.agents:
        return report
    from engine.threads import role_agents

    profiles = config.agents(store_root(), os.environ)
    agents = workflow.with_lines(role_agents.check(workflow.agents, profiles))
    return CheckReport([*report.errors, *agents.errors], [*report.warnings, *agents.warnings])


def read_file(file: str) -> workflow_file.WorkflowFile:
    try:
        return workflow_file.read(read_input(file), file)
    except Invalid as error:
        raise Invalid(f"{input_name(file)}: {error}") from None
