"""Installed agent packages."""

from __future__ import annotations

from typing import Any

import click

from casfs.cli.agent_test import test
from casfs.cli.common import json_option
from casfs.cli.output import echo_json
from casfs.cli.table import echo_table
from casfs.errors import CasfsError
from engine.agents import loader


@click.group()
def agent() -> None:
    """Agents play roles. They are packages of the entry-point group casfs.agents.

    \b
    casfs agent list
    casfs agent test llm:small
    """


agent.add_command(test)


@agent.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the installed agent packages, with the error of one that does not load.

    \b
    casfs agent list
    """
    found = [_describe(name) for name in loader.names()]
    rows = [
        (one["name"], one.get("version", ""), f"broken: {one['error']}" if "error" in one else "ok")
        for one in found
    ]
    echo_table(as_json, found, "NAME VERSION STATE", rows)


@agent.command()
@click.argument("name")
@json_option
def describe(name: str, as_json: bool) -> None:
    """Print an agent's version, capabilities and the JSON Schema of its config.

    \b
    casfs agent describe command
    """
    del as_json  # it is JSON either way
    package = loader.load(name)
    echo_json({**package.descriptor, "name": name, "version": package.version})


def _describe(name: str) -> dict[str, Any]:
    try:
        package = loader.load(name)
    except CasfsError as error:
        return {"name": name, "error": str(error)}
    capabilities = package.descriptor.get("capabilities", [])
    return {"name": name, "version": package.version, "capabilities": capabilities}
