"""Installed agent packages."""

from __future__ import annotations

import os
from typing import Any

import click

from casfs import config
from casfs.agents.acp_profiles import PROFILES
from casfs.cli.agent_test import test
from casfs.cli.common import store_root
from casfs.cli.lazy_group import LazyGroup
from casfs.cli.output import echo_json, json_option
from casfs.cli.table import echo_table
from casfs.errors import CasfsError
from casfs.system import extras
from engine.agents import loader
from engine.threads import role_agents


@click.group(cls=LazyGroup)
def agent() -> None:
    """Agents play roles. They are packages of the entry-point group casfs.agents.

    \b
    casfs agent list
    casfs agent test llm:small
    """


agent.add_command(test)


@agent.command("list")
@json_option
def list_() -> None:
    """List the installed agent packages, with the error of one that does not load, the known
    agents that speak ACP, and the profiles of config.toml.

    \b
    casfs agent list
    """
    tables = config.agents(store_root(), os.environ)
    profiles = role_agents.read_profiles(tables).items()
    descriptions = [_describe(name) for name in loader.names()]
    lacking = extras.missing("acp")
    descriptions += [
        {
            "name": f"acp:{name}",
            "package": "acp",
            "argv": list(known.argv),
            "installed": known.is_installed(os.environ) and not lacking,
            "install": lacking or known.install,
        }
        for name, known in PROFILES.items()
    ]
    descriptions += [
        {"name": name, "version": spec["version"], "package": spec["name"], "file": tables[name][1]}
        for name, spec in sorted(profiles)
    ]
    rows = [
        (description["name"], description.get("version", ""), _state(description))
        for description in descriptions
    ]
    echo_table(descriptions, headers="NAME VERSION STATE", rows=rows)


def _state(description: dict[str, Any]) -> str:
    if "installed" in description:
        return (
            "installed" if description["installed"] else f"not installed: {description['install']}"
        )
    if "package" in description:
        return f"profile of {description['package']} in {description['file']}"
    return f"broken: {description['error']}" if "error" in description else "ok"


@agent.command()
@click.argument("name")
@json_option
def describe(name: str) -> None:
    """Print an agent's version, capabilities and the JSON Schema of its config.

    \b
    casfs agent describe command
    """
    package = loader.load(name)
    echo_json({**package.descriptor, "name": name, "version": package.version})


def _describe(name: str) -> dict[str, Any]:
    try:
        package = loader.load(name)
    except CasfsError as error:
        return {"name": name, "error": str(error)}
    if line := extras.missing(name):
        return {"name": name, "error": f"needs an extra: {line}"}
    capabilities = package.descriptor.get("capabilities", [])
    return {"name": name, "version": package.version, "capabilities": capabilities}
